package scheduler

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	extenderv1 "k8s.io/kube-scheduler/extender/v1"

	corescheduler "github.com/plimsoll-dev/plimsoll/internal/core/scheduler"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
	"github.com/plimsoll-dev/plimsoll/internal/kube"
	"github.com/plimsoll-dev/plimsoll/internal/kube/schedulerconfig"
)

const (
	// extenderWorkers is the number of pods about which extenders are asked at once. Chosen: upstream's default of
	// parallelism; upstream itself asks about one pod at a time.
	extenderWorkers = 16
	// answerBytes and answerShare limit an extender's answer to answerBytes bytes, plus answerShare bytes for each byte
	// of the request. Chosen: an answer repeats the request, with a reason for each node.
	answerBytes, answerShare = 1 << 20, 4
	// reasonMax limits, in bytes, one reason of an extender. reasonsMax limits how many different reasons are kept for
	// one pod; the others are replaced by a general reason. Chosen: reasons are written into Events and the pod's
	// condition.
	reasonMax, reasonsMax = 256, 20
	// extenderScale converts an extender's score, up to 10, to the scale of node scores, up to 100 (upstream's
	// MaxNodeScore divided by MaxExtenderPriority).
	extenderScale = 100 / extenderv1.MaxExtenderPriority
)

// extender is an HTTP extender, with upstream's protocol (k8s.io/kube-scheduler/extender/v1).
type extender struct {
	schedulerconfig.Extender
	client *http.Client
}

// newExtenders makes the HTTP clients. It opens no connections.
func newExtenders(list []schedulerconfig.Extender) (out []*extender, err error) {
	for _, e := range list {
		transport, err := rest.TransportFor(&e.Config)
		if err != nil {
			return nil, fmt.Errorf("extender %s: %w", e.URL, err)
		}
		out = append(out, &extender{e, &http.Client{Transport: transport, Timeout: e.Timeout}})
	}
	return out, nil
}

// concerns reports whether the extender must be asked about a pod.
func (e *extender) concerns(p corescheduler.Pod) bool {
	if len(e.Manages) == 0 {
		return true
	}
	for _, r := range p.Requests {
		if e.Manages[r.Resource] {
			return true
		}
	}
	return false
}

// send sends a request and decodes the answer.
func (e *extender) send(ctx context.Context, verb string, ask, answer any) error {
	body, err := json.Marshal(ask)
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, e.URL+"/"+verb, bytes.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := e.client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%w: %s", errExtenderStatus, resp.Status)
	}
	most := int64(answerBytes + answerShare*len(body))
	left := &io.LimitedReader{R: resp.Body, N: most}
	if err := json.NewDecoder(left).Decode(answer); err != nil {
		if left.N <= 0 {
			return fmt.Errorf("answer longer than %d bytes", most)
		}
		return fmt.Errorf("invalid answer: %w", err)
	}
	return nil
}

// errExtenderStatus is an answer with an HTTP status other than 200: the extender has not done what was requested.
var errExtenderStatus = errors.New("status")

// extendersFor reports whether extenders must be asked about nodes for a pod, and whether about preemptions.
func (m *loop) extendersFor(p corescheduler.Pod) (nodes, evictions bool) {
	for _, e := range m.extenders {
		if e.concerns(p) {
			nodes = nodes || e.Filter != "" || e.Prioritize != ""
			evictions = evictions || e.Preempt != ""
		}
	}
	return nodes, evictions
}

// extenderRequest is a pod about which extenders are asked. It has the nodes on which the pod fits. If it fits nowhere,
// it has the preemptions that would make room instead, and the failure.
type extenderRequest struct {
	pod        corescheduler.Pod
	nodes      []string
	candidates []corescheduler.Preemption
	why        *corescheduler.Failure
	began      unit.Instant // when the attempt began
}

