package placement

// passesNUMA demands that the node's agent will find CPUs, memory and devices for the pod as its policies want them:
// the agent's own offer, on what the node will have when all pods before this one have arrived. A node without a report
// is not asked, as upstream asks none.
func passesNUMA(c *cluster, d *demand, r row) bool { return c.judgeNUMA(d, r).reason == "" }

func explainNUMA(c *cluster, d *demand, r row, reasons []string) []string {
	return append(reasons, c.judgeNUMA(d, r).reason)
}

// numaIsFinal: what the empty machine would refuse, no eviction makes possible.
func numaIsFinal(c *cluster, d *demand, r row) bool { return c.judgeNUMA(d, r).final }

func narrowNUMA(c *cluster, d *demand, m mask) {
	if d.numa != nil {
		c.narrowAmong(passesNUMA, d, m, c.marks.reporting)
	}
}
