package main

import (
	"context"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"github.com/plimsoll-dev/plimsoll/bench/record"
)

// published returns all of upstream's workloads.
func published(t *testing.T) []*testCase {
	t.Helper()
	dir, err := findWorkloads()
	if err != nil {
		t.Fatal(err)
	}
	cases, err := load(dir)
	if err != nil {
		t.Fatal(err)
	}
	return cases
}

// TestPublished checks every file of the published module: it can be parsed; the operations of the workloads that would
// be run have their templates, and these give objects that we can write; every other workload has a reason.
func TestPublished(t *testing.T) {
	cases := published(t)
	play, out, err := choose(cases, choice{})
	if err != nil {
		t.Fatal(err)
	}
	all := 0
	for _, c := range cases {
		all += len(c.Workloads)
	}
	if all < 200 || len(play)+len(out) != all {
		t.Errorf("%d workloads, of which %d are played and %d not", all, len(play), len(out))
	}
	for _, l := range out {
		if l.reason == "" {
			t.Errorf("%s is left out for no reason", l.title)
		}
	}
	var files templates
	for _, w := range play {
		if strings.Contains(w.of.dir, "/dra") {
			t.Errorf("%s of %s would be played", w.title(), w.of.dir)
		}
		p := &player{workload: w, scale: 1}
		steps, err := p.unroll()
		if err != nil {
			t.Error(err)
		}
		measured := 0
		for _, s := range steps {
			measured += try(t, p, &files, s)
		}
		if measured != 1 {
			t.Errorf("%s: %d measurements, want one", w.title(), measured)
		}
	}
}

// try creates the last object of an operation, and returns how many measurements the operation ends.
func try(t *testing.T, p *player, files *templates, s step) (measured int) {
	t.Helper()
	make := func(path string, n int, out any) {
		t.Helper()
		if path == "" {
			return
		}
		if err := files.make(p.of.path(path), n-1, n, out); err != nil {
			t.Errorf("%s: %v", p.title(), err)
		}
	}
	any := func(path string, n int) {
		t.Helper()
		u := &unstructured.Unstructured{}
		make(path, n, u)
		if _, ok := kinds[u.GroupVersionKind()]; !ok {
			t.Errorf("%s: %s: objects of kind %s are not known", p.title(), path, u.GroupVersionKind())
		}
	}
	number := func(n int, param string) int {
		t.Helper()
		n, err := p.counted(n, param)
		if err != nil {
			t.Error(err)
		}
		return n
	}
	switch s := s.(type) {
	case *createNodes:
		make(s.NodeTemplatePath, number(s.Count, s.CountParam), &corev1.Node{})
	case *createNamespaces:
		make(s.NamespaceTemplatePath, number(s.Count, s.CountParam), &corev1.Namespace{})
	case *createPods:
		n := number(s.Count, s.CountParam)
		make(orElse(s.PodTemplatePath, p.of.DefaultPodTemplatePath), n, &corev1.Pod{})
		make(s.PersistentVolumeTemplatePath, n, &corev1.PersistentVolume{})
		make(s.PersistentVolumeClaimTemplatePath, n, &corev1.PersistentVolumeClaim{})
		if s.CollectMetrics {
			return 1
		}
	case *churn:
		for _, path := range s.TemplatePaths {
			any(path, 1)
		}
	case *createAny:
		any(s.TemplatePath, 1)
	case *updateAny:
		any(s.TemplatePath, number(0, s.CountParam))
	case *stopCollecting:
		return 1
	case *deletePods, *barrier, *sleep, *startCollecting:
	default:
		t.Errorf("%s: operation %T cannot be played", p.title(), s)
	}
	return 0
}

// TestChoose checks the default: workloads with upstream's labels, one of each that differ only in feature gates.
func TestChoose(t *testing.T) {
	cases := published(t)
	play, out, err := choose(cases, choice{labels: []string{"performance", "short"}})
	if err != nil {
		t.Fatal(err)
	}
	var titles []string
	for _, w := range play {
		titles = append(titles, w.title())
	}
	for _, want := range []string{"PreemptionBasic/1000Nodes", "TopologySpreading/5000Nodes",
		"EventHandlingPodUpdate/1Node_1000Pods"} {
		if !slices.Contains(titles, want) {
			t.Errorf("%s is not among %q", want, titles)
		}
	}
	same := left{"PreemptionBasic/1000Nodes_QueueingHintsEnabled",
		"differs from PreemptionBasic/1000Nodes in feature gates alone"}
	if !slices.Contains(out, same) {
		t.Errorf("%v is not among %v", same, out)
	}
	play, out, err = choose(cases, choice{only: regexp.MustCompile("^NodeDeclaredFeaturesEnabled/5Nodes")})
	if err != nil || len(play) != 0 || len(out) != 1 || !strings.Contains(out[0].reason, "numNodeDeclaredFeatures") {
		t.Errorf("a parameter that upstream's code reads: %v, %v, %v", play, out, err)
	}
	play, _, err = choose(cases, choice{labels: []string{"-performance"}, only: regexp.MustCompile("^SchedulingBasic/")})
	if err != nil || len(play) == 0 || play[0].has("performance") {
		t.Errorf("without a label: %v, %v", play, err)
	}
}

