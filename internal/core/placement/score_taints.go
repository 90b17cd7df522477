package placement

// softTaintsAgainst counts the PreferNoSchedule taints that the pod does not tolerate.
func softTaintsAgainst(c *cluster, k *class, r row) int64 {
	n := int64(0)
	for _, t := range c.softTaints[r] {
		if !tolerated(k.tolerations, t) {
			n++
		}
	}
	return n
}
