package shape

import (
	"reflect"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// TestSame: the same seed makes the same cluster.
func TestSame(t *testing.T) {
	history := func(seed uint64) (out []any) {
		c := New(Options{Seed: seed, Nodes: 50, Pods: 300, Kinds: 40, Churn: 1.5})
		out = append(out, c.Nodes(), c.Pods(), c.World())
		for range 500 {
			before, p := c.Next()
			out = append(out, before, p)
		}
		return out
	}
	if !reflect.DeepEqual(history(3), history(3)) {
		t.Error("two of one seed differ")
	}
	if reflect.DeepEqual(history(3), history(4)) {
		t.Error("two seeds make the same")
	}
}

// TestShape: a few kinds have most pods, pods on a node do not exceed its capacity, names are unique, and only existing
// objects are deleted.
func TestShape(t *testing.T) {
	c := New(Options{Seed: 1, Nodes: 200, Pods: 3000, Kinds: 300, Churn: 2})
	free := map[string][2]int64{}
	there := map[string]bool{}
	for _, n := range c.Nodes() {
		free[n.Name] = [2]int64{n.Status.Allocatable.Cpu().MilliValue(), n.Status.Allocatable.Memory().Value()}
		there["node "+n.Name] = true
	}
	perKind := map[string]int{}
	for _, p := range c.Pods() {
		r, f := p.Spec.Containers[0].Resources.Requests, free[p.Spec.NodeName]
		f[0], f[1] = f[0]-r.Cpu().MilliValue(), f[1]-r.Memory().Value()
		if free[p.Spec.NodeName] = f; p.Labels["daemon"] == "" && (f[0] < -1000 || f[1] < -1<<30) { // beside the DaemonSets
			t.Fatalf("node %s is overfull: %v left", p.Spec.NodeName, f)
		}
		if there["pod "+p.Name] {
			t.Fatalf("two pods are called %s", p.Name)
		}
		there["pod "+p.Name] = true
		perKind[p.Labels["app"]]++
	}
	var counts []int
	for app, n := range perKind {
		if app != "" {
			counts = append(counts, n)
		}
	}
	slices.SortFunc(counts, func(a, b int) int { return b - a })
	all, first := 0, 0
	for i, n := range counts {
		if all += n; i < len(counts)/10 {
			first += n
		}
	}
	if all < 2000 || len(counts) < 100 || 2*first < all {
		t.Errorf("%d pods of %d kinds, a tenth of which has %d", all, len(counts), first)
	}
	claims := 0
	for range 3000 {
		before, p := c.Next()
		for _, b := range before {
			var key string
			switch o := b.Object.(type) {
			case *corev1.Node:
				key = "node " + o.Name
			case *corev1.Pod:
				key = "pod " + o.Name
			case *corev1.PersistentVolumeClaim:
				claims++
				continue
			default:
				continue
			}
			if b.Gone && !there[key] {
				t.Fatalf("%s is deleted, and was not there", key)
			}
			there[key] = !b.Gone
		}
		if p.Spec.NodeName != "" || there["pod "+p.Name] {
			t.Fatalf("pod %s comes with node %q, there already: %v", p.Name, p.Spec.NodeName, there["pod "+p.Name])
		}
	}
	if claims == 0 {
		t.Error("no pod has a claim")
	}
}