// TestParseRefuses checks that unknown fields and operations are errors; otherwise a measurement would lack them.
func TestParseRefuses(t *testing.T) {
	for name, text := range map[string]string{
		"opcode":         "- name: a\n  workloadTemplate:\n  - opcode: dance\n",
		"field of an op": "- name: a\n  workloadTemplate:\n  - opcode: createNodes\n    colour: red\n",
		"field":          "- name: a\n  colour: red\n",
		"empty case":     "- null\n",
		"empty workload": "- name: a\n  workloads:\n  - null\n",
	} {
		if _, err := parse([]byte(text)); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

func TestPaced(t *testing.T) {
	play, _, err := choose(published(t), choice{})
	if err != nil {
		t.Fatal(err)
	}
	paced := map[string]bool{}
	for _, w := range play {
		paced[w.of.Name] = w.paced()
	}
	for name, want := range map[string]bool{
		"EventHandlingPodDelete": true, "EventHandlingNodeUpdate": true, "EventHandlingNodeAdd": false,
		"SchedulingBasic": false, "SchedulingWhileGated": false,
	} {
		if got, ok := paced[name]; !ok || got != want {
			t.Errorf("%s: paced %v (there: %v), want %v", name, got, ok, want)
		}
	}
}

func TestTemplate(t *testing.T) {
	file := filepath.Join(t.TempDir(), "node.yaml")
	text := `metadata: {name: "n-{{ Mod .Index 3 }}-{{ DivideInt .Count 4 }}-{{ AddInt .Index 1 2 }}-{{ SubtractFloat 1 0.5 }}-{{ MultiplyInt "2" 3 }}"}`
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	var files templates
	n := corev1.Node{}
	if err := files.make(file, 7, 10, &n); err != nil || n.Name != "n-1-2-10-0.5-6" {
		t.Errorf("%q, %v", n.Name, err)
	}
	for _, bad := range []string{"{{ Mod 1 0 }}", "{{ DivideInt 1 0 }}", `{{ AddInt "x" }}`, "{{ .Colour }}",
		"colour: red"} {
		file := filepath.Join(t.TempDir(), "bad.yaml")
		if err := os.WriteFile(file, []byte(bad), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := files.make(file, 0, 1, &corev1.Node{}); err == nil {
			t.Errorf("%s: no error", bad)
		}
	}
}

func TestDress(t *testing.T) {
	s := &createNodes{LabelNodePrepareStrategy: &nodeLabel{LabelKey: "zone", LabelValues: []string{"a", "b"}}}
	n := baseNode("node-1-")
	if err := s.dress(n, 3); err != nil || !strings.HasPrefix(n.Name, "node-1-") || n.Labels["zone"] != "b" ||
		n.Labels[corev1.LabelHostname] != n.Name {
		t.Errorf("%s, labels %v, %v", n.Name, n.Labels, err)
	}
	s = &createNodes{NodeAllocatableStrategy: &nodeAllocatable{NodeAllocatable: map[string]string{"volumes": "39"}}}
	n = baseNode("x-")
	if err := s.dress(n, 0); err != nil || n.Status.Allocatable.Name("volumes", "").Value() != 39 ||
		n.Status.Allocatable.Pods().Value() != 110 {
		t.Errorf("offers %v, %v", n.Status.Allocatable, err)
	}
	s.NodeAllocatableStrategy.NodeAllocatable["volumes"] = "many"
	if err := s.dress(n, 0); err == nil {
		t.Error("an amount that is none: no error")
	}
}

func TestScaled(t *testing.T) {
	for _, c := range []struct {
		n     int
		scale float64
		want  int
	}{{5000, 0.1, 500}, {480, 0.1, 48}, {5, 0.01, 1}, {0, 0.5, 0}, {7, 1, 7}} {
		if got := scaled(c.n, c.scale); got != c.want {
			t.Errorf("%d at %v: %d, want %d", c.n, c.scale, got, c.want)
		}
	}
}

// TestPods checks that a pod that leaves the watch counts as bound unless we deleted it, and that only measured pods
// count for the rate.
func TestPods(t *testing.T) {
	p := newPods()
	pod := func(namespace, name string, labels map[string]string, tried bool) *podSeen {
		return &podSeen{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: types.UID(namespace + name),
			Labels: labels}, attempted: tried}
	}
	measured := map[string]string{"type": "unsched"}
	all := []*podSeen{pod("a", "1", measured, true), pod("a", "2", nil, false), pod("b", "1", measured, false),
		pod("a", "3", measured, false), pod("a", "4", measured, false)}
	for _, s := range all {
		p.see(s)
	}
	if bound, tried := p.count("a", nil); bound != 0 || tried != 1 {
		t.Errorf("%d bound, %d tried", bound, tried)
	}
	if err := p.start([]string{"a"}, measured); err != nil {
		t.Fatal(err)
	}
	if err := p.start([]string{"b"}, nil); err == nil {
		t.Error("measured twice at once")
	}
	p.end("a", "4")
	for _, s := range all {
		p.gone(s)
	}
	p.gone(pod("c", "never seen", nil, false))
	m, err := p.stop()
	if err != nil || m.bound != 2 || p.boundInAll() != 4 {
		t.Errorf("%d measured, %d bound in all, %v", m.bound, p.boundInAll(), err)
	}
	if bound, _ := p.count("a", measured); bound != 2 {
		t.Errorf("%d bound", bound)
	}
	if _, err := p.stop(); err == nil {
		t.Error("stopped twice")
	}
	m.first, m.last, m.bound = time.Unix(0, 0), time.Unix(2, 0), 101
	if rate, err := m.rate(); err != nil || math.Abs(rate-50) > 1e-9 {
		t.Errorf("%v pods a second, %v", rate, err)
	}
	if _, err := (measure{bound: 1}).rate(); err == nil {
		t.Error("one pod has no rate")
	}
}

// TestMissed: pods that were made and bound while the watch was interrupted are found by a list.
func TestMissed(t *testing.T) {
	p := newPods()
	pod := func(name string) metav1.ObjectMeta {
		return metav1.ObjectMeta{Namespace: "a", Name: name, UID: types.UID(name)}
	}
	p.list = func(context.Context, string) ([]metav1.ObjectMeta, error) {
		return []metav1.ObjectMeta{pod("seen"), pod("missed"), pod("ended")}, nil
	}
	if err := p.start([]string{"a"}, nil); err != nil {
		t.Fatal(err)
	}
	seen := &podSeen{ObjectMeta: pod("seen")}
	p.see(seen)
	p.gone(seen)
	p.end("a", "ended")
	for range 2 { // nothing counts twice
		if err := p.missed(t.Context(), "a"); err != nil {
			t.Fatal(err)
		}
		if bound, _ := p.count("a", nil); bound != 2 || p.boundInAll() != 2 || p.measure.bound != 2 {
			t.Errorf("%d bound in the namespace, %d in all, %d measured, want 2", bound, p.boundInAll(), p.measure.bound)
		}
	}
}

// TestWritesIn checks that reads, and requests without an answer, are not counted.
func TestWritesIn(t *testing.T) {
	text := `# HELP apiserver_request_total Counter of apiserver requests
# TYPE apiserver_request_total counter
apiserver_request_total{code="201",component="apiserver",resource="pods",subresource="binding",verb="POST",version="v1"} 100
apiserver_request_total{code="200",component="apiserver",resource="pods",subresource="status",verb="PATCH",version="v1"} 1.2e+02
apiserver_request_total{code="200",component="apiserver",resource="pods",subresource="",verb="DELETE",version="v1"} 3
apiserver_request_total{code="200",component="apiserver",resource="pods",subresource="",verb="LIST",version="v1"} 1000
apiserver_request_total{code="0",component="apiserver",resource="pods",subresource="",verb="WATCH",version="v1"} 1000
apiserver_request_duration_seconds_count{resource="pods",verb="POST"} 1000
`
	if n := writesIn(text); n != 223 {
		t.Errorf("%v writes, want 223", n)
	}
	began := time.Unix(0, 0)
	before := serving{at: began, usedAt: began, writes: 100, used: record.Usage{Idle: 4}}
	after := serving{at: began.Add(2 * time.Second), usedAt: began.Add(4 * time.Second), writes: 300,
		used: record.Usage{Idle: 5}}
	l := after.less(before)
	if l.rate() != 100 || l.cores(l.used.Idle) != 0.25 {
		t.Errorf("%v writes a second, %v cores idle, want 100 and 0.25", l.rate(), l.cores(l.used.Idle))
	}
}

// TestInShort checks that more pods per second and less CPU are better, that paced workloads have no rate, and that
// values not measured on both sides are left out.
func TestInShort(t *testing.T) {
	c := &testCase{Name: "C"}
	paced := &testCase{Name: "P", WorkloadTemplate: []op{{step: &startCollecting{}},
		{step: &deletePods{DeletePodsPerSecond: 1}}}}
	play := []*workload{{Name: "a", of: c}, {Name: "b", of: c}, {Name: "c", of: c}, {Name: "d", of: c},
		{Name: "e", of: paced}}
	mine, theirs := record.NewMeasurement(ours, 1), record.NewMeasurement(upstream, 1)
	for i, w := range play {
		rate := []float64{40, 10, 30, 70, 5}[i]
		mine.Put("rate_"+w.title(), rate, 1)
		mine.Put("cpu_"+w.title(), 1, 1)
		if w.Name != "d" {
			theirs.Put("rate_"+w.title(), 10, 1)
			theirs.Put("cpu_"+w.title(), 1+float64(i), 1)
		}
	}
	want := []string{
		"**pods a second, ours / upstream's: worst 1.00 (C/b), median of 3 workloads 3.00, best 4.00 (C/a)**",
		"**CPU of the scheduler per pod, ours / upstream's: worst 1.00 (C/a), median of 4 workloads 0.42, best 0.20 (P/e)**",
	}
	if got := inShort([]*record.Measurement{mine, theirs}, play); !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}
