package scheduler

import (
	"encoding/json"
	"net/http"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
)

// unproto decodes an object from the encoding that our client sends (kube.NewClientForConfig).
func unproto(body []byte, into interface{ Unmarshal([]byte) error }) {
	var envelope runtime.Unknown
	if err := envelope.Unmarshal(body[len("k8s\x00"):]); err != nil {
		panic(err)
	}
	if err := into.Unmarshal(envelope.Raw); err != nil {
		panic(err)
	}
}

// write answers a write request. w.mu is held.
func (w *wire) write(q *http.Request, a address, body []byte) *http.Response {
	pod, _ := w.objects["pods"][a.namespace+"/"+a.name].(*corev1.Pod)
	switch {
	case a.resource == "events":
		return w.event(q, a, body)
	case a.resource == "pods" && pod == nil:
		return refusal(q, http.StatusNotFound, a.name)
	case a.resource == "pods" && a.part == "binding":
		return w.bind(q, pod, body)
	case a.resource == "pods" && a.part == "status":
		return w.patch(q, pod, body)
	case a.resource == "pods" && q.Method == http.MethodDelete:
		return w.remove(q, pod, body)
	}
	w.t.Errorf("unexpected request of the scheduler: %s %s", q.Method, q.URL)
	return refusal(q, http.StatusForbidden, a.resource)
}

// namesPod reports whether a write names the UID of pod. A write that names none is an error.
func (w *wire) namesPod(what string, pod *corev1.Pod, uid types.UID) bool {
	if uid == "" {
		w.t.Errorf("%s of %s does not name its UID", what, pod.Name)
	}
	return uid == pod.UID
}

func (w *wire) bind(q *http.Request, pod *corev1.Pod, body []byte) *http.Response {
	var b corev1.Binding
	unproto(body, &b)
	if !w.namesPod("the bind", pod, b.UID) || pod.DeletionTimestamp != nil || pod.Spec.NodeName != "" {
		return refusal(q, http.StatusConflict, "pod is already assigned, is being deleted, or has another UID")
	}
	pod = pod.DeepCopy()
	pod.Spec.NodeName = b.Target.Name
	pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionTrue}}
	w.bound[pod.UID]++
	w.set("pods", pod)
	return answer(q, http.StatusCreated, metav1.Status{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Status: metav1.StatusSuccess,
	})
}

func (w *wire) patch(q *http.Request, pod *corev1.Pod, body []byte) *http.Response {
	var sent struct {
		Metadata struct{ UID types.UID }
		Status   struct {
			Conditions        []corev1.PodCondition
			NominatedNodeName *string
		}
	}
	if err := json.Unmarshal(body, &sent); err != nil {
		panic(err)
	}
	if !w.namesPod("the patch", pod, sent.Metadata.UID) {
		return refusal(q, http.StatusConflict, "it is another")
	}
	pod = pod.DeepCopy()
	for _, c := range sent.Status.Conditions {
		if c.Type == corev1.PodScheduled && pod.Spec.NodeName != "" {
			w.t.Errorf("a patch says why %s was not placed, although it is on %s", pod.Name, pod.Spec.NodeName)
		}
		has := func(old corev1.PodCondition) bool { return old.Type == c.Type }
		pod.Status.Conditions = append(slices.DeleteFunc(pod.Status.Conditions, has), c)
	}
	if node := sent.Status.NominatedNodeName; node != nil {
		pod.Status.NominatedNodeName = *node
	}
	w.set("pods", pod)
	return answer(q, http.StatusOK, pod)
}

func (w *wire) remove(q *http.Request, pod *corev1.Pod, body []byte) *http.Response {
	var o metav1.DeleteOptions
	unproto(body, &o)
	uid := types.UID("")
	if o.Preconditions != nil && o.Preconditions.UID != nil {
		uid = *o.Preconditions.UID
	}
	if !w.namesPod("the deletion", pod, uid) {
		return refusal(q, http.StatusConflict, "it is another")
	}
	w.unset("pods", pod)
	return answer(q, http.StatusOK, pod)
}

func (w *wire) event(q *http.Request, a address, body []byte) *http.Response {
	if q.Method == http.MethodPatch {
		return answer(q, http.StatusOK, corev1.Event{ObjectMeta: metav1.ObjectMeta{Namespace: a.namespace, Name: a.name}})
	}
	var e corev1.Event
	unproto(body, &e)
	name := e.Name + " " + e.Reason // time stands still in a bubble, and names are derived from it
	if w.names[name] {
		return answer(q, http.StatusConflict, metav1.Status{
			TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"},
			Status:   metav1.StatusFailure, Code: http.StatusConflict, Reason: metav1.StatusReasonAlreadyExists,
		})
	}
	w.names[name] = true
	w.told[e.Reason+" "+e.InvolvedObject.Name]++
	return answer(q, http.StatusCreated, e)
}
