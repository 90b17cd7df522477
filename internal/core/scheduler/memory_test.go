package scheduler

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"strconv"
	"testing"

	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler/queue"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

// TestMemoryFollowsTheCluster adds and deletes ReplicaSets with the default spread constraints, each with separate
// resources, labels and topology keys; with each, a node with a new name, labels of other nodes, a namespace, a budget,
// and a volume with all related objects. Nothing of them may remain.
func TestMemoryFollowsTheCluster(t *testing.T) {
	p := mixCluster(&mixture{}, 2000)
	round := func(from, to int) {
		var pods []Pod
		for k := from; k < to; k++ {
			p.GroupSeen(1, replicaSet(k))
			passing(p, k)
			for i := range 4 {
				x := comingAndGoing(k, i)
				p.PodSeen(2, x)
				d, _ := p.Next(2)
				if d.Node == "" {
					if k%10 != 0 || i != 2 {
						t.Fatalf("pod %d of set %d is not placed: %v", i, k, d.Failure)
					}
				} else {
					x.Node = d.Node
					p.PodSeen(2, x)
				}
				pods = append(pods, x)
			}
			passed(p, k)
		}
		for i := range pods {
			p.PodGone(3, pods[i].ID)
		}
		for k := from; k < to; k++ {
			p.GroupGone(3, replicaSet(k))
			volumePassed(p, k)
		}
	}
	round(0, 10) // creates what is created only once
	sweep := func() {
		p.cluster.intern.Most = 0
		p.cluster.sweepStrings()
	}
	sweep()
	before, heapBefore := sizesOf(p), heapNow()
	round(10, 10+fewer(2000))
	sweep()
	if after := sizesOf(p); after != before {
		t.Errorf("after all are gone, the sizes are:\n%s\nwant those from before:\n%s", after, before)
	}
	if grown := heapNow() - heapBefore; grown > 6<<20 {
		t.Errorf("the heap has grown by %d KiB", grown>>10)
	}
	runtime.KeepAlive(p)
}

// TestHostilePodsLeaveNothing adds, tries and deletes pods with 10,000 parts: nothing of them may remain.
func TestHostilePodsLeaveNothing(t *testing.T) {
	for _, m := range hostile {
		t.Run(m.name, func(t *testing.T) {
			p := mixCluster(&m, 20)
			kept := func() string {
				p.cluster.intern.Most = 0
				p.cluster.sweepStrings()
				return sizesOf(p)
			}
			round := func(i int) {
				x := benchPod(fmt.Sprint("hostile-", i))
				m.pod(p, i, &x)
				p.PodSeen(2, x)
				if d, _ := p.Next(2); d.Node != "" {
					x.Node = d.Node
					p.PodSeen(2, x)
				}
				p.PodGone(2, x.ID)
			}
			round(0)
			before := kept()
			for i := range fewer(10) {
				round(1 + i)
			}
			if after := kept(); after != before {
				t.Errorf("after all are gone, the sizes are:\n%s\nwant those from before:\n%s", after, before)
			}
		})
	}
}

// TestStocksFollowTheCluster adds and deletes classes, with volumes and capacities, and a pod with a claim of each.
// What is kept by class must be deleted with them, and volumes.Needs must be recomputed each time.
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
		d, ok := p.Next(3 + unit.Instant(queue.BackoffMax))
		if !ok || d.Node == "" {
			t.Fatalf("pod %d: %v", i, d.Failure)
		}
		p.PodGone(4, x.ID)
		p.ClaimGone(4, "d", name)
		if i%2 == 0 {
			p.StorageClassGone(4, class) // the class is deleted before its volume
		}
		p.VolumeGone(4, name)
		p.CapacityGone(4, "d", name)
		p.StorageClassGone(4, class)
		if wrong := p.cluster.storage.Audit(nil, nil); wrong != nil {
			t.Fatal(wrong)
		}
	}
}