// askExtenders asks one extender after another, in another goroutine than the scheduling loop, and hands the answers to
// the loop.
func (m *loop) askExtenders(ctx context.Context, q extenderRequest) (done bool) {
	var answer corescheduler.ExtenderAnswer
	var left []corescheduler.Preemption
	pod, err := m.wholePod(ctx, q.pod.Namespace, q.pod.Name, q.pod.ID)
	switch {
	case err != nil:
		err = fmt.Errorf("ask extenders: %w", err)
	case q.candidates != nil:
		left, err = m.evictionsLeft(ctx, pod, q)
	default:
		answer, err = m.askAll(ctx, pod, q)
	}
	m.submit(ctx, func(now unit.Instant) {
		switch {
		case err != nil:
			m.extenderFailed(now, q, err)
		case q.candidates != nil:
			m.placer.PreemptionAnswered(now, q.pod.ID, left)
		default:
			m.placer.ExtendersAnswered(now, q.pod.ID, answer)
		}
	})
	return true // if an extender failed, the scheduling loop asks again
}

// extenderFailed makes a pod try again after its back-off, and reports the error in its condition and in an Event.
func (m *loop) extenderFailed(now unit.Instant, q extenderRequest, err error) {
	slog.Warn("extender failed", "pod", q.pod.Namespace+"/"+q.pod.Name, "err", err)
	m.noteFailed(&q.pod, "ask extenders", "", err)
	m.o.Metrics.attempt(resultError, q.pod.Profile, now.Sub(q.began))
	m.placer.ExtendersFailed(now, q.pod.ID)
	pod := m.lookUp(q.pod)
	switch {
	case pod == nil || pod.Spec.NodeName != "":
	case q.why != nil:
		why := *q.why
		why.Preemption = err.Error()
		m.reportFailure(q.pod, corev1.PodReasonUnschedulable, why.Explain(m.classes.classOf), pod.Status.NominatedNodeName)
	default:
		m.reportFailure(q.pod, corev1.PodReasonSchedulerError, err.Error(), pod.Status.NominatedNodeName)
	}
}

// wholePod reads the whole object of a pod from the API server. It returns a NotFound error if the UID differs.
func (m *loop) wholePod(ctx context.Context, namespace, name string, id corescheduler.PodID) (*corev1.Pod, error) {
	pod, err := m.api.pod(ctx, namespace, name)
	if err == nil && pod.UID != types.UID(id) {
		// the name belongs to another pod now
		err = apierrors.NewNotFound(schema.GroupResource{Resource: "pods"}, name)
	}
	return pod, err
}

// askAll asks each extender that the pod concerns: first to filter the nodes that the extenders before it left, then
// to prioritize the remaining nodes.
func (m *loop) askAll(
	ctx context.Context, pod *corev1.Pod, q extenderRequest,
) (o corescheduler.ExtenderAnswer, err error) {
	left := q.nodes
	o = corescheduler.ExtenderAnswer{Nodes: map[string]int64{}, Rejected: map[string]string{}}
	for _, e := range m.extenders {
		if e.Filter == "" || !e.concerns(q.pod) || len(left) == 0 {
			continue
		}
		passed, err := e.filter(ctx, m.about(e, pod, left), left, o.Rejected)
		switch {
		case err == nil:
			left = passed
		case e.Ignorable && ctx.Err() == nil:
			slog.Warn("extender failed, and is ignored",
				"extender", e.URL, "pod", q.pod.Namespace+"/"+q.pod.Name, "err", err)
		default:
			return o, fmt.Errorf("extender %s: %s: %w", e.URL, e.Filter, err)
		}
	}
	for _, name := range left {
		o.Nodes[name] = 0
	}
	for _, e := range m.extenders {
		if e.Prioritize == "" || !e.concerns(q.pod) || len(left) < 2 {
			continue
		}
		var scores extenderv1.HostPriorityList
		if err := e.send(ctx, e.Prioritize, m.about(e, pod, left), &scores); err != nil {
			// Upstream ignores such errors, too.
			slog.Warn("extender failed to prioritize",
				"extender", e.URL, "pod", q.pod.Namespace+"/"+q.pod.Name, "err", err)
			continue
		}
		for _, s := range scores {
			if _, asked := o.Nodes[s.Host]; asked {
				score := min(max(s.Score, extenderv1.MinExtenderPriority), extenderv1.MaxExtenderPriority)
				o.Nodes[s.Host] += score * e.Weight * extenderScale
			}
		}
	}
	return o, nil
}

