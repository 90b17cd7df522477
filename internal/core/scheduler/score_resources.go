package scheduler

import "math"

// scored is a resource by which nodes are scored, with what the pod requests of it.
type scored struct {
	column int
	value  int64 // what the pod requests, in the resource's base unit
	weight int64
}

// compileScored computes the resources by which nodes are scored for k. An extended resource that the pod does not
// request is left out.
func (c *state) compileScored(k *class) {
	value := func(column int) int64 {
		for _, q := range k.requests {
			if q.column == column {
				return q.value
			}
		}
		return 0
	}
	add := func(list []scored, resource string, weight, asked int64) []scored {
		if asked == 0 && resource != CPU && resource != Memory && resource != EphemeralStorage {
			return list
		}
		return append(list, scored{c.columns.of(resource), asked, weight})
	}
	for _, w := range k.profile.Strategy.Resources {
		asked := value(c.columns.of(w.Resource))
		switch w.Resource {
		case CPU:
			asked = int64(k.incomingLoad.CPU)
		case Memory:
			asked = int64(k.incomingLoad.Memory)
		}
		k.fit = add(k.fit, w.Resource, w.Weight, asked)
	}
	for _, resource := range k.profile.Balanced {
		k.balanced = add(k.balanced, resource, 1, value(c.columns.of(resource)))
	}
}

// resourceScorer prefers nodes by how much of their resources is requested.
type resourceScorer struct{}

func (resourceScorer) about() scoring {
	return scoring{plugin: "NodeResourcesFit", weight: 1, reads: podFields{"Requests", "IncomingLoad", "PlacedLoad"}}
}

func (resourceScorer) applies(*needs) bool { return true }

func (resourceScorer) raw(c *state, n *needs, r row) int64 { return resourceScore(c, n, r) }

// resourceScore computes how much of each resource is requested on the row with the pod, scores that by the profile's
// strategy, and returns the weighted mean. Resources that the node does not have are left out.
func resourceScore(c *state, n *needs, r row) int64 {
	strategy := &n.profile.Strategy
	sum, weights := int64(0), int64(0)
	for i := range n.fit {
		s := &n.fit[i]
		capacity := c.columns.has(s.column, r)
		if capacity == 0 {
			continue
		}
		taken := s.value
		switch s.column {
		case cpuColumn:
			taken += c.scoreCPU[r]
		case memoryColumn:
			taken += c.scoreMemory[r]
		default:
			taken += c.columns.takes(s.column, r)
		}
		one := int64(0)
		switch strategy.Type {
		case MostAllocated:
			one = min(taken, capacity) * scoreMax / capacity
		case RequestedToCapacityRatio:
			if one = shapeAt(strategy.Shape, taken, capacity); one <= 0 {
				continue // as upstream: the resource is left out of the mean
			}
		default:
			one = max(capacity-taken, 0) * scoreMax / capacity
		}
		sum, weights = sum+one*s.weight, weights+s.weight
	}
	if weights == 0 {
		return 0
	}
	if strategy.Type == RequestedToCapacityRatio {
		return int64(math.Round(float64(sum) / float64(weights)))
	}
	return sum / weights
}

// shapeAt returns the value of the piecewise linear function shape at the utilization taken/capacity.
func shapeAt(shape []ShapePoint, taken, capacity int64) int64 {
	percent := int64(100)
	if taken <= capacity {
		percent = taken * 100 / capacity
	}
	for i, p := range shape {
		if percent > p.Utilization {
			continue
		}
		if i == 0 {
			return p.Score
		}
		before := shape[i-1]
		return before.Score + (p.Score-before.Score)*(percent-before.Utilization)/(p.Utilization-before.Utilization)
	}
	return shape[len(shape)-1].Score
}

// balanceScorer prefers nodes where the pod makes the utilization of different resources more equal.
type balanceScorer struct{}

func (balanceScorer) about() scoring {
	return scoring{plugin: "NodeResourcesBalancedAllocation", weight: 1, reads: podFields{"Requests"}}
}

// applies is false for a pod that requests none of the resources: scoring it would put all such pods on the same nodes.
func (balanceScorer) applies(n *needs) bool {
	for i := range n.balanced {
		if n.balanced[i].value != 0 {
			return true
		}
	}
	return false
}

func (balanceScorer) raw(c *state, n *needs, r row) int64 { return balanceScore(c, n, r) }

// balanceScore scores how much the pod makes the utilization of resources more equal. A pod that changes nothing about
// it gets 75. Requests count as they are, without the defaults that LeastAllocated uses.
func balanceScore(c *state, n *needs, r row) int64 {
	if len(n.balanced) == 2 {
		a, b := &n.balanced[0], &n.balanced[1]
		if haveA, haveB := c.columns.has(a.column, r), c.columns.has(b.column, r); haveA > 0 && haveB > 0 {
			return balanceOfTwo(a.value, c.columns.takes(a.column, r), haveA, b.value, c.columns.takes(b.column, r), haveB)
		}
	}
	with, without := balance(c, n, r, true), balance(c, n, r, false)
	return balanceGain(with, without)
}

// balanceOfTwo is balanceScore for two resources, which nearly all profiles have. Its parameters are, for each, what
// the pod adds, what is requested already, and the allocatable amount.
func balanceOfTwo(addA, takenA, haveA, addB, takenB, haveB int64) int64 {
	a, b := float64(haveA), float64(haveB)
	with := evenness(min(float64(takenA+addA)/a, 1), min(float64(takenB+addB)/b, 1))
	without := evenness(min(float64(takenA)/a, 1), min(float64(takenB)/b, 1))
	return balanceGain(with, without)
}

// evenness is balance for the utilization of two resources.
func evenness(shareA, shareB float64) int64 {
	return int64((1 - math.Abs((shareA-shareB)/2)) * scoreMax)
}

// balanceGain returns the score from the values of balance with the pod and without it.
func balanceGain(with, without int64) int64 {
	return scoreMax/2 + (scoreMax/2+with-without)/2
}

// balance returns scoreMax less the standard deviation, in percent, of the utilization of the resources.
func balance(c *state, n *needs, r row, withPod bool) int64 {
	var few [4]float64
	shares, sum := few[:0], 0.0
	for i := range n.balanced {
		s := &n.balanced[i]
		capacity := c.columns.has(s.column, r)
		if capacity == 0 {
			continue
		}
		taken := c.columns.takes(s.column, r)
		if withPod {
			taken += s.value
		}
		share := min(float64(taken)/float64(capacity), 1)
		shares, sum = append(shares, share), sum+share
	}
	deviation := 0.0
	switch {
	case len(shares) == 2:
		deviation = math.Abs((shares[0] - shares[1]) / 2)
	case len(shares) > 2:
		mean, squares := sum/float64(len(shares)), 0.0
		for _, share := range shares {
			squares += (share - mean) * (share - mean)
		}
		deviation = math.Sqrt(squares / float64(len(shares)))
	}
	return int64((1 - deviation) * scoreMax)
}
