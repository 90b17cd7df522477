package whatif

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	"k8s.io/apimachinery/pkg/runtime"
	kubeletconfigv1beta1 "k8s.io/kubelet/config/v1beta1"
	statsapi "k8s.io/kubelet/pkg/apis/stats/v1alpha1"

	"github.com/plimsoll-dev/plimsoll/internal/core/allocatable"
	"github.com/plimsoll-dev/plimsoll/internal/core/eviction"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
	"github.com/plimsoll-dev/plimsoll/internal/kube/kubeletconfig"
	"github.com/plimsoll-dev/plimsoll/internal/kube/manifests"
	"github.com/plimsoll-dev/plimsoll/internal/kube/translate"
)

// Shedding is what a node would remove and evict at some usage.
type Shedding struct {
	Signals       []Signal       `json:"signals"` // the signals in the Summary
	ThresholdsMet []ThresholdMet `json:"thresholdsMet"`
	Conditions    []string       `json:"conditions"`
	Removals      []Removal      `json:"removals"` // what is removed before a pod is evicted
	Ranking       []RankedPod    `json:"ranking"`  // for the first threshold that is met, or else for memory
	Victims       []string       `json:"victims"`
	Evictions     []Evicted      `json:"evictions"` // the victims again, with details
	Warnings      []string       `json:"warnings"`

	rankedFor allocatable.Signal
}

// Signal is how much of a resource a node has available.
type Signal struct {
	Signal    string `json:"signal"`
	Available string `json:"available"`
	Capacity  string `json:"capacity"`
}

// ThresholdMet is a threshold that is met.
type ThresholdMet struct {
	Signal   string `json:"signal"`
	Operator string `json:"operator"`
	Value    string `json:"value"`
	Hard     bool   `json:"hard"`
	Grace    string `json:"gracePeriod,omitempty"`    // of a soft threshold: how long it must be met
	Reclaim  string `json:"minimumReclaim,omitempty"` // how much is reclaimed beyond the value
	Acts     bool   `json:"acts"`                     // it is hard, or its grace period is over
}

// Removal is something that a node removes before it evicts pods.
type Removal struct {
	What  eviction.Step `json:"what"`
	For   string        `json:"signal"`
	Until string        `json:"until"` // the amount that must be available
}

// RankedPod is a pod in the order of eviction.
type RankedPod struct {
	Pod      string `json:"pod"`
	Usage    string `json:"usage"`
	Request  string `json:"request"`
	Priority int32  `json:"priority"`
	Reason   string `json:"reason"`
}

// Evicted is how a victim is evicted.
type Evicted struct {
	Pod     string `json:"pod"`
	Cause   string `json:"cause"`
	Grace   string `json:"gracePeriod"`
	Message string `json:"message"`
}

// Usage is the usage of a node.
type Usage struct {
	Summary *statsapi.Summary
	For     time.Duration // how long the usage has lasted; negative: long enough for every soft threshold
	Memory  eviction.MemorySignal
}

// LoadSummary reads a Summary, in the form in which the kubelet serves it under /stats/summary.
func LoadSummary(path string) (*statsapi.Summary, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read summary: %w", err)
	}
	s, err := ParseSummary(data)
	if err != nil {
		return nil, fmt.Errorf("read summary: %s: %w", path, err)
	}
	return s, nil
}

// ParseSummary reads a Summary from JSON.
func ParseSummary(data []byte) (*statsapi.Summary, error) {
	s := &statsapi.Summary{}
	if err := json.Unmarshal(data, s); err != nil {
		return nil, fmt.Errorf("want the JSON that a kubelet serves under /stats/summary: %w", err)
	}
	if s.Node.Memory == nil && s.Node.Fs == nil && len(s.Pods) == 0 {
		return nil,
			errors.New("want the JSON that a kubelet serves under /stats/summary: there is neither node.memory nor node.fs " +
				"nor a pod in it")
	}
	return s, nil
}

// Evict returns what a node with a configuration would remove and evict at the usage in a Summary. A Summary does not
// have unused images and containers. So Evict assumes that removing them frees nothing: at most these pods are evicted.
func Evict(c *kubeletconfigv1beta1.KubeletConfiguration, u Usage, objects []runtime.Object) (*Shedding, error) {
	config, err := kubeletconfig.Eviction(c)
	if err != nil {
		return nil, err
	}
	config.Memory = u.Memory
	pods, skipped, err := podsWithPriority(objects)
	if err != nil {
		return nil, err
	}
	out := &Shedding{
		Signals: []Signal{}, ThresholdsMet: []ThresholdMet{}, Conditions: []string{}, Removals: []Removal{},
		Ranking: []RankedPod{}, Victims: []string{},
		Evictions: []Evicted{}, Warnings: append([]string{}, skipped...),
	}
	facts := eviction.Facts{Signals: summarySignals(u), Disks: disksOf(u.Summary), Pods: out.match(u.Summary, pods)}
	for _, t := range config.Thresholds {
		// users do not configure that threshold
		if _, known := facts.Signals[t.Signal]; !known && t.Signal != allocatable.AllocatableMemory {
			out.warn("%s: has a threshold, but the summary does not have the available amount: the threshold is ignored",
				t.Signal)
		}
	}
	last := out.play(config, u.For, facts)
	out.setSignals(facts, last)
	out.rank(config, facts, last)
	return out, nil
}

