package scheduler

// What the Placer is asked besides where pods go.

// Pending counts the pods in each pool, under upstream's names for them.
func (p *Placer) Pending() map[string]int {
	p.hear(p.heardAt)
	return p.queue.Counts()
}

// Sizes counts what is kept: nodes, pods on them, and of these the assumed ones.
func (p *Placer) Sizes() (nodes, pods, assumed int) {
	return p.cluster.seenCount, len(p.cluster.pods), p.cluster.assumed
}

// Verdicts judges pod against every node, in the order of names: what `why` and `whatif` print.
func (p *Placer) Verdicts(pod Pod) (out []Verdict) {
	p.cluster.ask(&pod, func(d *demand) { out = p.cluster.verdicts(d, pod.ID) })
	return out
}

// Scores rates the feasible nodes for pod, in the order of names. With fewer than two there is nothing to compare, and
// no scores.
func (p *Placer) Scores(pod Pod) (out []NodeScore) {
	p.cluster.ask(&pod, func(d *demand) { out = p.cluster.scores(d, pod.ID) })
	return out
}

// Evictions lists, for a pod that fits nowhere, every node on which evictions would make room, and whose: the fewest
// there.
func (p *Placer) Evictions(pod Pod) (out []Preemption) {
	p.cluster.ask(&pod, func(d *demand) { out = p.cluster.evictions(d, pod.ID) })
	return out
}

// ask compiles pod for a question and lets it go again.
func (c *cluster) ask(pod *Pod, question func(*demand)) {
	k, who := c.compile(pod), c.identify(pod)
	question(c.demandOf(k, who, pod.Owner))
	c.releaseClass(k)
	c.releaseIdentity(who)
}
