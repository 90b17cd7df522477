package hints

import (
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
)

// TestScenarios plays testdata/*.txt: requests to the NUMA nodes, and the best hint for them. CONTRIBUTING.md says how
// to rewrite outcomes. The one command is
//
//	hint POLICY nodes=N [distances=(N ...,N ...)]    distances from each node to all, when the closest are preferred
//	    NAME need=N free=N,... [total=N,...] [among=PLACE,...] [must=PLACE,...]    by node; total is free if not stated;
//	                                                     nodes that may take part; nodes that must
func TestScenarios(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			if d.Cmd != "hint" {
				d.Fatalf(t, "unknown command %q", d.Cmd)
			}
			policy := PolicyNone
			for policy.String() != d.CmdArgs[0].Key {
				policy++
			}
			var nodes int
			d.ScanArgs(t, "nodes", &nodes)
			var distance [][]int
			for _, a := range d.CmdArgs {
				if a.Key == "distances" {
					for _, row := range a.Vals {
						distance = append(distance, places(t, strings.Join(strings.Fields(row), ",")))
					}
				}
			}
			var supplies []Supply
			for line := range strings.Lines(d.Input) {
				supplies = append(supplies, supply(t, strings.Fields(line)))
			}
			at, preferred, admitted := Best(policy, distance, nodes, supplies)
			return outcome(at, preferred, admitted)
		})
	})
}

func supply(t *testing.T, words []string) (s Supply) {
	for _, word := range words[1:] {
		switch key, value, _ := strings.Cut(word, "="); key {
		case "need":
			s.Need = amounts(t, value)[0]
		case "free":
			s.Free = amounts(t, value)
		case "total":
			s.Total = amounts(t, value)
		case "among":
			s.Nodes = places(t, value)
		case "must":
			s.Must = places(t, value)
		default:
			t.Fatalf("unknown %q", word)
		}
	}
	if s.Total == nil {
		s.Total = s.Free
	}
	return s
}

func amounts(t *testing.T, text string) (out []int64) {
	for _, n := range places(t, text) {
		out = append(out, int64(n))
	}
	return out
}

func places(t *testing.T, text string) (out []int) {
	for word := range strings.SplitSeq(text, ",") {
		n, err := strconv.Atoi(word)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, n)
	}
	return out
}

func outcome(at []int, preferred, admitted bool) string {
	where := "anywhere"
	if at != nil {
		where = "nodes " + strings.Trim(fmt.Sprint(at), "[]")
	}
	if preferred {
		where += ", preferred"
	}
	if !admitted {
		where += ": refused"
	}
	return where + "\n"
}
