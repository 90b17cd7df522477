package main

import (
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/plimsoll-dev/plimsoll/internal/scheduler"
)

// The bars of the steady state.
const (
	memoryRatioMax = 0.5 // our heap, in parts of upstream's
	allocsMax      = 100 // allocations of ours per pod
)

// memoryName is what -only calls this measurement.
const memoryName = "memory"

// measureMemory compares what each side holds for 5,000 nodes and 150,000 pods, and what placing one pod more allocates. Each
// side keeps its pods' API objects as its informer does: upstream whole, ours what is kept of them.
func measureMemory() (report string, met bool) {
	s := scenario{name: memoryName, nodes: 5000, perNode: 30, old: web}
	s.change = s.old
	heap := func() uint64 {
		debug.FreeOSMemory()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	base := heap()
	theirs := newUpstream(&s)
	used := heap() - base
	theirAllocs := run(theirs, &s, 200).Allocs
	theirs = nil
	base = heap()
	mine := newOurs(&s)
	mind := heap() - base
	kept := make([]any, 0, s.nodes*s.perNode)
	for i := range s.nodes {
		for k := range s.perNode {
			pod := scheduler.KeepPod(s.existing(i, k)).(*scheduler.KeptPod)
			pod.Passed()
			kept = append(kept, pod)
		}
	}
	own := heap() - base
	ownAllocs := run(mine, &s, 5000).Allocs
	runtime.KeepAlive(kept)
	ratio := float64(own) / float64(used)
	met = ratio <= memoryRatioMax && ownAllocs < allocsMax
	return fmt.Sprintf(`| 5,000 nodes, 150,000 pods | upstream | ours | bar | |
|---|---|---|---|---|
| heap, with the pods' objects | %d MiB | %d MiB | %.2f of upstream's, at most %.2f | %s |
| of it the mind | | %d MiB | | |
| allocations per pod placed | %.0f | %.0f | below %d | %s |
`, used>>20, own>>20, ratio, memoryRatioMax, verdict(ratio <= memoryRatioMax), mind>>20, theirAllocs, ownAllocs, allocsMax, verdict(ownAllocs < allocsMax)), met
}
