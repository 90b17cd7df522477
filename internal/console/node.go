package console

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	kubeletconfigv1beta1 "k8s.io/kubelet/config/v1beta1"
	statsapi "k8s.io/kubelet/pkg/apis/stats/v1alpha1"

	"github.com/plimsoll-dev/plimsoll/internal/console/view"
	"github.com/plimsoll-dev/plimsoll/internal/explain"
	"github.com/plimsoll-dev/plimsoll/internal/journal"
	"github.com/plimsoll-dev/plimsoll/internal/kube/kubeletconfig"
	"github.com/plimsoll-dev/plimsoll/internal/kube/topology"
	"github.com/plimsoll-dev/plimsoll/internal/whatif"
)

// NodeView is what a page gets about the node that it shows. What is nil has not changed.
type NodeView struct {
	Name string `json:"name"`
	// Whole says that this is the first message about the node: what the page has of it is of another one.
	Whole bool          `json:"whole,omitempty"`
	Gone  bool          `json:"gone,omitempty"` // the API has no such node
	About *explain.Node `json:"about,omitempty"`
	Pods  []view.Pod    `json:"pods,omitempty"` // all of them, if there is a change
	Map   *view.Map     `json:"map,omitempty"`
	NoMap string        `json:"noMap,omitempty"` // why there is no map
	// Samples are those since the last message.
	Samples    []view.Sample    `json:"samples,omitempty"`
	Thresholds []view.Threshold `json:"thresholds,omitempty"`
	Marks      []view.Mark      `json:"marks,omitempty"`
	Problem    string           `json:"problem,omitempty"` // why there are no samples
}

// watched is a node whose agent is asked, because somebody looks at the node, or did a while ago.
type watched struct {
	name   string
	looked time.Time // when somebody looked last

	// guarded by hub.mu
	changed    uint64 // the version of the last change of the node, its pods or its report
	about      at[*explain.Node]
	marks      []view.Mark
	thresholds at[[]view.Threshold]
	samples    []at[view.Sample]
	problem    at[string]
}

// How often agents are asked, and for how long after the last look. Chosen: a sample each five seconds shows a leak
// that takes a minute; an answer of that kind costs an agent some milliseconds. Whoever comes back within minutes sees
// the time between.
const (
	sampleTime = 5 * time.Second
	aboutTime  = 15 * time.Second // the journal, and what is not watched
	leastTime  = time.Second      // between two questions about a node that changes all the time
	forgetTime = 10 * time.Minute
	samplesMax = 720 // an hour
	agentTime  = 4 * time.Second
)

// watch begins to ask about a node. h.mu is locked.
func (h *hub) watch(name string) {
	if w := h.watched[name]; w != nil {
		w.looked = h.now()
		return
	}
	w := &watched{name: name, looked: h.now()}
	h.watched[name] = w
	go h.ask(w)
}

// ask asks about a node until nobody has looked at it for a while.
func (h *hub) ask(w *watched) {
	var sampled, asked time.Time
	for {
		h.mu.Lock()
		for s := range h.streams {
			if s.looks.Node == w.name {
				w.looked = h.now()
			}
		}
		if h.now().Sub(w.looked) > forgetTime {
			delete(h.watched, w.name)
			h.mu.Unlock()
			return
		}
		changed := w.changed > w.about.version
		h.mu.Unlock()
		if now := h.now(); now.Sub(asked) >= aboutTime || changed && now.Sub(asked) >= leastTime {
			asked = now
			h.askAbout(w)
		}
		if now := h.now(); now.Sub(sampled) >= sampleTime {
			sampled = now
			h.sample(w)
		}
		if !sleep(h.ctx, leastTime/4) {
			return
		}
	}
}

// askAbout asks what the node carries, and its agent for the journal.
func (h *hub) askAbout(w *watched) {
	about, err := h.asker.Node(h.ctx, w.name)
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.version++; err != nil {
		about = nil
	} else {
		w.marks = view.Marks(about.Records)
		about.Records = []journal.Record{} // the page gets the marks
	}
	w.about = at[*explain.Node]{version: h.version, value: about}
	h.wake()
}

