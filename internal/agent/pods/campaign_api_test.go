package pods

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"sort"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	k8sruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/plimsoll-dev/plimsoll/internal/agent/staticpods"
	"github.com/plimsoll-dev/plimsoll/internal/kube/translate"
)

// apiServer is an API server with pods of one node. Guarded by world.mu.
type apiServer struct {
	w       *world
	pods    map[string]*corev1.Pod // by name; replaced, never written to
	version int
	mirrors int           // that were made
	events  []apiEvent    // versions grow
	changed chan struct{} // closed at the next event
	cut     chan struct{} // closed when watches are cut

	final    map[types.UID]corev1.PodPhase // once told
	restarts map[string]int32              // by pod and container
}

// apiEvent is a line of a watch.
type apiEvent struct {
	version int
	pod     *corev1.Pod
	line    []byte
	gone    bool
}

func newAPIServer(w *world) *apiServer {
	return &apiServer{
		w: w, pods: map[string]*corev1.Pod{}, version: 1, changed: make(chan struct{}), cut: make(chan struct{}),
		final: map[types.UID]corev1.PodPhase{}, restarts: map[string]int32{},
	}
}

func (a *apiServer) byUID(uid types.UID) *corev1.Pod {
	for _, pod := range a.pods {
		if pod.UID == uid {
			return pod
		}
	}
	return nil
}

func (a *apiServer) isInit(uid types.UID, name string) bool {
	pod := a.byUID(uid)
	return pod != nil && slices.ContainsFunc(
		pod.Spec.InitContainers, func(c corev1.Container) bool { return c.Name == name && c.RestartPolicy == nil },
	)
}

// put stores a pod and notifies the watches.
func (a *apiServer) put(pod *corev1.Pod) {
	kind := "MODIFIED"
	if a.pods[pod.Name] == nil {
		kind = "ADDED"
	}
	a.version++
	pod.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}
	pod.ResourceVersion = strconv.Itoa(a.version)
	a.pods[pod.Name] = pod
	a.tell(kind, pod)
}

func (a *apiServer) drop(pod *corev1.Pod) {
	a.version++
	pod = pod.DeepCopy()
	pod.ResourceVersion = strconv.Itoa(a.version)
	delete(a.pods, pod.Name)
	a.tell("DELETED", pod)
}

func (a *apiServer) tell(kind string, pod *corev1.Pod) {
	a.events = append(a.events, apiEvent{a.version, pod, line(kind, pod), kind == "DELETED"})
	close(a.changed)
	a.changed = make(chan struct{})
}

// protoType is the content type with which the API server answers this agent, which accepts it
// (kube.NewClientForConfig).
const protoType = "application/vnd.kubernetes.protobuf"

// proto encodes an object in that form.
func proto(kind string, object interface{ Marshal() ([]byte, error) }) []byte {
	raw := must(object.Marshal())
	envelope := k8sruntime.Unknown{TypeMeta: k8sruntime.TypeMeta{APIVersion: "v1", Kind: kind}, Raw: raw}
	return append([]byte(protoMagic), must(envelope.Marshal())...)
}

// protoMagic precedes every object of that form (apimachinery, serializer/protobuf).
const protoMagic = "k8s\x00"

// unproto decodes what proto encodes.
func unproto(body []byte, into interface{ Unmarshal([]byte) error }) {
	var envelope k8sruntime.Unknown
	if err := envelope.Unmarshal(body[len(protoMagic):]); err != nil {
		panic(err)
	}
	if err := into.Unmarshal(envelope.Raw); err != nil {
		panic(err)
	}
}

func must(raw []byte, err error) []byte {
	if err != nil {
		panic(err)
	}
	return raw
}

// line encodes an event of a watch: its length in four bytes, then the event.
func line(kind string, pod *corev1.Pod) []byte {
	event := metav1.WatchEvent{Type: kind, Object: k8sruntime.RawExtension{Raw: proto("Pod", pod)}}
	raw := must(event.Marshal())
	return append(binary.BigEndian.AppendUint32(nil, uint32(len(raw))), raw...)
}

// cutWatches ends every watch.
func (a *apiServer) cutWatches() {
	close(a.cut)
	a.cut = make(chan struct{})
}

