package placement

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"strconv"
	"testing"

	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

// TestMemoryFollowsTheCluster lets ReplicaSets come and go, their pods spread by default and each asking for resources,
// by labels and by topology keys of its own; and nodes with names of their own. Nothing of them may be left.
func TestMemoryFollowsTheCluster(t *testing.T) {
	p := mixCluster(&mixture{}, 2000)
	round := func(from, to int) {
		var pods []Pod
		for k := from; k < to; k++ {
			p.GroupSeen(1, replicaSet(k))
			for i := range 3 {
				x := comingAndGoing(k, i)
				p.PodSeen(2, x)
				d, _ := p.Next(2)
				if d.Node == "" {
					if k%10 != 0 || i != 2 {
						t.Fatalf("pod %d of set %d: %v", i, k, d.Failure)
					}
				} else {
					x.Node = d.Node
					p.PodSeen(2, x)
				}
				pods = append(pods, x)
			}
			n := benchNode(2000 + k)
			p.NodeSeen(2, n)
			p.NodeGone(2, n.Name)
		}
		for i := range pods {
			p.PodGone(3, pods[i].ID)
		}
		for k := from; k < to; k++ {
			p.GroupGone(3, replicaSet(k))
		}
	}
	round(0, 10) // what every cluster makes once
	sweep := func() {
		p.cluster.intern.Most = 0
		p.cluster.sweepStrings()
	}
	sweep()
	before, heapBefore := sizesOf(p), heapNow()
	round(10, 2010)
	sweep()
	if after := sizesOf(p); after != before {
		t.Errorf("what is kept after all are gone:\n%s\nbefore they came:\n%s", after, before)
	}
	if grown := heapNow() - heapBefore; grown > 6<<20 {
		t.Errorf("the heap has grown by %d KiB", grown>>10)
	}
	runtime.KeepAlive(p)
}

// TestStocksFollowTheCluster lets classes come and go, with volumes and capacities, and a pod with a claim of each. What
// is kept by class must go with them, and what a claim comes down to be found anew each time.
func TestStocksFollowTheCluster(t *testing.T) {
	p := mixCluster(&mixture{}, 100)
	for i := range 40 {
		class, name := "class-"+strconv.Itoa(i%20), strconv.Itoa(i)
		p.StorageClassSeen(1, StorageClass{Name: class, Provisioner: "kubernetes.io/no-provisioner", Waits: true})
		p.CapacitySeen(1, Capacity{Namespace: "d", Name: name, Class: class})
		p.ClaimSeen(1, Claim{Namespace: "d", Name: name, Class: class, Size: 1, Version: "1"})
		x := benchPod("p" + name)
		x.Mounts = []Mount{{Claim: name}}
		p.PodSeen(2, x)
		if d, _ := p.Next(2); d.Node != "" {
			t.Fatalf("pod %d is placed although there is no volume", i)
		}
		p.VolumeSeen(3, Volume{Name: name, Class: class, Capacity: 1, Available: true})
		d, ok := p.Next(3 + unit.Instant(backoffMax))
		if !ok || d.Node == "" {
			t.Fatalf("pod %d: %v", i, d.Failure)
		}
		p.PodGone(4, x.ID)
		p.ClaimGone(4, "d", name)
		if i%2 == 0 {
			p.StorageClassGone(4, class) // before its volume
		}
		p.VolumeGone(4, name)
		p.CapacityGone(4, "d", name)
		p.StorageClassGone(4, class)
		if wrong := p.cluster.storage.Audit(nil, nil); wrong != nil {
			t.Fatal(wrong)
		}
	}
}

// comingAndGoing is the i-th pod of a set. Of every tenth set one fits nowhere.
func comingAndGoing(set, i int) Pod {
	name := strconv.Itoa(set)
	x := benchPod("rs-" + name + "-" + strconv.Itoa(i))
	spreadByOwner(&x, set)
	own := LabelSelector{Requirements: []Requirement{{Key: "app", Op: In, Values: []string{"rs-" + name}}}}
	switch i {
	case 1:
		x.Spread = []SpreadConstraint{{MaxSkew: 1, TopologyKey: "key-" + name, Selector: own, MinDomains: 1}}
		x.Preferred = []WeightedTerm{{Weight: 1, Term: NodeTerm{Labels: []Requirement{{Key: "key-" + name, Op: In, Values: []string{"value-" + name}}}}}}
	case 2:
		x.PreferredAntiAffinity = []WeightedPodTerm{{100, PodTerm{Selector: own, Namespaces: []string{"d"}, NamespaceSelector: LabelSelector{Nothing: true}, TopologyKey: hostKey}}}
		if set%10 == 0 {
			x.Requests = append(x.Requests, Amount{"example.com/" + name, 1})
		}
	}
	return x
}

