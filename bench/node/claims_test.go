package main

import (
	"slices"
	"testing"

	"github.com/plimsoll-dev/plimsoll/bench/record"
)

// TestClaims: each pod has claims of its own, which are all made before the pods, and the bare client is left out.
func TestClaims(t *testing.T) {
	c, err := parseFlags([]string{"--claims", "2", "--singles", "1", "--batches", "1,3"})
	if err != nil {
		t.Fatal(err)
	}
	if len(c.sides) != 2 || c.without() != "kube-proxy,coredns,metrics-server" {
		t.Errorf("sides %v, without %s", c.sides, c.without())
	}
	if _, err := parseFlags([]string{"--claims", "1", "--only", "bare"}); err == nil {
		t.Error("the bare client has claims")
	}
	names := c.allPods()
	want := []string{"single-00", "single-01", "batch1-000", "batch3-000", "batch3-001", "batch3-002"}
	if !slices.Equal(names, want) {
		t.Errorf("pods %v, want %v", names, want)
	}
	var claims []string
	for _, pod := range c.podsNamed(names) {
		for i, v := range pod.Spec.Volumes {
			claims = append(claims, v.PersistentVolumeClaim.ClaimName)
			if m := pod.Spec.Containers[0].VolumeMounts[i]; m.Name != v.Name {
				t.Errorf("%s mounts %s for %s", pod.Name, m.Name, v.Name)
			}
		}
	}
	slices.Sort(claims)
	if len(slices.Compact(claims)) != 2*len(names) {
		t.Errorf("claims %v", claims)
	}
	bars := linesByName(t, c)
	for name, want := range map[string]record.Bar{
		"p99_3":        {RatioMax: 1},
		"p99_gone_3":   {RatioMax: 1},
		"rss_steady_3": {RatioMax: 1. / 2},
	} {
		if bars[name].Bar != want {
			t.Errorf("%s has the bar %v, want %v", name, bars[name].Bar, want)
		}
	}
}
