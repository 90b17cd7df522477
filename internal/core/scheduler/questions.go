package scheduler

// This file has the Placer's methods that answer questions other than Next.

// Pending returns the number of pods in each pool, by upstream's names.
func (p *Placer) Pending() map[string]int {
	p.evaluateWaiters(p.factAt)
	return p.queue.Counts()
}

// Sizes returns the number of nodes, of pods on them, and of assumed pods among these.
func (p *Placer) Sizes() (nodes, pods, assumed int) {
	return p.cluster.seenCount, len(p.cluster.pods), p.cluster.assumed
}

// Verdicts judges pod for every node, in the order of names. The commands `why` and `whatif` print it.
func (p *Placer) Verdicts(pod Pod) (out []Verdict) {
	p.cluster.ask(&pod, func(d *demand) { out = p.cluster.verdicts(d, pod.ID) })
	return out
}

// Scores returns the scores of the feasible nodes for pod, in the order of names. If fewer than two are feasible,
// nothing is scored.
func (p *Placer) Scores(pod Pod) (out []NodeScore) {
	p.cluster.ask(&pod, func(d *demand) { out = p.cluster.scores(d, pod.ID) })
	return out
}

// Evictions returns, for a pod that fits nowhere, every node on which preemption would make room, with its victims: as
// few as possible on each node.
func (p *Placer) Evictions(pod Pod) (out []Preemption) {
	p.cluster.ask(&pod, func(d *demand) { out = p.cluster.evictions(d, pod.ID) })
	return out
}

// ask calls question with the demand of pod.
func (c *cluster) ask(pod *Pod, question func(*demand)) {
	k, who := c.compile(pod), c.identify(pod)
	question(c.demandOf(k, who, pod.Owner))
	c.dropClass(k)
	c.dropIdentity(who)
}