// passing adds the objects that come with set k. passed deletes most of them while its pods are there, volumePassed the
// rest after that.
func passing(p *Placer, k int) {
	name := strconv.Itoa(k)
	n := benchNode(2000 + k)
	p.NodeSeen(2, n)
	labelled := benchNode(k % 2000)
	labelled.Labels = append(labelled.Labels, Label{Key: "key-" + name, Value: "value-" + name})
	p.NodeSeen(2, labelled)
	p.NamespaceSeen(2, "ns-"+name, []Label{{Key: "team-" + name, Value: name}})
	p.BudgetSeen(2, Budget{Namespace: "d", Name: "rs-" + name, Selector: appIs("rs-" + name)})

	class, driver := "class-"+name, "driver-"+name
	here := []NodeTerm{{Labels: []Requirement{{Key: "key-" + name, Op: Exists}}}}
	p.DriverSeen(2, driver, true)
	p.StorageClassSeen(2, StorageClass{Name: class, Provisioner: driver, Driver: driver, Waits: true, Topologies: &here})
	p.CapacitySeen(2, Capacity{
		Namespace: "d",
		Name:      name,
		Class:     class,
		Nodes:     &LabelSelector{Requirements: here[0].Labels},
		Size:      1 << 30,
		Sized:     true,
	})
	p.NodeStorageSeen(2, NodeStorage{Node: n.Name, Limits: map[string]int64{driver: 10}})
	p.AttachmentSeen(2, Attachment{Name: "at-" + name, Node: n.Name, Driver: driver, Volume: "pv-" + name})
	p.VolumeSeen(2, Volume{
		Name:           "pv-" + name,
		Class:          class,
		Affinity:       &here,
		Claimed:        true,
		ClaimNamespace: "d",
		ClaimName:      "claim-" + name,
	})
	p.ClaimSeen(2, Claim{Namespace: "d", Name: "claim-" + name, Class: class, Volume: "pv-" + name, Bound: true})
	p.ClaimSeen(2, Claim{Namespace: "d", Name: "wanting-" + name, Class: class, Size: 1, Sized: true, Version: "1"})
}

func passed(p *Placer, k int) {
	name := strconv.Itoa(k)
	p.AttachmentGone(3, "at-"+name)
	p.NodeStorageGone(3, "node-"+strconv.Itoa(2000+k))
	p.NodeGone(3, "node-"+strconv.Itoa(2000+k))
	p.NodeSeen(3, benchNode(k%2000))
	p.NamespaceGone(3, "ns-"+name)
	p.BudgetGone(3, "d", "rs-"+name)
}

func volumePassed(p *Placer, k int) {
	name := strconv.Itoa(k)
	p.ClaimGone(3, "d", "claim-"+name)
	p.ClaimGone(3, "d", "wanting-"+name)
	p.VolumeGone(3, "pv-"+name)
	p.CapacityGone(3, "d", name)
	p.StorageClassGone(3, "class-"+name)
	p.DriverGone(3, "driver-"+name)
}

// comingAndGoing returns the i-th pod of a set. In every tenth set, one pod fits nowhere.
func comingAndGoing(set, i int) Pod {
	name := strconv.Itoa(set)
	x := benchPod("rs-" + name + "-" + strconv.Itoa(i))
	spreadByOwner(&x, set)
	own := LabelSelector{Requirements: []Requirement{{Key: "app", Op: In, Values: []string{"rs-" + name}}}}
	switch i {
	case 1:
		x.Spread = []SpreadConstraint{{MaxSkew: 1, TopologyKey: "key-" + name, Selector: own, MinDomains: 1}}
		x.Preferred = []WeightedTerm{
			{Weight: 1, Term: NodeTerm{Labels: []Requirement{{Key: "key-" + name, Op: In, Values: []string{"value-" + name}}}}},
		}
	case 2:
		x.PreferredAntiAffinity = []WeightedPodTerm{{100, PodTerm{
			Selector:          own,
			Namespaces:        []string{"d"},
			NamespaceSelector: LabelSelector{Nothing: true},
			TopologyKey:       hostKey,
		}}}
		if set%10 == 0 {
			x.Requests = append(x.Requests, Amount{"example.com/" + name, 1})
		}
	case 3:
		x.Mounts = []Mount{{Claim: "claim-" + name}, {Claim: "wanting-" + name}}
	}
	return x
}

// sizesOf returns the sizes of everything that a Placer keeps.
func sizesOf(p *Placer) string {
	c := p.cluster
	budgets := 0
	for _, in := range c.budgets.in {
		budgets += len(in.byName)
	}
	s := &c.waits
	waits := fmt.Sprint(len(s.of), len(s.audiences), len(s.byClaim), len(s.byClass), len(s.preemptors), s.checking.Len(),
		len(s.searching),
		len(s.room.byLabel), len(s.room.byName), s.room.others.size, len(s.node.byLabel), len(s.node.byName),
		s.node.others.size)
	return fmt.Sprintf("classes %d, census %s, demands %d, columns %d, strings %d, pods %d, rows %d, keys %d, storage "+
		"%s, plans %d, spaces %d, budgets %d of %d, nominations %d, entries %d, waits %s",
		len(c.classes), c.Sizes(),
		len(c.demands.all), len(c.columns.byName), c.intern.Len(), len(c.pods), len(c.rows), len(c.keys), c.storage.Sizes(),
		len(c.plans), len(c.spaces),
		budgets, len(c.budgets.in), len(c.nominations), p.queue.Len(), waits)
}

