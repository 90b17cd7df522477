package scheduler

import (
	"fmt"
	"strconv"
	"testing"
)

// runs are how many pods of one ReplicaSet come one after another in BenchmarkRuns.
var runs = []int{1, 2, 4, 8, 16, 32, 64, 128, 256, 1024}

// BenchmarkRuns measures the cost of a pod if this many of one ReplicaSet come one after another, then as many of the
// next one: the cost of tables that are never used again, and what tables save.
func BenchmarkRuns(b *testing.B) {
	for _, nodes := range []int{1000, 5000, 50000} {
		for _, run := range runs {
			b.Run(fmt.Sprintf("nodes=%d/run=%d", nodes, run), func(b *testing.B) {
				benchTurns(b, nodes, func(i int) int { return i / run })
			})
		}
	}
}

// BenchmarkTurns measures the cost of a pod if this many ReplicaSets grow in rotation.
func BenchmarkTurns(b *testing.B) {
	for _, nodes := range []int{1000, 5000, 50000} {
		for _, kinds := range []int{1, 2, 8, 16, 17, 32, 64, 100, 1000} {
			b.Run(fmt.Sprintf("nodes=%d/kinds=%d", nodes, kinds), func(b *testing.B) {
				benchTurns(b, nodes, func(i int) int { return i % kinds })
			})
		}
	}
}

func benchTurns(b *testing.B, nodes int, kindOf func(i int) int) {
	p := mixCluster(&mixture{prepare: replicaSets(mixKinds)}, nodes)
	i := 0
	one := func() {
		x := benchPod("p" + strconv.Itoa(i))
		spreadByOwner(&x, kindOf(i)%mixKinds)
		placeBound(b, p, x)
		i++
	}
	measure(b, 100, one)
}
