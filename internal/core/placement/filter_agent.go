package placement

import (
	"slices"
	"strings"
)

// passesAgent keeps a pod off nodes whose agent says that it lacks what the pod needs: it would hold the pod there. Agents that
// say nothing, as upstream's, are taken to have everything.
func passesAgent(c *cluster, d *demand, r row) bool {
	for _, need := range d.ofAgent {
		if _, lacks := slices.BinarySearch(c.agentLacks[r], need); lacks {
			return false
		}
	}
	return true
}

func explainAgent(c *cluster, d *demand, r row, reasons []string) []string {
	var lacks []string
	for _, need := range d.ofAgent {
		if _, found := slices.BinarySearch(c.agentLacks[r], need); found {
			lacks = append(lacks, need)
		}
	}
	return append(reasons, "node(s) had an agent that would hold the pod: it has no "+strings.Join(lacks, ", "))
}