func heapNow() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// TestManyReplicaSets checks that 10,000 sets with 150,000 pods on 5,000 nodes take memory in proportion to pods, not
// to sets times nodes: 300 MiB, the target of issue 16. When all are gone, memory must be as before. Under the race
// detector everything is a sixteenth.
func TestManyReplicaSets(t *testing.T) {
	p := mixCluster(&mixture{}, fewer(fewer(5000)))
	before := heapNow()
	const pods = 15
	sets := fewer(fewer(10000))
	for k := range sets {
		p.GroupSeen(1, replicaSet(k))
		for i := range pods {
			x := benchPod(fmt.Sprintf("p-%d-%d", k, i))
			spreadByOwner(&x, k)
			x.Requests = []Amount{{CPU, 1}}
			placeBound(t, p, x)
		}
	}
	heap := heapNow()
	if each := (heap - before) / int64(sets*pods); each > 1600 {
		t.Errorf("%d bytes per pod", each)
	}
	if heap > 300<<20 {
		t.Errorf("the heap has %d MiB", heap>>20)
	}
	for k := range sets {
		for i := range pods {
			p.PodGone(3, PodID(fmt.Sprintf("p-%d-%d", k, i)))
		}
		p.GroupGone(3, replicaSet(k))
	}
	if left := heapNow() - before; left > 8<<20 {
		t.Errorf("%d KiB are left when all are gone", left>>10)
	}
	runtime.KeepAlive(p)
}

// TestStringsForgotten gives one history to two Placers, one of which sweeps unused strings as often as possible. They
// must make the same decisions.
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
			n.Labels = append(n.Labels, Label{Key: "own", Value: strconv.Itoa(rng.IntN(30))}, Label{
				Key:   "odd",
				Value: strconv.Itoa(i),
			})
			if rng.IntN(3) == 0 {
				both(func(p *Placer) { p.NodeGone(now, n.Name) })
			} else {
				both(func(p *Placer) { p.NodeSeen(now, n) })
			}
			x := h.randomPod()
			if x.Gates = nil; i%2 == 0 {
				decoratePod(rng, &x)
			} else {
				x = Pod{
					ID:           x.ID,
					Name:         x.Name,
					Namespace:    x.Namespace,
					NodeSelector: []Label{{Key: "own", Value: strconv.Itoa(rng.IntN(30))}},
				}
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
				if okA != okB || a.Node != b.Node || a.Score != b.Score || a.Feasible != b.Feasible ||
					fmt.Sprint(a.Failure) != fmt.Sprint(b.Failure) {
					t.Fatalf("seed %d, step %d: %+v %v, sweeping %+v %v", seed, i, a, a.Failure, b, b.Failure)
				}
			}
		}
		if kept, left := keep.cluster.intern.Len(), forget.cluster.intern.Len(); left >= kept {
			t.Errorf("%d of %d strings are left", left, kept)
		}
	}
}

// TestResourceOfEachNode: each node has a resource of its own, and there is a pod for each, as in scheduler_perf's
// SchedulingWithExtendedResource. Memory must grow in proportion to the nodes. With a number for each node and
// resource, 5,000 nodes took 300 MiB.
func TestResourceOfEachNode(t *testing.T) {
	before := heapNow()
	nodes := fewer(5000)
	own := func(i int) Amount { return Amount{"example.com/r" + strconv.Itoa(i), 1} }
	p := mixCluster(&mixture{node: func(i int, n *Node) { n.Allocatable = append(n.Allocatable, own(i)) }}, nodes)
	without := heapNow()
	for i := range nodes {
		x := benchPod("own-" + strconv.Itoa(i))
		x.Requests = append(x.Requests, own(i))
		p.PodSeen(2, x)
		d, _ := p.Next(2)
		if d.Node != "node-"+strconv.Itoa(i) {
			t.Fatalf("pod %d is on %q: %v", i, d.Node, d.Failure)
		}
		x.Node = d.Node
		p.PodSeen(2, x)
	}
	after := heapNow()
	if each := (after - before) / int64(nodes); each > 12<<10 {
		t.Errorf("%d bytes per node, %d of them for its pod", each, (after-without)/int64(nodes))
	}
	runtime.KeepAlive(p)
}
