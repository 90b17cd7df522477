package hints

import (
	"fmt"
	"testing"
)

// BenchmarkMerge: all sets of nodes are possible, and in the worst case no two resources agree.
func BenchmarkMerge(b *testing.B) {
	for _, c := range []struct{ nodes, supplies int }{{2, 4}, {8, 3}, {8, 4}, {64, 4}} {
		for _, disagree := range []bool{false, true} {
			b.Run(fmt.Sprintf("%dx%d/disagree=%v", c.nodes, c.supplies, disagree), func(b *testing.B) {
				var supplies []Supply
				for i := range c.supplies {
					s := Supply{Need: 1}
					for n := range c.nodes {
						s.Total = append(s.Total, 8)
						s.Free = append(s.Free, 8)
						if disagree {
							s.Free[n] = int64((n*7 + i*3) % 5)
							s.Need = int64(6 + 5*i)
						}
					}
					supplies = append(supplies, s)
				}
				b.ReportAllocs()
				for b.Loop() {
					Best(PolicyRestricted, nil, c.nodes, supplies)
				}
			})
		}
	}
}
