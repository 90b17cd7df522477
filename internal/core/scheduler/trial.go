package scheduler

// A trial evaluates rules for a state that differs from the real one: without pods that could be evicted
// (state.evicting), or with pods that are nominated (state.nominating, alone or within the other trial). During a
// trial, counts are those of the trial, but no row is recorded as changed and no waiter is notified. end restores
// everything.
//
// The counts themselves are changed and changed back. An overlay would make each of the many reads more expensive, and
// there are few trials per decision.
type trial struct {
	c  *state
	on bool
	// noAntiAffinity is the result of demand.noAntiAffinity when the trial began.
	noAntiAffinity bool
	pods           []*placedPod // pods whose count was changed in the trial; see placedPod.tried
}

// begin begins a trial for d.
func (t *trial) begin(c *state, d *demand) {
	t.noAntiAffinity = d.noAntiAffinity(c)
	t.c = c
	t.on = true
	t.pods = t.pods[:0]
}

// count counts h once more (sign 1) or once less (sign -1).
func (t *trial) count(h *placedPod, sign int8) {
	if h.tried == 0 {
		t.pods = append(t.pods, h)
	}
	h.tried += sign
	t.c.countInTrial(h, int64(sign))
}

// end restores all counts.
func (t *trial) end() {
	for _, h := range t.pods {
		if h.tried != 0 {
			t.c.countInTrial(h, -int64(h.tried))
			h.tried = 0
		}
	}
	t.on = false
}

// countInTrial adds or subtracts h for a trial.
func (c *state) countInTrial(h *placedPod, sign int64) {
	c.countOnRow(h.Row, h.class, sign)
	c.Census.Count(&h.Pod, int32(sign))
	c.numaInTrial(h, sign)
	c.storage.Use(&h.class.mounts, int32(sign), true)
}