// toEnd does what a user's deletion does.
func (a *apiServer) toEnd(pod *corev1.Pod, grace int64) {
	if grace == 0 {
		a.drop(pod)
		return
	}
	pod = pod.DeepCopy()
	if pod.DeletionTimestamp == nil || grace < *pod.DeletionGracePeriodSeconds {
		at := metav1.NewTime(time.Now().Add(time.Duration(grace) * time.Second))
		pod.DeletionTimestamp, pod.DeletionGracePeriodSeconds = &at, &grace
		pod.Generation++
		a.put(pod)
	}
}

// door is one agent's connection to the server.
type door struct{ l *life }

func (d door) RoundTrip(q *http.Request) (*http.Response, error) {
	w := d.l.w
	name := "api " + q.Method
	if q.URL.Query().Get("watch") != "" {
		name = "api watch"
	}
	var body []byte
	if q.Body != nil {
		var err error
		if body, err = io.ReadAll(q.Body); err != nil {
			return nil, err
		}
	}
	code := 0
	answer := []byte(nil)
	stream := io.ReadCloser(nil)
	ctx, cancel := context.WithTimeout(q.Context(), 40*time.Second) // until a hanging connection is noticed
	defer cancel()
	err := d.l.call(ctx, name, types.UID(q.URL.Path), func() error {
		if !w.calm {
			if r := w.dice("refuse", name, q.URL.Path, w.turns[name+q.URL.Path]); r.IntN(300) < w.trouble {
				code = troubles[r.IntN(len(troubles))]
				return nil
			}
		}
		code, answer, stream = w.api.serve(d.l, q, body)
		return nil
	})
	if err != nil {
		return nil, errors.New("connection lost")
	}
	if code >= http.StatusBadRequest && answer == nil {
		answer = proto(
			"Status", &metav1.Status{Status: "Failure", Code: int32(code), Reason: apiReasons[code], Message: "trouble"},
		)
	}
	kind := protoType
	if stream == nil {
		stream = io.NopCloser(bytes.NewReader(answer))
	} else {
		kind += ";stream=watch"
	}
	return &http.Response{StatusCode: code, Header: http.Header{"Content-Type": {kind}}, Body: stream, Request: q}, nil
}

// troubles are the answers of an API server in trouble.
var troubles = []int{
	http.StatusTooManyRequests, http.StatusInternalServerError, http.StatusServiceUnavailable, http.StatusConflict,
}

var apiReasons = map[int]metav1.StatusReason{
	http.StatusTooManyRequests:     metav1.StatusReasonTooManyRequests,
	http.StatusInternalServerError: metav1.StatusReasonInternalError,
	http.StatusServiceUnavailable:  metav1.StatusReasonServiceUnavailable,
	http.StatusConflict:            metav1.StatusReasonConflict,
	http.StatusNotFound:            metav1.StatusReasonNotFound,
	http.StatusMethodNotAllowed:    metav1.StatusReasonMethodNotAllowed,
}

// serve answers a request. The caller holds world.mu.
func (a *apiServer) serve(l *life, q *http.Request, body []byte) (code int, answer []byte, stream io.ReadCloser) {
	query, parts := q.URL.Query(), strings.Split(strings.Trim(q.URL.Path, "/"), "/")
	switch {
	case q.Method == http.MethodGet && query.Get("watch") != "":
		return http.StatusOK, nil, a.watch(l, q)
	case q.Method == http.MethodGet && len(parts) == 3, q.Method == http.MethodGet && len(parts) == 5:
		list := corev1.PodList{ListMeta: metav1.ListMeta{ResourceVersion: strconv.Itoa(a.version)}}
		_, name, _ := strings.Cut(query.Get("fieldSelector"), "metadata.name=")
		for _, key := range slices.Sorted(maps.Keys(a.pods)) {
			if name == "" || name == key {
				list.Items = append(list.Items, *a.pods[key])
			}
		}
		return http.StatusOK, proto("PodList", &list), nil
	case q.Method == http.MethodGet && len(parts) == 4 && parts[2] == "nodes":
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: parts[3], UID: "node-uid"}}
		return http.StatusOK, proto("Node", node), nil
	case q.Method == http.MethodPost && len(parts) == 5:
		return a.create(body)
	case q.Method == http.MethodPatch && len(parts) == 7:
		return a.patch(parts[5], body)
	case q.Method == http.MethodDelete && len(parts) == 6:
		return a.remove(parts[5], body)
	}
	panic("the agent asks the API for " + q.Method + " " + q.URL.String())
}

