package main

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/plimsoll-dev/plimsoll/internal/scheduler"
)

// The bars for memory.
const (
	memoryRatioMax = 0.5       // our heap divided by upstream's
	allocsMax      = 100       // our allocations per pod
	setsHeapMax    = 300 << 20 // bytes, for 10,000 ReplicaSets with 150,000 pods
	// bytes that may remain when all of them are gone. Chosen: what maps keep of their size, and noise
	leftMax     = 8 << 20
	hugeHeapMax = 3 << 30               // bytes, for 1,000,000 pods on 100,000 nodes
	hugeCPUMax  = 30 * time.Microsecond // for a pod without constraints on that cluster
)

// memory measures heaps.
func (o *options) memory() (text string, met bool) {
	var b strings.Builder
	b.WriteString("## Memory\n\n| | upstream | ours | bar | |\n|---|---|---|---|---|\n")
	met = true
	for _, m := range []struct {
		name    string
		nodes   int
		measure func(*strings.Builder) bool
	}{
		{"5,000 nodes, 150,000 pods that are alike", 5000, alikeHeap},
		{"10,000 ReplicaSets, 150,000 pods, default spread, 5,000 nodes", 5000, setsHeap},
		{"100,000 nodes, 1,000,000 pods", 100000, hugeHeap},
	} {
		if !o.wants(m.name, m.nodes) {
			continue
		}
		fmt.Fprintf(os.Stderr, "%s measuring memory: %s\n", time.Now().Format(time.TimeOnly), m.name)
		fmt.Fprintf(&b, "| **%s** | | | | |\n", m.name)
		ok := m.measure(&b)
		met = met && ok
		debug.FreeOSMemory()
	}
	return b.String(), met
}

// heap returns the size of the heap when it no longer shrinks, because earlier work may still be ending.
func heap() uint64 {
	var m runtime.MemStats
	for last, looks := uint64(0), 0; ; looks++ {
		debug.FreeOSMemory()
		runtime.ReadMemStats(&m)
		if looks > 0 && (m.HeapAlloc+heapStill >= last || looks == heapLooks) {
			return m.HeapAlloc
		}
		last = m.HeapAlloc
		time.Sleep(heapPause)
	}
}

// When a heap no longer shrinks (chosen): it shrank by less than this in this time, or was read this often.
const (
	heapStill = 256 << 10
	heapPause = 500 * time.Millisecond
	heapLooks = 20
)

// mib formats by how much a heap grew.
func mib(now, before uint64) string { return fmt.Sprintf("%d MiB", (int64(now)-int64(before))>>20) }

// kept is what the shell's informer keeps of a pod.
func kept(p *corev1.Pod) *scheduler.KeptPod {
	k := scheduler.KeepPod(p).(*scheduler.KeptPod)
	k.Passed()
	return k
}

// alikeHeap compares the heap of both sides, and the allocations for one more pod. Each side keeps API objects of its
// pods as its informer does: upstream whole ones, ours KeptPods.
func alikeHeap(b *strings.Builder) bool {
	ctx := context.Background()
	s := scenario{nodes: 5000, perNode: 30, old: func(_, _ int, p *corev1.Pod) { web(p) }}
	base := heap()
	theirs := newUpstream()
	s.load(ctx, theirs)
	used := heap() - base
	theirs.close()
	theirs = nil
	theirAllocs := run(newUpstream(), &s, 200, time.Minute).Allocs
	base = heap()
	mine := newOurs()
	s.load(ctx, mine)
	decisions := heap() - base
	objects := make([]any, 0, s.nodes*s.perNode)
	for i := range s.nodes {
		for k := range s.perNode {
			objects = append(objects, kept(s.existing(i, k)))
		}
	}
	own := heap() - base
	ownAllocs := run(newOurs(), &s, 5000, time.Minute).Allocs
	runtime.KeepAlive(objects)
	runtime.KeepAlive(mine)
	ratio := float64(own) / float64(used)
	fmt.Fprintf(b, "| heap, with the pods' objects | %d MiB | %d MiB | %.2f of upstream's, at most %.2f | %s |\n",
		used>>20, own>>20, ratio, memoryRatioMax, verdictOf(ratio <= memoryRatioMax))
	fmt.Fprintf(b, "| of it the Placer | | %d MiB | | |\n", decisions>>20)
	fmt.Fprintf(b, "| allocations per pod placed | %.0f | %.0f | below %d | %s |\n", theirAllocs, ownAllocs, allocsMax,
		verdictOf(ownAllocs < allocsMax))
	return ratio <= memoryRatioMax && ownAllocs < allocsMax
}

