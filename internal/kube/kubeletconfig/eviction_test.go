package kubeletconfig

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/plimsoll-dev/plimsoll/internal/core/allocatable"
	"github.com/plimsoll-dev/plimsoll/internal/core/eviction"
	"github.com/plimsoll-dev/plimsoll/test/cost"
)

func TestEviction(t *testing.T) {
	for _, c := range []struct{ name, yaml, want string }{
		{"upstream's defaults", "", `
imagefs.available 15% | imagefs.inodesFree 5% | memory.available 100Mi | nodefs.available 10% | nodefs.inodesFree 5% | allocatableMemory.available 100Mi`},
		{"one threshold is all there are", "evictionHard: {memory.available: 0.5Gi}", `
memory.available 512Mi | allocatableMemory.available 512Mi`},
		{"unless the defaults are merged", "evictionHard: {memory.available: 200Mi, nodefs.available: 100%}\nmergeDefaultEvictionSettings: true", `
imagefs.available 15% | imagefs.inodesFree 5% | memory.available 200Mi | nodefs.inodesFree 5% | allocatableMemory.available 200Mi`},
		{"soft, with minimum reclaim", `evictionHard: {memory.available: 100Mi}
evictionSoft: {memory.available: 300Mi, nodefs.available: 15%}
evictionSoftGracePeriod: {memory.available: 1m30s, nodefs.available: 2m, pid.available: 1s}
evictionMinimumReclaim: {memory.available: 50Mi, nodefs.available: 100%, imagefs.available: "0"}`, `
memory.available 100Mi +50Mi | memory.available 300Mi +50Mi after 1m30s | nodefs.available 15% +100% after 2m0s | allocatableMemory.available 100Mi +50Mi`},
		{"a soft one without grace is hard", "evictionHard: {}\nevictionSoft: {pid.available: 1k}\nevictionSoftGracePeriod: {pid.available: 0s}", `
pid.available 1k`},
		{"pods are not held to what is allocatable", "evictionHard: {memory.available: 100Mi}\nenforceNodeAllocatable: [none]", `
memory.available 100Mi`},
	} {
		loaded, _, err := Parse([]byte(head+c.yaml+"\n"), "/")
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		got, err := Eviction(loaded)
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		var texts []string
		for _, x := range got.Thresholds {
			texts = append(texts, show(x))
		}
		if text := strings.Join(texts, " | "); text != strings.TrimSpace(c.want) {
			t.Errorf("%s:\n got %s\nwant %s", c.name, text, strings.TrimSpace(c.want))
		}
		if got.Transition != 5*time.Minute || got.ImagesLow != 80 || !got.LocalStorage {
			t.Errorf("%s: got %+v", c.name, got)
		}
	}
}

// TestLocalStorageUncounted: without localStorageCapacityIsolation local storage is not a resource of the node, and its
// limits cause no evictions.
func TestLocalStorageUncounted(t *testing.T) {
	for yaml, counted := range map[string]bool{"": true, "localStorageCapacityIsolation: true": true,
		"localStorageCapacityIsolation: false": false} {
		c, warnings, err := Parse([]byte(head+yaml+"\n"), "/")
		if err != nil || len(warnings) > 0 {
			t.Fatalf("%q: %v, %v", yaml, warnings, err)
		}
		settings, err := Allocatable(c)
		if err != nil || settings.StorageUncounted == counted {
			t.Errorf("%q: ephemeral storage uncounted: %v, %v", yaml, settings.StorageUncounted, err)
		}
		limits, err := Eviction(c)
		if err != nil || limits.LocalStorage != counted {
			t.Errorf("%q: limits are enforced: %v, %v", yaml, limits.LocalStorage, err)
		}
	}
}

func show(t eviction.Threshold) string {
	amount := func(v allocatable.Threshold, text string) string {
		if v.Share > 0 {
			return fmt.Sprintf("%.4g%%", v.Share*100)
		}
		return text
	}
	text := string(t.Signal) + " " + amount(t.Value, t.Text)
	if t.Reclaim != (allocatable.Threshold{}) {
		text += " +" + amount(t.Reclaim, fmt.Sprintf("%dMi", t.Reclaim.Amount>>20))
	}
	if !t.IsHard() {
		text += " after " + t.Grace.String()
	}
	return text
}

func TestEvictionProblems(t *testing.T) {
	_, _, err := Parse([]byte(head+`
evictionHard: {memory.available: lots, nodefs.available: 101%, imagefs.available: -5%, pid.available: "0", cpu: "1", nodefs.inodesFree: NaN%}
evictionSoft: {memory.available: 1Gi, nodefs.available: 0%}
evictionSoftGracePeriod: {pid.available: soon, disk: 1s}
evictionMinimumReclaim: {memory.available: 0%, nodefs.available: "-1", imagefs.available: 120%}
evictionMaxPodGracePeriod: -1
`), "/")
	if err == nil {
		t.Fatal("taken")
	}
	for _, want := range []string{
		`evictionHard.memory.available: "lots": want a quantity above zero`, `evictionHard.nodefs.available: "101%"`,
		`evictionHard.imagefs.available: "-5%"`,
		`evictionHard.pid.available: "0"`, `evictionHard.cpu: "1": is not an eviction signal`,
		`evictionHard.nodefs.inodesFree: "NaN%"`,
		`evictionSoft.memory.available: "1Gi": needs evictionSoftGracePeriod.memory.available`,
		`evictionSoftGracePeriod.pid.available: "soon": want a duration`,
		`evictionSoftGracePeriod.disk: "1s": is not an eviction signal`, `evictionMinimumReclaim.memory.available: "0%"`,
		`evictionMinimumReclaim.nodefs.available: "-1"`, `evictionMinimumReclaim.imagefs.available: "120%"`,
		`evictionMaxPodGracePeriod: -1`,
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("missing %s in:\n%v", want, err)
		}
	}
	if strings.Contains(err.Error(), "evictionSoft.nodefs.available") {
		t.Errorf("0%% is no threshold and needs no grace: %v", err)
	}
}

// FuzzEviction reads thresholds: an accepted one can be compared, and the error names each other.
func FuzzEviction(f *testing.F) {
	for _, seed := range [][3]string{{"100Mi", "90s", "10%"}, {"10%", "0s", "0"}, {"0%", "-1s", "0%"}, {"1n", "1h", "-1"},
		{"NaN%", "", "1e30"}, {"9Ei", "2540400h", "100%"}} {
		cost.Attack(f, seed[0], seed[1], seed[2])
	}
	f.Fuzz(func(t *testing.T, line, grace, reclaim string) {
		defer cost.Spend(t, len(line)+len(grace)+len(reclaim))()
		c, _, err := Parse(nil, "")
		if err != nil {
			t.Fatal(err)
		}
		const signal = "memory.available"
		c.EvictionHard, c.EvictionSoft = map[string]string{signal: line}, map[string]string{signal: line}
		c.EvictionSoftGracePeriod, c.EvictionMinimumReclaim = map[string]string{signal: grace},
			map[string]string{signal: reclaim}
		got, err := Eviction(c)
		if err != nil {
			return
		}
		for _, x := range got.Thresholds {
			if v := x.Value.Of(1 << 40); v < 0 || x.Grace < 0 || x.Reclaim.Of(1<<40) < 0 {
				t.Errorf("%q %q %q: %+v", line, grace, reclaim, x)
			}
		}
	})
}
