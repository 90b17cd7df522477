package placement

// cordonTaint is what a pod must tolerate to go to a cordoned node.
var cordonTaint = Taint{Key: "node.kubernetes.io/unschedulable", Effect: NoSchedule}

// passesCordon keeps pods off cordoned nodes. The field counts by itself: the taint of the same meaning follows it only
// after a controller has seen it.
func passesCordon(c *cluster, d *demand, r row) bool { return !c.unschedulable[r] || d.toleratesNode }

func narrowCordon(c *cluster, d *demand, m mask) {
	if !d.toleratesNode {
		m.less(c.marks.cordoned)
	}
}
