package placement

// leastAllocated is the mean, over CPU and memory, of the share of the node that would stay free. A resource the node
// does not have is left out of the mean.
func leastAllocated(c *cluster, k *class, r row) int64 {
	sum, n := int64(0), int64(0)
	for _, x := range [...]struct{ taken, capacity int64 }{
		{c.scoreCPU[r] + int64(k.asked.CPU), c.allocatable[cpuColumn][r]},
		{c.scoreMemory[r] + int64(k.asked.Memory), c.allocatable[memoryColumn][r]},
	} {
		if x.capacity == 0 {
			continue
		}
		n++
		if x.taken <= x.capacity {
			sum += (x.capacity - x.taken) * scoreMax / x.capacity
		}
	}
	if n == 0 {
		return 0
	}
	return sum / n
}
