package main

import (
	"fmt"
	"runtime"
	"runtime/debug"
)

// measureMemory compares the heap that each side holds for 5,000 nodes and 150,000 pods. Upstream's cache holds API objects
// and so does our shell's informer, trimmed; both are counted with what is made here, so ours is the mind alone.
func measureMemory() string {
	s := scenario{name: "memory", nodes: 5000, perNode: 30, old: web}
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
	runtime.KeepAlive(theirs)
	theirs.close()
	theirs = nil
	base = heap()
	mine := newOurs(&s)
	own := heap() - base
	runtime.KeepAlive(mine)
	return fmt.Sprintf("5,000 nodes, 150,000 pods: upstream's cache %d MiB; our mind %d MiB\n", used>>20, own>>20)
}
