package placement

// choose judges and scores every node for pod. Either node or failure is set.
func (p *Placer) choose(pod Pod, k *class) (node string, score int64, feasible int, failure *Failure) {
	c := p.cluster
	rows, failure := c.feasible(k)
	switch len(rows) {
	case 0:
		return "", 0, 0, failure
	case 1:
		return c.name[rows[0]], 0, 1, nil
	}
	totals := c.totals(k, rows)
	mine := hashText(string(pod.ID)) ^ p.seed
	best := 0
	for i := 1; i < len(rows); i++ {
		if totals[i] > totals[best] || totals[i] == totals[best] && c.winsTie(rows[i], rows[best], mine) {
			best = i
		}
	}
	return c.name[rows[best]], totals[best], len(rows), nil
}

// feasible returns the rows that no rule rejects, or why there are none.
func (c *cluster) feasible(k *class) ([]row, *Failure) {
	var rows []row
	for i := range c.name {
		if r := row(i); c.seen[r] {
			if rule, _ := c.firstRejection(k, r, nil); rule == 0 {
				rows = append(rows, r)
			}
		}
	}
	if len(rows) > 0 {
		return rows, nil
	}
	return nil, c.explainAll(k)
}

func (c *cluster) explainAll(k *class) *Failure {
	f := &Failure{Nodes: c.seenCount, Reasons: map[string]int{}}
	if k.conflict {
		f.Whole = "pod affinity terms conflict"
	}
	if len(k.unsupported) > 0 {
		f.Whole = unsupportedReason(k)
	}
	buffer := make([]string, 0, 8)
	for i := range c.name {
		if r := row(i); c.seen[r] {
			rule, reasons := c.firstRejection(k, r, buffer[:0])
			f.Rejected |= rule
			for _, reason := range reasons {
				f.Reasons[reason]++
			}
		}
	}
	return f
}

// totals returns the weighted sum of all scorers for each of rows.
func (c *cluster) totals(k *class, rows []row) []int64 {
	totals, one := make([]int64, len(rows)), make([]int64, len(rows))
	for i := range scorers {
		s := &scorers[i]
		if !s.applies(k) {
			continue
		}
		for j, r := range rows {
			one[j] = s.raw(c, k, r)
		}
		s.normalize(one)
		for j := range rows {
			totals[j] += s.weight * one[j]
		}
	}
	return totals
}

// winsTie reports whether row a goes before row b for the pod whose hash is mine: the larger mixed hash, and if these
// are equal too, the smaller name.
func (c *cluster) winsTie(a, b row, mine uint64) bool {
	if x, y := mix(mine^c.hash[a]), mix(mine^c.hash[b]); x != y {
		return x > y
	}
	return c.name[a] < c.name[b]
}

// mix is the finalizer of splitmix64: every input bit reaches every output bit.
func mix(x uint64) uint64 {
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}