// setsHeap adds and removes many ReplicaSets with 15 pods each, and measures the heap.
func setsHeap(b *strings.Builder) bool {
	const sets, podsOfEach = 10000, 15
	ctx := context.Background()
	s := scenario{nodes: 5000}
	x := newOurs()
	base := heap()
	s.load(ctx, x)
	empty := heap()
	objects := map[string]*scheduler.KeptPod{}
	for k := range sets {
		p := podNamed("template")
		ofSet(k, p)
		for _, o := range replicaSet(fmt.Sprint("set-", k), p.Labels) {
			x.seen(o)()
		}
		for i := range podsOfEach {
			p := podNamed(fmt.Sprintf("set-%d-%d", k, i))
			ofSet(k, p)
			objects[p.Name] = kept(p)
			x.seen(p)()
			x.place(ctx, p)
		}
	}
	full := heap()
	for k := range sets {
		for i := range podsOfEach {
			p := podNamed(fmt.Sprintf("set-%d-%d", k, i))
			delete(objects, p.Name)
			x.gone(p)()
		}
		p := podNamed("template")
		ofSet(k, p)
		for _, o := range replicaSet(fmt.Sprint("set-", k), p.Labels) {
			x.gone(o)()
		}
	}
	objects = nil
	left := heap()
	runtime.KeepAlive(x)
	small, gone := full-base <= setsHeapMax, int64(left)-int64(empty) <= leftMax
	fmt.Fprintf(b, "| heap, with the pods' objects | | %s | at most %d MiB | %s |\n", mib(full, base), setsHeapMax>>20,
		verdictOf(small))
	fmt.Fprintf(b, "| left of it when all are gone | | %s | what it was, and at most %d MiB more | %s |\n",
		mib(left, empty), leftMax>>20, verdictOf(gone))
	return small && gone
}

// ofSet makes a pod one of a ReplicaSet other than those of ofKind.
func ofSet(k int, p *corev1.Pod) {
	ofKind(k, p)
	name := fmt.Sprint("set-", k)
	p.Labels["app"] = name
	owned(p, "apps/v1", "ReplicaSet", name)
}

// hugeHeap has a cluster larger than upstream supports.
func hugeHeap(b *strings.Builder) bool {
	const nodes, perNode = 100000, 10
	ctx := context.Background()
	s := scenario{nodes: nodes, perNode: perNode, old: func(i, k int, p *corev1.Pod) {
		ofKind((i*perNode+k)%kindsInTurn,
			p)
	}}
	x := newOurs()
	base := heap()
	s.load(ctx, x)
	objects := make([]*scheduler.KeptPod, 0, nodes*perNode)
	for i := range nodes {
		for k := range perNode {
			objects = append(objects, kept(s.existing(i, k)))
		}
	}
	full := heap()
	m := &meter{}
	const pods = 20000
	s.place(ctx, x, 0, pods/warmShare, time.Minute, &meter{})
	got := s.place(ctx, x, pods, pods, time.Minute, m)
	each := m.cpu / time.Duration(got.Pods)
	runtime.KeepAlive(objects)
	small, fast := full-base <= hugeHeapMax, each <= hugeCPUMax
	fmt.Fprintf(b, "| heap, with the pods' objects | | %s | at most %d MiB | %s |\n", mib(full, base), hugeHeapMax>>20,
		verdictOf(small))
	fmt.Fprintf(b, "| CPU of a pod without constraints | | %s | at most %s | %s |\n", short(each), short(hugeCPUMax),
		verdictOf(fast))
	return small && fast
}