// about returns the arguments for an extender: the pod, and names of nodes or whole nodes.
func (m *loop) about(e *extender, pod *corev1.Pod, names []string) *extenderv1.ExtenderArgs {
	if e.NamesOnly {
		return &extenderv1.ExtenderArgs{Pod: pod, NodeNames: &names}
	}
	list := &corev1.NodeList{}
	for _, name := range names {
		if node := m.node(name); node != nil {
			list.Items = append(list.Items, *node)
		}
	}
	return &extenderv1.ExtenderArgs{Pod: pod, Nodes: list}
}

// filter asks the extender to filter the named nodes. It returns those that passed, and adds the others to rejected.
func (e *extender) filter(
	ctx context.Context, args *extenderv1.ExtenderArgs, named []string, rejected map[string]string,
) (passed []string, err error) {
	var r extenderv1.ExtenderFilterResult
	if err := e.send(ctx, e.Filter, args, &r); err != nil {
		return nil, err
	}
	if r.Error != "" {
		return nil, errors.New(truncate(r.Error, messageMax))
	}
	asked := map[string]bool{}
	for _, name := range named {
		asked[name] = true
	}
	answered := []string{}
	switch {
	case e.NamesOnly && r.NodeNames != nil:
		answered = *r.NodeNames
	case r.Nodes != nil:
		for i := range r.Nodes.Items {
			answered = append(answered, r.Nodes.Items[i].Name)
		}
	}
	for _, name := range answered {
		if !asked[name] {
			return nil, fmt.Errorf("answer names node %.200q, which was not in the request or is named twice", name)
		}
		delete(asked, name)
	}
	e.explain(&r, asked, rejected)
	return answered, nil
}

// explain records why nodes were rejected.
func (e *extender) explain(r *extenderv1.ExtenderFilterResult, nodes map[string]bool, rejected map[string]string) {
	reasons := map[string]bool{}
	for _, name := range slices.Sorted(maps.Keys(nodes)) {
		why := truncate(cmp.Or(r.FailedAndUnresolvableNodes[name], r.FailedNodes[name]), reasonMax)
		if why == "" || !reasons[why] && len(reasons) == reasonsMax {
			why = "node(s) were rejected by extender " + e.URL
		} else {
			reasons[why] = true
		}
		rejected[name] = why
	}
}

// binder returns the extender that binds a pod instead of the API server; nil: there is none.
func (m *loop) binder(p corescheduler.Pod) *extender {
	for _, e := range m.extenders {
		if e.Bind != "" && e.concerns(p) {
			return e
		}
	}
	return nil
}

// bind makes the extender bind the pod. Without an answer, the outcome is not known.
func (e *extender) bind(ctx context.Context, d corescheduler.Decision) (corescheduler.Outcome, error) {
	var r extenderv1.ExtenderBindingResult
	err := e.send(ctx, e.Bind, &extenderv1.ExtenderBindingArgs{
		PodName: d.Pod.Name, PodNamespace: d.Pod.Namespace, PodUID: types.UID(d.Pod.ID), Node: d.Node,
	}, &r)
	switch {
	case err == nil && r.Error == "":
		return corescheduler.BindDone, nil
	case err == nil:
		return corescheduler.BindRefused, fmt.Errorf("extender %s: %s", e.URL, truncate(r.Error, messageMax))
	case errors.Is(err, errExtenderStatus):
		return corescheduler.BindRefused, fmt.Errorf("extender %s: %w", e.URL, err)
	}
	return corescheduler.BindLost, fmt.Errorf("extender %s: %w", e.URL, err)
}

// pod implements api.
func (r remote) pod(ctx context.Context, namespace, name string) (*corev1.Pod, error) {
	out := &corev1.Pod{}
	return out, r.client.Get(ctx, kube.Pods, namespace, name, out)
}
