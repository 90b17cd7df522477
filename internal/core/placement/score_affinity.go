package placement

func hasPreferred(k *class) bool { return len(k.preferred) > 0 }

// preferredWeight sums the weights of the preferred affinity terms that match.
func preferredWeight(c *cluster, k *class, r row) int64 {
	sum := int64(0)
	for i := range k.preferred {
		if c.termMatches(&k.preferred[i].term, r) {
			sum += k.preferred[i].weight
		}
	}
	return sum
}