// sample asks the agent for the node's memory and, the first time, for its thresholds.
func (h *hub) sample(w *watched) {
	room, known := h.live.Room(w.name)
	if !known {
		return
	}
	ctx, cancel := context.WithTimeout(h.ctx, agentTime)
	defer cancel()
	summary, err := h.summary(ctx, room.Node, false)
	var one view.Sample
	if err == nil {
		if one, known = view.SampleOf(summary); !known {
			err = fmt.Errorf("the summary of node %s has no memory", w.name)
		}
	}
	var config *kubeletconfigv1beta1.KubeletConfiguration
	if err == nil && w.thresholds.value == nil { // only this goroutine changes it
		config, err = h.configOf(ctx, room.Node)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.version++
	if text := problemText(err); text != w.problem.value {
		w.problem = at[string]{version: h.version, value: text}
	}
	if config != nil {
		if c, err := kubeletconfig.Eviction(config); err == nil {
			w.thresholds = at[[]view.Threshold]{version: h.version, value: view.Thresholds(c, one.Capacity)}
		}
	}
	if n := len(w.samples); one.Capacity > 0 && (n == 0 || one.At.After(w.samples[n-1].value.At)) {
		w.samples = append(w.samples, at[view.Sample]{version: h.version, value: one})
		w.samples = w.samples[max(0, len(w.samples)-samplesMax):]
	}
	h.wake()
}

func problemText(err error) string {
	if err == nil {
		return ""
	}
	text := err.Error()
	if strings.Contains(text, "forbidden") {
		text += " (get on nodes/proxy is necessary; it also allows to run commands in every container of the node)"
	}
	return text
}

// summary asks a node's agent for what the node uses; without whole, only cpu and memory.
func (h *hub) summary(ctx context.Context, node *corev1.Node, whole bool) (*statsapi.Summary, error) {
	parameters := url.Values{}
	if !whole {
		parameters.Set("only_cpu_and_memory", "true")
	}
	body, err := explain.FromAgent(ctx, h.asker.Client, node, summaryPath, parameters)
	if err != nil {
		return nil, fmt.Errorf("ask node %s what it uses: %w", node.Name, err)
	}
	return whatif.ParseSummary(body)
}

// configOf asks a node's agent for its configuration. Only what decides about allocatable and evictions is used, with
// upstream's defaults for what is not there: an agent or a kubelet of another release may have fields that nobody here
// knows.
func (h *hub) configOf(ctx context.Context, node *corev1.Node) (*kubeletconfigv1beta1.KubeletConfiguration, error) {
	body, err := explain.FromAgent(ctx, h.asker.Client, node, configPath, nil)
	if err != nil {
		return nil, fmt.Errorf("ask node %s for its configuration: %w", node.Name, err)
	}
	c, err := configIn(body)
	if err != nil {
		return nil, fmt.Errorf("ask node %s for its configuration: %w", node.Name, err)
	}
	return c, nil
}

// usedFields are the fields of a KubeletConfiguration that questions about a node depend on.
var usedFields = []string{"evictionHard", "evictionSoft", "evictionSoftGracePeriod", "evictionMinimumReclaim",
	"evictionMaxPodGracePeriod", "evictionPressureTransitionPeriod", "mergeDefaultEvictionSettings", "systemReserved",
	"kubeReserved", "reservedSystemCPUs", "maxPods", "podsPerCore", "localStorageCapacityIsolation"}

// configIn reads the answer of /configz.
func configIn(body []byte) (*kubeletconfigv1beta1.KubeletConfiguration, error) {
	var answer struct {
		Config map[string]json.RawMessage `json:"kubeletconfig"`
	}
	if err := json.Unmarshal(body, &answer); err != nil {
		return nil, err
	}
	if answer.Config == nil {
		return nil, errors.New("want a kubeletconfig")
	}
	used := map[string]any{"apiVersion": kubeletconfigv1beta1.SchemeGroupVersion.String(), "kind": "KubeletConfiguration"}
	for _, field := range usedFields {
		if value, has := answer.Config[field]; has && string(value) != "null" {
			used[field] = value
		}
	}
	text, err := json.Marshal(used)
	if err != nil {
		return nil, err
	}
	c, _, err := kubeletconfig.Parse(text, "/")
	return c, err
}

// nodeView returns what has changed about a node since a version; asked is when the page began to show it.
func (h *hub) nodeView(name string, sent, asked uint64) *NodeView {
	h.mu.Lock()
	w := h.watched[name]
	if w == nil {
		h.watch(name)
		w = h.watched[name]
	}
	if asked > sent {
		sent = 0
	}
	out := &NodeView{Name: name, Whole: sent == 0}
	news := out.Whole
	if w.about.version > sent {
		out.About, news = w.about.value, true
		out.Gone = w.about.value == nil
		out.Marks = w.marks
	}
	if w.thresholds.version > sent {
		out.Thresholds, news = w.thresholds.value, true
	}
	if w.problem.version > sent {
		news = true
	}
	out.Problem = w.problem.value
	for _, s := range w.samples {
		if s.version > sent {
			out.Samples, news = append(out.Samples, s.value), true
		}
	}
	changed := w.changed > sent || out.Whole
	h.mu.Unlock()
	if changed {
		news = true
		pods := h.live.PodsOn(name)
		out.Pods = view.PodsOf(pods)
		out.Map, out.NoMap = h.mapOf(name, pods)
	}
	if !news {
		return nil
	}
	return out
}

// mapOf returns the map of a node, or why there is none.
func (h *hub) mapOf(name string, pods []*explain.LivePod) (*view.Map, string) {
	report := h.live.Report(name)
	if report == nil {
		return nil, "No report about its NUMA nodes: plimsoll's agent publishes one (NodeResourceTopology)."
	}
	machine, err := topology.MachineOf(report)
	if err != nil {
		return nil, err.Error()
	}
	node, err := topology.Decode(report, nil)
	if err != nil {
		return nil, err.Error()
	}
	names := map[string]string{}
	for _, p := range pods {
		names[string(p.UID)] = p.Namespace + "/" + p.Name
	}
	m := view.MapOf(machine, node.State, func(uid string) string { return names[uid] })
	return &m, ""
}

// PodView is what a page gets about the pod that it shows.
type PodView struct {
	Name  string       `json:"name"`
	About *explain.Pod `json:"about,omitempty"`
	Error string       `json:"error,omitempty"`
}

// podView tells a pod's story.
func (h *hub) podView(ctx context.Context, name string) *PodView {
	out := &PodView{Name: name}
	namespace, pod, _ := strings.Cut(name, "/")
	about, err := h.asker.Pod(ctx, namespace, pod, "")
	if err != nil {
		out.Error = err.Error()
		return out
	}
	about.Records = []journal.Record{} // their texts are in the story
	out.About = about
	return out
}
