package remedy

import (
	"fmt"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"

	"github.com/plimsoll-dev/plimsoll/test/scenario"
)

// TestScenarios plays testdata/*.txt. A block "ask" is a cluster, one fact per line, and all its waiting pods; the
// output is the answer about each group of them. The facts:
//
//	node NAME [cpu=N] [memory=N] [RESOURCE=N] [pods=N] [label=K:V] [taint=K:V:EFFECT] [cordoned]
//	pod NAME [on=NODE] [nominated=NODE] [cpu=N] [RESOURCE=N] [prio=N] [never] [gate=G] [app=A] [select=K:V] [port=N]
//	    [require=K:V|K|!K|K!V|K>N|K<N] [name=NODE] [spread=KEY:APP] [near=KEY:APP] [apart=KEY:APP] [needs=TEXT]
//	budget NAME app=A allowed=N
//
// In the output, a reason is the number of nodes, the plugin, the text, the nodes; a remedy is its side, its node, its
// changes in brackets, and -NAME for each victim.
func TestScenarios(t *testing.T) {
	scenario.Play(t, "testdata", "ask", func(t *testing.T, d *datadriven.TestData) string {
		var f facts
		for line := range strings.Lines(d.Input) {
			f.read(t, line)
		}
		var b strings.Builder
		for _, g := range f.world().Groups(f.waiting) {
			names := []string{}
			for _, p := range g.Pods {
				names = append(names, p.Name)
			}
			fmt.Fprintf(&b, "%s: %s", strings.Join(names, ", "), show(g.Answer))
		}
		return b.String()
	})
}
