package cgroup

import (
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/plimsoll-dev/plimsoll/internal/core/idset"
	"github.com/plimsoll-dev/plimsoll/internal/core/qos"
)

// A pod's group on the real kernel, with containers of both kinds, one with groups inside, is confined and widened
// again.
func TestLiveConfine(t *testing.T) {
	tree, root := enterLive(t)
	all, err := tree.CPUs(root)
	if err != nil {
		t.Fatal(err)
	}
	if all.Len() < 2 {
		t.Skip("needs two CPUs")
	}
	own := idset.Of(all.Lowest())
	rest := all.Minus(own)
	pod := root + "/pod1"
	for _, group := range []string{"/own", "/shared/inner", "/shared/narrow"} {
		if err := tree.Apply(pod+group, qos.Values{}); err != nil {
			t.Fatal(err)
		}
	}
	// the first as the runtime makes it, the second as a container may
	for _, group := range []string{"/own", "/shared/narrow"} {
		if err := writeCPUs(tree.dirOf("cpuset", pod+group), own); err != nil {
			t.Fatal(err)
		}
	}
	expect := func(step string, want map[string]idset.Set) {
		t.Helper()
		for group, cpus := range want {
			if got, err := tree.CPUs(pod + group); err != nil || !got.Equal(cpus) {
				t.Errorf("%s: %s runs on %v, want %v; %v", step, group, got, cpus, err)
			}
		}
	}
	confine := func(own, rest idset.Set) {
		t.Helper()
		if err := tree.Confine(pod, own, rest); err != nil {
			t.Fatal(err)
		}
	}
	confine(own, rest)
	expect("one owns", map[string]idset.Set{"": all, "/own": own, "/shared": rest, "/shared/inner": rest,
		"/shared/narrow": rest})
	if err := tree.Remove(pod + "/own"); err != nil {
		t.Fatal(err)
	}
	confine(idset.Set{}, rest)
	expect("nobody owns, another pod does", map[string]idset.Set{"": rest, "/shared": rest, "/shared/inner": rest})
	confine(idset.Set{}, all)
	expect("all free", map[string]idset.Set{"": all, "/shared": all})
	if tree.Mode() != V2 { // there, a group with a cpuset of its own keeps it
		expect("all free", map[string]idset.Set{"/shared/inner": all})
	}
	if tree.Mode() != V2 { // which accepts CPUs that may come online
		confine(own.Union(idset.Of(4095)), rest.Union(idset.Of(4094)))
		expect("some are offline", map[string]idset.Set{"": all, "/shared": rest})
		confine(idset.Set{}, all)
	}
	if err := tree.Confine(root+"/gone", own, rest); err != nil {
		t.Errorf("a group that is not there: %v", err)
	}
}

// A group is narrowed while new groups with all its former CPUs appear in it.
func TestLiveConfineWhileContainersStart(t *testing.T) {
	tree, root := enterLive(t)
	all, err := tree.CPUs(root)
	if err != nil {
		t.Fatal(err)
	}
	if all.Len() < 2 {
		t.Skip("needs two CPUs")
	}
	pod, rest := root+"/pod1", all.Minus(idset.Of(all.Lowest()))
	if err := tree.Apply(pod, qos.Values{}); err != nil {
		t.Fatal(err)
	}
	stop := make(chan struct{})
	var making sync.WaitGroup
	making.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			dir := filepath.Join(tree.dirOf("cpuset", pod), fmt.Sprint("c", i%8))
			if err := os.Mkdir(dir, 0o755); err != nil {
				_ = os.Remove(dir)
				continue
			}
			// As runc does: the parent's CPUs, which the kernel refuses if the parent has fewer by now.
			if cpus, err := readCPUs(filepath.Dir(dir)); err == nil {
				_ = writeCPUs(dir, cpus)
			}
		}
	})
	for i := range 200 {
		want := []idset.Set{rest, all}[i%2]
		if err := tree.Confine(pod, idset.Set{}, want); err != nil {
			t.Error(err)
			break
		}
		if has, err := tree.CPUs(pod); err != nil || !has.Equal(want) {
			t.Errorf("round %d: runs on %v, want %v; %v", i, has, want, err)
		}
	}
	close(stop)
	making.Wait()
}