// podsWithPriority returns the pods among manifests, with the priorities of their classes.
func podsWithPriority(objects []runtime.Object) (pods []*corev1.Pod, skipped []string, err error) {
	classes := map[string]*schedulingv1.PriorityClass{}
	for _, o := range objects {
		switch o := o.(type) {
		case *schedulingv1.PriorityClass:
			classes[o.Name] = o
		case *corev1.Pod:
			pods = append(pods, o.DeepCopy())
		default:
			skipped = append(skipped, o.GetObjectKind().GroupVersionKind().Kind+
				": is neither a pod nor a priority class: left out")
		}
	}
	var problems []error
	for _, pod := range pods {
		pod.Namespace = orElse(pod.Namespace, corev1.NamespaceDefault)
		if err := prioritize(pod, classes); err != nil {
			problems = append(problems, fmt.Errorf("pod %s/%s: %w", pod.Namespace, pod.Name, err))
		}
	}
	return pods, skipped, errors.Join(problems...)
}

func (e *Shedding) warn(format string, args ...any) {
	e.Warnings = append(e.Warnings, fmt.Sprintf(format, args...))
}

// play runs the node's checks for as long as the usage has lasted, and until nothing is left to be removed.
func (e *Shedding) play(config eviction.Config, held time.Duration, facts eviction.Facts) eviction.Decision {
	longest := time.Duration(0)
	for _, t := range config.Thresholds {
		longest = max(longest, t.Grace)
	}
	if held < 0 {
		held = longest
	}
	d, now := eviction.New(config), unit.Instant(1)
	before := facts
	before.Quick, before.Pods = true, nil
	d.Step(now, before)
	now = now.Add(held)
	facts.Done = map[eviction.Step]unit.Instant{}
	var first eviction.Decision
	for round := 0; ; round++ {
		decision := d.Step(now, facts)
		if first.Ranking == nil {
			first = decision
		}
		for _, v := range decision.Victims {
			e.Victims = append(e.Victims, v.Namespace+"/"+v.Name)
			e.Evictions = append(e.Evictions, Evicted{
				Pod: v.Namespace + "/" + v.Name, Cause: string(v.Cause), Grace: v.Grace.String(), Message: v.Message,
			})
		}
		for _, r := range decision.Reclaim {
			facts.Done[r.Step] = now
			if r.Step == eviction.PodDisks {
				continue // the Summary contains disk usage
			}
			e.Removals = append(e.Removals, Removal{r.Step, string(r.Signal), signalQuantity(r.Signal, r.Until)})
		}
		if len(decision.Reclaim) == 0 {
			return first
		}
		now++
	}
}

// setSignals sets the signals, thresholds and conditions of the result.
func (e *Shedding) setSignals(facts eviction.Facts, d eviction.Decision) {
	for _, signal := range allocatable.Signals() {
		if o, ok := facts.Signals[signal]; ok {
			e.Signals = append(e.Signals, Signal{string(signal), signalQuantity(signal, o.Available), signalQuantity(signal,
				o.Capacity)})
		}
	}
	for _, m := range d.Met {
		one := ThresholdMet{Signal: string(m.Signal), Operator: "LessThan", Value: m.Text, Hard: m.IsHard(), Acts: m.Acts}
		if m.Text == "" {
			one.Value = signalQuantity(m.Signal, m.Amount)
		}
		if !m.IsHard() {
			one.Grace = m.Grace.String()
		}
		if reclaim := m.Reclaim.Of(m.Capacity); reclaim > 0 {
			one.Reclaim = signalQuantity(m.Signal, reclaim)
		}
		e.ThresholdsMet = append(e.ThresholdsMet, one)
	}
	for _, c := range d.Conditions {
		e.Conditions = append(e.Conditions, string(c))
	}
}

// rank sets the order of pods: for the first resource that is short, or else for memory.
func (e *Shedding) rank(config eviction.Config, facts eviction.Facts, d eviction.Decision) {
	e.rankedFor = allocatable.MemoryAvailable
	if len(d.Met) > 0 {
		e.rankedFor = d.Met[0].Signal
	}
	for _, r := range eviction.Rank(e.rankedFor, facts.Pods, config.Memory, facts.Disks) {
		e.Ranking = append(e.Ranking, RankedPod{
			Pod: r.Namespace + "/" + r.Name, Usage: signalQuantity(e.rankedFor, r.Usage), Request: signalQuantity(e.rankedFor,
				r.Request),
			Priority: r.Priority, Reason: r.Reason(),
		})
	}
}

