package scheduler

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	extenderv1 "k8s.io/kube-scheduler/extender/v1"

	"github.com/plimsoll-dev/plimsoll/internal/core/placement"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
	"github.com/plimsoll-dev/plimsoll/internal/kube"
	"github.com/plimsoll-dev/plimsoll/internal/kube/schedulerconfig"
)

const (
	// askers is for how many pods extenders are asked at once. Chosen: as many as upstream's helpers (parallelism);
	// upstream itself asks for one pod at a time.
	askers = 16
	// answerBytesMax bounds an extender's answer. Chosen: 5,000 whole nodes of 10 KiB.
	answerBytesMax = 64 << 20
	// extenderScale turns an extender's score, up to 10, into the scale of nodes' scores, up to 100 (upstream's
	// MaxNodeScore over MaxExtenderPriority).
	extenderScale = 100 / extenderv1.MaxExtenderPriority
)

// extender is a program outside that is asked over HTTP, in upstream's words (k8s.io/kube-scheduler/extender/v1).
type extender struct {
	schedulerconfig.Extender
	client *http.Client
}

// newExtenders prepares connections; it does not dial.
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

// concerns reports whether the extender is asked about a pod.
func (e *extender) concerns(p placement.Pod) bool {
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

// send asks, and reads the answer.
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
	return json.NewDecoder(io.LimitReader(resp.Body, answerBytesMax)).Decode(answer)
}

// errExtenderStatus is an answer that is none: what was asked for has not happened.
var errExtenderStatus = errors.New("status")

// asksOthers reports whether extenders are asked about nodes for a pod.
func (m *mind) asksOthers(p placement.Pod) bool {
	for _, e := range m.extenders {
		if (e.Filter != "" || e.Prioritize != "") && e.concerns(p) {
			return true
		}
	}
	return false
}

// question is a pod about which extenders are asked, and the nodes on which it fits.
type question struct {
	pod   placement.Pod
	nodes []string
}

// askExtenders asks, one after the other, beside the mind, and tells it what they said.
func (m *mind) askExtenders(ctx context.Context, q question) {
	opinion, err := m.opinions(ctx, q)
	m.tell(ctx, func(now unit.Instant) {
		if err == nil {
			m.placer.Heard(now, q.pod.ID, opinion)
			return
		}
		slog.Warn("extender failed", "pod", q.pod.Namespace+"/"+q.pod.Name, "err", err)
		m.o.Metrics.attempt(resultError, q.pod.Profile, 0)
		m.placer.HeardNothing(now, q.pod.ID)
		if pod := m.lookUp(q.pod); pod != nil && pod.Spec.NodeName == "" {
			m.unplaced(q.pod, corev1.PodReasonSchedulerError, err.Error(), "")
		}
	})
}

// opinions asks each extender that the pod concerns: first what it rejects of what those before left, then what it
// prefers of the rest.
func (m *mind) opinions(ctx context.Context, q question) (o placement.Opinion, err error) {
	pod, err := m.api.pod(ctx, q.pod.Namespace, q.pod.Name)
	if err != nil {
		return o, fmt.Errorf("ask extenders: %w", err)
	}
	if pod.UID != types.UID(q.pod.ID) {
		return o, errors.New("ask extenders: the pod is another by now")
	}
	left := q.nodes
	o = placement.Opinion{Nodes: map[string]int64{}, Rejected: map[string]string{}}
	for _, e := range m.extenders {
		if e.Filter == "" || !e.concerns(q.pod) || len(left) == 0 {
			continue
		}
		passed, err := e.filter(ctx, m.about(e, pod, left), left, o.Rejected)
		switch {
		case err == nil:
			left = passed
		case e.Ignorable && ctx.Err() == nil:
			slog.Warn("extender failed, and is ignored", "extender", e.URL, "pod", q.pod.Namespace+"/"+q.pod.Name, "err", err)
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
		if err := e.send(ctx, e.Prioritize, m.about(e, pod, left), &scores); err != nil { // as upstream, which goes on without
			slog.Warn("extender failed to prioritize", "extender", e.URL, "pod", q.pod.Namespace+"/"+q.pod.Name, "err", err)
			continue
		}
		for _, s := range scores {
			if _, asked := o.Nodes[s.Host]; asked {
				o.Nodes[s.Host] += min(max(s.Score, extenderv1.MinExtenderPriority), extenderv1.MaxExtenderPriority) * e.Weight * extenderScale
			}
		}
	}
	return o, nil
}

// about is what an extender is told: names, or whole nodes.
func (m *mind) about(e *extender, pod *corev1.Pod, names []string) *extenderv1.ExtenderArgs {
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

// filter asks what it rejects of those named, and returns the others.
func (e *extender) filter(ctx context.Context, args *extenderv1.ExtenderArgs, named []string, rejected map[string]string) (passed []string, err error) {
	var r extenderv1.ExtenderFilterResult
	if err := e.send(ctx, e.Filter, args, &r); err != nil {
		return nil, err
	}
	if r.Error != "" {
		return nil, errors.New(r.Error)
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
			return nil, fmt.Errorf("it names node %.200q, about which it was not asked, or twice", name)
		}
		delete(asked, name)
	}
	for name := range asked {
		why := r.FailedAndUnresolvableNodes[name]
		if why == "" {
			why = r.FailedNodes[name]
		}
		if why == "" {
			why = "node(s) were rejected by extender " + e.URL
		}
		rejected[name] = why
	}
	return answered, nil
}

// binder is the extender that binds a pod in place of the API server's own resource; nil: none does.
func (m *mind) binder(p placement.Pod) *extender {
	for _, e := range m.extenders {
		if e.Bind != "" && e.concerns(p) {
			return e
		}
	}
	return nil
}

// bind lets the extender bind. Without an answer it may have happened.
func (e *extender) bind(ctx context.Context, d placement.Decision) (placement.Outcome, error) {
	var r extenderv1.ExtenderBindingResult
	err := e.send(ctx, e.Bind, &extenderv1.ExtenderBindingArgs{
		PodName: d.Pod.Name, PodNamespace: d.Pod.Namespace, PodUID: types.UID(d.Pod.ID), Node: d.Node,
	}, &r)
	switch {
	case err == nil && r.Error == "":
		return placement.BindDone, nil
	case err == nil:
		return placement.BindRefused, fmt.Errorf("extender %s: %s", e.URL, r.Error)
	case errors.Is(err, errExtenderStatus):
		return placement.BindRefused, fmt.Errorf("extender %s: %w", e.URL, err)
	}
	return placement.BindLost, fmt.Errorf("extender %s: %w", e.URL, err)
}

// pod is part of api.
func (r remote) pod(ctx context.Context, namespace, name string) (*corev1.Pod, error) {
	out := &corev1.Pod{}
	return out, r.client.Get(ctx, kube.Pods, namespace, name, out)
}
