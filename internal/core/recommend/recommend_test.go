package recommend

import (
	"testing"

	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
	"github.com/plimsoll-dev/plimsoll/test/cost"
)

// TestFormulas checks the figures that the vendors publish, or that their scripts print, for the machines that they
// name.
func TestFormulas(t *testing.T) {
	for _, c := range []struct {
		cpus    int64
		memory  unit.Bytes
		maxPods int64
		want    map[string][2]int64 // thousandths of a CPU, MiB
	}{
		{8, 32 * unit.GiB, 110, map[string][2]int64{
			"GKE":       {90, 3645},
			"EKS":       {90, 1465},
			"AKS":       {180, 2145},
			"OpenShift": {500, 2048},
		}},
		{1, unit.GiB / 2, 30, map[string][2]int64{"GKE": {60, 255}, "AKS": {60, 128}}},
		{2, 4 * unit.GiB, 70, map[string][2]int64{
			"GKE":       {70, 1024},
			"EKS":       {70, 1025},
			"AKS":       {100, 1024},
			"OpenShift": {500, 1024},
		}},
		{3, 8 * unit.GiB, 30, map[string][2]int64{"AKS": {120, 619}, "GKE": {75, 1843}}},
		{64, 256 * unit.GiB, 250, map[string][2]int64{
			"GKE":       {230, 12165},
			"EKS":       {230, 3005},
			"AKS":       {740, 4816},
			"OpenShift": {816, 10240},
		}},
		{128, 128 * unit.GiB, 250, map[string][2]int64{"AKS": {1380, 4816}, "OpenShift": {1584, 8192}}},
	} {
		for _, f := range Formulas(c.cpus, c.memory, c.maxPods) {
			if f.Source == "" || f.Eviction != 100*unit.MiB {
				t.Errorf("%s: source %q, eviction %v", f.Vendor, f.Source, f.Eviction)
			}
			want, ok := c.want[f.Vendor]
			if got := [2]int64{int64(f.CPU), int64(f.Memory / unit.MiB)}; ok && got != want {
				t.Errorf("%s for %d CPUs, %v, %d pods: %v, want %v", f.Vendor, c.cpus, c.memory, c.maxPods, got, want)
			}
		}
	}
}

func TestClassify(t *testing.T) {
	for _, c := range []struct {
		name   string
		args   []string
		part   Part
		perPod bool
	}{
		{"containerd", []string{"/usr/bin/containerd"}, Runtime, false},
		{"containerd-shim", []string{"/usr/bin/containerd-shim-runc-v2", "-namespace", "k8s.io"}, Runtime, true},
		{"conmon", nil, Runtime, true},
		{"kubelet", nil, Agent, false},
		{"upstream-kubele", []string{"/opt/upstream-kubelet", "--config", "x"}, Agent, false},
		{"plimsoll", []string{"/usr/bin/plimsoll", "agent", "--config", "x"}, Agent, false},
		{"plimsoll", []string{"/usr/bin/plimsoll", "scheduler"}, System, false},
		{"plimsoll", []string{"plimsoll"}, System, false},
		{"kworker/0:1", nil, System, false},
	} {
		if part, perPod := Classify(c.name, c.args); part != c.part || perPod != c.perPod {
			t.Errorf("%s %q: %v, %v", c.name, c.args, part, perPod)
		}
	}
}

func TestPodsGroup(t *testing.T) {
	const uid, slice = "6f2c7a5e-0b1d-4c55-9f0e-2d1a3b4c5d6e", "pod6f2c7a5e_0b1d_4c55_9f0e_2d1a3b4c5d6e.slice"
	for group, want := range map[string][2]string{
		"/kubepods/burstable/pod" + uid + "/c1": {"/kubepods", uid},
		"/plimsoll-a/kubepods/pod" + uid:        {"/plimsoll-a/kubepods", uid},
		"/kubepods":                             {"/kubepods", ""},
		"/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-" + slice + "/cri-containerd-1.scope": {
			"/kubepods.slice", uid,
		},
		"/kubepods.slice/kubepods-" + slice: {"/kubepods.slice", uid},
		"/system.slice/containerd.service":  {"", ""},
		"/my-kubepods-tool":                 {"", ""},
		"":                                  {"", ""},
	} {
		if pods, pod := PodsGroup(group); pods != want[0] || pod != want[1] {
			t.Errorf("%s: %q, %q, want %q", group, pods, pod, want)
		}
	}
}

// TestQuantiles checks that each quantile is a point of the series.
func TestQuantiles(t *testing.T) {
	var s series[int]
	if q := s.quantiles(); q != (Quantiles[int]{}) {
		t.Errorf("nothing seen: %v", q)
	}
	for i := range 200 {
		s = append(s, 200-i)
	}
	if q := s.quantiles(); q != (Quantiles[int]{100, 198, 200}) {
		t.Errorf("1 to 200: %v", q)
	}
	if q := (series[int]{7}).quantiles(); q != (Quantiles[int]{7, 7, 7}) {
		t.Errorf("one: %v", q)
	}
}

func FuzzPodsGroup(f *testing.F) {
	for _, seed := range []string{
		"/kubepods/pod1234-5678", "kubepods.slice", "//", "/kubepods/kubepods-pod________.slice",
	} {
		cost.Attack(f, seed)
	}
	f.Fuzz(func(t *testing.T, group string) {
		defer cost.Spend(t, len(group))()
		if pods, pod := PodsGroup(group); pods == "" && pod != "" {
			t.Errorf("%q: pod %q of no group", group, pod)
		}
	})
}