// match joins pods and their statistics, by UID if both have one, otherwise by name.
func (e *Shedding) match(s *statsapi.Summary, pods []*corev1.Pod) []eviction.Pod {
	var out []eviction.Pod
	taken := map[int]bool{}
	for i, pod := range pods {
		if pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed {
			continue // it no longer runs
		}
		manifests.DefaultPod(pod)
		one := translate.EvictionPod(pod)
		at := slices.IndexFunc(s.Pods, func(p statsapi.PodStats) bool {
			if p.PodRef.UID != "" && pod.UID != "" {
				return p.PodRef.UID == string(pod.UID)
			}
			return p.PodRef.Namespace == pod.Namespace && p.PodRef.Name == pod.Name
		})
		if at >= 0 {
			taken[at] = true
			translate.EvictionUsage(&one, &s.Pods[at])
		}
		one.ID = fmt.Sprintf("%06d", i)
		out = append(out, one)
	}
	for i := range s.Pods {
		if ref := s.Pods[i].PodRef; !taken[i] {
			e.warn("%s/%s: is in the summary but in no manifest: left out", ref.Namespace, ref.Name)
		}
	}
	return out
}

// summarySignals reads the node's signals. A Summary contains less about memory than an agent gets from the kernel: for
// SignalAvailable, all memory that is not resident counts as droppable.
func summarySignals(u Usage) map[allocatable.Signal]eviction.Observation {
	out := translate.EvictionSignals(u.Summary)
	if u.Memory != eviction.SignalAvailable {
		return out
	}
	add := func(signal allocatable.Signal, m *statsapi.MemoryStats) {
		o, ok := out[signal]
		if ok && m.RSSBytes != nil {
			o.Available = max(o.Available, o.Capacity-int64(*m.RSSBytes))
			out[signal] = o
		}
	}
	if m := u.Summary.Node.Memory; m != nil {
		add(allocatable.MemoryAvailable, m)
	}
	for _, c := range u.Summary.Node.SystemContainers {
		if c.Name == statsapi.SystemContainerPods && c.Memory != nil {
			add(allocatable.AllocatableMemory, c.Memory)
		}
	}
	return out
}

// disksOf returns which file systems a node has. A Summary does not name them, so file systems of the same size are
// taken for one.
func disksOf(s *statsapi.Summary) eviction.Disks {
	if s.Node.Runtime == nil || s.Node.Fs == nil || isSame(s.Node.Fs, s.Node.Runtime.ImageFs) {
		return eviction.OneDisk
	}
	if containers := s.Node.Runtime.ContainerFs; containers != nil && isSame(s.Node.Fs, containers) {
		return eviction.SplitDisk
	}
	return eviction.ImageDisk
}

func isSame(a, b *statsapi.FsStats) bool {
	equal := func(x, y *uint64) bool { return x == nil || y == nil || *x == *y }
	return b == nil || equal(a.CapacityBytes, b.CapacityBytes) && equal(a.Inodes, b.Inodes)
}

// signalQuantity prints an amount of a signal in Kubernetes' canonical form.
func signalQuantity(s allocatable.Signal, n int64) string {
	q := translate.CountQuantity(n)
	if eviction.InBytes(s) {
		q = translate.BytesQuantity(unit.Bytes(n))
	}
	return q.String()
}

// Table returns e for people.
func (e *Shedding) Table() []byte {
	t := newTable()
	t.line("SIGNAL", "AVAILABLE", "CAPACITY", "THRESHOLDS MET")
	for _, s := range e.Signals {
		met := ""
		for _, m := range e.ThresholdsMet {
			if m.Signal == s.Signal {
				met += m.String() + " "
			}
		}
		t.line(s.Signal, s.Available, s.Capacity, orElse(met, "-"))
	}
	t.text("")
	if len(e.Conditions) == 0 {
		t.text("Conditions: none.")
	} else {
		t.text(fmt.Sprintf("Conditions: %v.", e.Conditions))
	}
	for _, r := range e.Removals {
		t.text(fmt.Sprintf("Before a pod is evicted: %s, until %s is %s.", r.What, r.For, r.Until))
	}
	t.text("", fmt.Sprintf("Pods in the order of eviction for %s:", e.rankedFor))
	t.line("POD", "USAGE", "REQUEST", "PRIORITY", "REASON", "EVICTED")
	for _, r := range e.Ranking {
		evicted := "-"
		if i := slices.IndexFunc(e.Evictions, func(v Evicted) bool { return v.Pod == r.Pod }); i >= 0 {
			evicted = fmt.Sprintf("%s, grace %s", e.Evictions[i].Cause, e.Evictions[i].Grace)
		}
		t.line(r.Pod, r.Usage, r.Request, strconv.Itoa(int(r.Priority)), r.Reason, evicted)
	}
	t.text("")
	for _, v := range e.Evictions {
		t.text(v.Pod + ": " + v.Message)
	}
	for _, w := range e.Warnings {
		t.text("warning: " + w)
	}
	return t.bytes()
}

// String returns a threshold in the form of a configuration: <100Mi.
func (m ThresholdMet) String() string {
	switch {
	case m.Hard:
		return "<" + m.Value + " (hard)"
	case m.Acts:
		return "<" + m.Value + " (soft, for " + m.Grace + ")"
	}
	return "<" + m.Value + " (soft, not yet for " + m.Grace + ")"
}
