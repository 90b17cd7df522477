package agent

import (
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/plimsoll-dev/plimsoll/internal/core/qos"
	"github.com/plimsoll-dev/plimsoll/internal/kube/translate"
)

// qosPods translates the node's pods for core/qos: each pod once, and again when its resources have changed. The zero
// value is empty. Any goroutine may call its methods.
type qosPods struct {
	mu   sync.Mutex // guards pods
	pods map[types.UID]*qosPod
}

// qosPod is one pod of qosPods. It is replaced, never written to.
type qosPod struct {
	qos.Pod
	class qos.Class
	by    translate.PodResources // of the version of the pod that was translated
}

// of returns the translation of a pod.
func (q *qosPods) of(pod *corev1.Pod) *qosPod {
	q.mu.Lock()
	defer q.mu.Unlock()
	if p := q.pods[pod.UID]; p != nil && p.by.SameAs(pod) {
		return p
	}
	p := &qosPod{Pod: translate.QoSPod(pod), by: translate.PodResourcesOf(pod)}
	p.class = qos.ClassOf(p.Pod)
	if q.pods == nil {
		q.pods = map[types.UID]*qosPod{}
	}
	q.pods[pod.UID] = p
	return p
}

// keep drops the pods for which here returns false.
func (q *qosPods) keep(here func(types.UID) bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for uid := range q.pods {
		if !here(uid) {
			delete(q.pods, uid)
		}
	}
}
