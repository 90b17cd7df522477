package placement

// passesResources demands room for one more pod and for each resource the pod asks for. What is not asked for is not
// looked at: a pod without requests fits on a node that is over-committed.
func passesResources(c *cluster, k *class, r row) bool {
	if c.podsHeld[r]+1 > c.podsMax[r] {
		return false
	}
	for _, q := range k.requests {
		if q.value > c.allocatable[q.column][r]-c.requested[q.column][r] {
			return false
		}
	}
	return true
}

func explainResources(c *cluster, k *class, r row, reasons []string) []string {
	if c.podsHeld[r]+1 > c.podsMax[r] {
		reasons = append(reasons, "Too many pods")
	}
	for _, q := range k.requests {
		if q.value > c.allocatable[q.column][r]-c.requested[q.column][r] {
			reasons = append(reasons, "Insufficient "+c.resources[q.column])
		}
	}
	return reasons
}