// create creates a mirror pod.
func (a *apiServer) create(body []byte) (int, []byte, io.ReadCloser) {
	pod := &corev1.Pod{}
	unproto(body, pod)
	if a.pods[pod.Name] != nil {
		return http.StatusConflict, proto("Status", &metav1.Status{
			Status: "Failure", Code: http.StatusConflict, Reason: metav1.StatusReasonAlreadyExists, Message: "it exists",
		}), nil
	}
	a.mirrors++
	pod.UID, pod.CreationTimestamp = types.UID(fmt.Sprintf("mirror-%d", a.mirrors)), metav1.Now()
	pod.Status.Phase = corev1.PodPending
	a.w.say("  %s, the mirror of %s, is there", pod.UID, pod.Annotations[corev1.MirrorPodAnnotationKey])
	a.put(pod)
	return http.StatusCreated, proto("Pod", pod), nil
}

// patch applies a patch of a status as the API server does, as far as the agent sends it, and judges it.
func (a *apiServer) patch(name string, body []byte) (int, []byte, io.ReadCloser) {
	pod := a.pods[name]
	if pod == nil {
		return http.StatusNotFound, nil, nil
	}
	var sent struct {
		Metadata struct{ UID types.UID }
		Status   struct {
			corev1.PodStatus
			Conditions []struct {
				Delete string `json:"$patch"`
				corev1.PodCondition
			} `json:"conditions"` // hides the field of PodStatus
			PodIPs  []map[string]string `json:"podIPs"`
			HostIPs []map[string]string `json:"hostIPs"`
		}
	}
	if err := json.Unmarshal(body, &sent); err != nil {
		panic(err)
	}
	if sent.Metadata.UID != pod.UID {
		return http.StatusConflict, nil, nil
	}
	pod = pod.DeepCopy()
	a.judge(pod, &sent.Status.PodStatus)
	from := sent.Status
	was := pod.Status
	pod.Status = from.PodStatus
	into := &pod.Status
	into.Conditions = was.Conditions
	for _, lists := range [][2]*[]corev1.ContainerStatus{
		{&into.InitContainerStatuses, &was.InitContainerStatuses},
		{&into.ContainerStatuses, &was.ContainerStatuses},
		{&into.EphemeralContainerStatuses, &was.EphemeralContainerStatuses},
	} {
		if *lists[0] == nil {
			*lists[0] = *lists[1]
		}
	}
	for _, c := range from.Conditions {
		if strings.HasPrefix(string(c.Type), "example.com/") {
			a.w.judged("%s: a condition of somebody else is written: %s", pod.UID, c.Type)
		}
		into.Conditions = slices.DeleteFunc(into.Conditions, func(has corev1.PodCondition) bool { return has.Type == c.Type })
		if c.Delete == "" {
			into.Conditions = append(into.Conditions, c.PodCondition)
		}
	}
	for _, ip := range from.PodIPs {
		if ip["ip"] != "" {
			into.PodIPs = append(into.PodIPs, corev1.PodIP{IP: ip["ip"]})
		}
	}
	for _, ip := range from.HostIPs {
		if ip["ip"] != "" {
			into.HostIPs = append(into.HostIPs, corev1.HostIP{IP: ip["ip"]})
		}
	}
	a.put(pod)
	a.w.judgeResize(pod)
	return http.StatusOK, proto("Pod", pod), nil
}

// judge compares a status with the earlier ones.
func (a *apiServer) judge(pod *corev1.Pod, s *corev1.PodStatus) {
	uid := pod.UID
	if staticpods.IsMirror(pod) {
		uid = types.UID(pod.Annotations[corev1.MirrorPodAnnotationKey])
	}
	a.w.say("  %s is reported to be %s %s", uid, s.Phase, s.Reason)
	ended := s.Phase == corev1.PodSucceeded || s.Phase == corev1.PodFailed
	if was := a.final[uid]; was != "" && was != s.Phase {
		a.w.judged("%s is reported to be %s after %s", uid, s.Phase, was)
	}
	if alive := a.w.alive(uid); ended && a.final[uid] == "" && len(alive) > 0 {
		a.w.judged("%s is reported to be %s while %v run", uid, s.Phase, alive)
	}
	if ended {
		a.final[uid] = s.Phase
	}
	for _, list := range translate.StatusLists(s) {
		for i := range list {
			key := string(uid) + " " + list[i].Name
			if list[i].RestartCount < a.restarts[key] {
				a.w.judged("%s: the restart count falls from %d to %d", key, a.restarts[key], list[i].RestartCount)
			}
			a.restarts[key] = list[i].RestartCount
		}
	}
	if pod.Status.ObservedGeneration > s.ObservedGeneration {
		a.w.judged(
			"%s: the observed generation falls from %d to %d", pod.UID, pod.Status.ObservedGeneration, s.ObservedGeneration,
		)
	}
}

