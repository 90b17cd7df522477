package metrics

import (
	"strings"
	"testing"
	"time"
)

// A new node is measured once, from its boot on. A node that was there before is not.
func TestStartup(t *testing.T) {
	shown := func(s *Set) map[string]float64 {
		t.Helper()
		families, err := s.Registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
		out := map[string]float64{}
		for _, f := range families {
			if name, ok := strings.CutPrefix(f.GetName(), "kubelet_node_startup_"); ok {
				out[strings.TrimSuffix(name, "duration_seconds")] = f.Metric[0].GetGauge().GetValue()
			}
		}
		return out
	}
	s := New("n")
	at := s.Startup.started
	s.Startup.booted = at.Add(-10 * time.Second)
	s.Startup.now = func() time.Time { return at }
	s.Startup.Ready() // of a Node of earlier times
	for range 2 {
		for _, step := range []func(){s.Startup.Trying, s.Startup.Registered, s.Startup.Ready} {
			at = at.Add(time.Second)
			step()
		}
	}
	want := map[string]float64{"pre_kubelet_": 10, "pre_registration_": 1, "registration_": 1, "post_registration_": 1,
		"": 13}
	for name, seconds := range want {
		if got := shown(s)[name]; got != seconds {
			t.Errorf("%q: %v s, want %v", name, got, seconds)
		}
	}
	old := New("n")
	old.Startup.Trying()
	old.Startup.Ready()
	for name, got := range shown(old) {
		if got != 0 {
			t.Errorf("%q: %v s of a node that was there before", name, got)
		}
	}
	if real := New("n").Startup; !real.booted.Before(real.started) {
		t.Errorf("booted %v, started %v", real.booted, real.started)
	}
}