// sizesOf counts what a Placer keeps.
func sizesOf(p *Placer) string {
	c := p.cluster
	return fmt.Sprintf("classes %d, census %s, demands %d, columns %d, strings %d, pods %d",
		len(c.classes), c.Sizes(),
		len(c.demands.all), len(c.columns.byName), c.intern.Len(), len(c.pods))
}

func heapNow() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// TestManyReplicaSets holds 2,000 sets with 30,000 pods on 1,000 nodes to the memory that pods take, not sets times
// nodes.
func TestManyReplicaSets(t *testing.T) {
	p := mixCluster(&mixture{}, 1000)
	before := heapNow()
	const sets, pods = 2000, 15
	for k := range sets {
		p.GroupSeen(1, replicaSet(k))
		for i := range pods {
			x := benchPod(fmt.Sprintf("p-%d-%d", k, i))
			spreadByOwner(&x, k)
			x.Requests = []Amount{{CPU, 1}}
			p.PodSeen(2, x)
			d, _ := p.Next(2)
			if d.Node == "" {
				t.Fatal(d.Failure)
			}
			x.Node = d.Node
			p.PodSeen(2, x)
		}
	}
	if each := (heapNow() - before) / (sets * pods); each > 1600 {
		t.Errorf("%d bytes a pod", each)
	}
	runtime.KeepAlive(p)
}

// TestStringsForgotten gives one history to two Placers, of which one forgets the strings that nobody uses whenever it
// may. They must decide alike.
func TestStringsForgotten(t *testing.T) {
	for seed := range uint64(8) {
		rng := rand.New(rand.NewPCG(seed, 3))
		keep, forget := New(Options{Seed: seed}), New(Options{Seed: seed})
		h := newHistory(t, seed)
		both := func(tell func(p *Placer)) {
			tell(keep)
			forget.cluster.intern.Most = 0
			tell(forget)
		}
		now := unit.Instant(1)
		for i := range 200 {
			n := h.randomNode()
			decorateNode(rng, &n)
			n.Name = fmt.Sprintf("n%d", rng.IntN(20))
			n.Labels = append(n.Labels, Label{Key: "own", Value: strconv.Itoa(rng.IntN(30))}, Label{Key: "odd", Value: strconv.Itoa(i)})
			if rng.IntN(3) == 0 {
				both(func(p *Placer) { p.NodeGone(now, n.Name) })
			} else {
				both(func(p *Placer) { p.NodeSeen(now, n) })
			}
			x := h.randomPod()
			if x.Gates = nil; i%2 == 0 {
				decoratePod(rng, &x)
			} else {
				x = Pod{ID: x.ID, Name: x.Name, Namespace: x.Namespace, NodeSelector: []Label{{Key: "own", Value: strconv.Itoa(rng.IntN(30))}}}
			}
			both(func(p *Placer) { p.PodSeen(now, x) })
			if i%3 == 0 {
				gone := PodID(fmt.Sprintf("p%d", rng.IntN(i+1)))
				both(func(p *Placer) { p.PodGone(now, gone) })
			}
			for range 3 {
				now++
				a, okA := keep.Next(now)
				forget.cluster.intern.Most = 0
				b, okB := forget.Next(now)
				if okA != okB || a.Node != b.Node || a.Score != b.Score || a.Feasible != b.Feasible || fmt.Sprint(a.Failure) != fmt.Sprint(b.Failure) {
					t.Fatalf("seed %d, step %d: %+v %v, forgetful %+v %v", seed, i, a, a.Failure, b, b.Failure)
				}
			}
		}
		if kept, left := keep.cluster.intern.Len(), forget.cluster.intern.Len(); left >= kept {
			t.Errorf("%d strings of %d are left", left, kept)
		}
	}
}