// remove is the agent's deletion of a pod: nothing of the pod may run any more.
func (a *apiServer) remove(name string, body []byte) (int, []byte, io.ReadCloser) {
	var o metav1.DeleteOptions
	unproto(body, &o)
	pod := a.pods[name]
	if pod == nil {
		return http.StatusNotFound, nil, nil
	}
	if pod.UID != *o.Preconditions.UID {
		return http.StatusConflict, nil, nil
	}
	if alive := a.w.alive(pod.UID); len(alive) > 0 {
		a.w.judged("%s is deleted by its node while %v run", pod.UID, alive)
	}
	if a.w.volumes[pod.UID] || a.w.groups[pod.UID] {
		a.w.judged("%s is deleted by its node before its volumes and groups", pod.UID)
	}
	a.w.say("  %s is gone", pod.UID)
	a.drop(pod)
	return http.StatusOK, proto("Pod", pod), nil
}

// watching is the body of a watch.
type watching struct {
	a       *apiServer
	l       *life
	ctx     context.Context
	version int
	first   []*corev1.Pod // in the buffer, and not read yet
	buffer  []byte
	over    chan struct{}
	cut     chan struct{}
}

func (a *apiServer) watch(l *life, q *http.Request) io.ReadCloser {
	s := &watching{a: a, l: l, ctx: q.Context(), over: make(chan struct{}), cut: a.cut}
	if q.URL.Query().Get("sendInitialEvents") == "true" {
		for _, key := range slices.Sorted(maps.Keys(a.pods)) {
			s.buffer = append(s.buffer, line("ADDED", a.pods[key])...)
			s.first = append(s.first, a.pods[key])
		}
		s.version = a.version
		mark := &corev1.Pod{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}}
		mark.ResourceVersion, mark.Annotations = strconv.Itoa(a.version), map[string]string{
			metav1.InitialEventsAnnotationKey: "true",
		}
		s.buffer = append(s.buffer, line("BOOKMARK", mark)...)
		return s
	}
	s.version, _ = strconv.Atoi(q.URL.Query().Get("resourceVersion"))
	return s
}

// hear records the stop orders that the agent learns of. The caller holds world.mu.
func (s *watching) hear(pod *corev1.Pod, gone bool) {
	if s.a.w.life != s.l {
		return
	}
	if gone || pod.DeletionTimestamp != nil {
		s.a.w.ordered(pod.UID, max(translate.DeletionGrace(pod), 0))
	}
	if v, ok := s.a.w.evicted[pod.UID]; ok && translate.PodlifeTerminal(pod) == "" { // by an earlier agent
		s.a.w.ordered(pod.UID, max(time.Until(v.KillAt), 0))
	}
}

// next puts the next event into the buffer, if there is one. The caller holds world.mu.
func (s *watching) next() {
	w, events := s.a.w, s.a.events
	i := sort.Search(len(events), func(i int) bool { return events[i].version > s.version })
	if i == len(events) {
		return
	}
	e := events[i]
	s.buffer, s.version = e.line, e.version
	if !w.calm && w.dice("twice", e.version, s.l.number).IntN(20) == 0 {
		s.buffer = slices.Concat(e.line, e.line)
	}
	s.hear(e.pod, e.gone)
}

func (s *watching) Read(into []byte) (int, error) {
	for {
		w := s.a.w
		w.mu.Lock()
		if len(s.buffer) == 0 {
			s.next()
		}
		for _, pod := range s.first {
			s.hear(pod, false)
		}
		s.first = nil
		n, changed := copy(into, s.buffer), s.a.changed
		s.buffer = s.buffer[n:]
		w.mu.Unlock()
		if n > 0 {
			return n, nil
		}
		select {
		case <-changed:
		case <-s.cut:
			return 0, io.EOF
		case <-s.over:
			return 0, io.EOF
		case <-s.ctx.Done():
			return 0, s.ctx.Err()
		case <-s.l.gone:
			return 0, io.ErrUnexpectedEOF
		}
	}
}

func (s *watching) Close() error {
	close(s.over)
	return nil
}
