package scheduler

// A trial is a question about rows as they would be: without pods that could be evicted (state.evicting), or with
// pods that are only nominated there (state.beside, within the other or by itself). While it is on, what is counted
// is as if; that a row has changed is not noted, and nobody who waits hears of it. end undoes all of it.
//
// The counts themselves are changed, and changed back: an overlay beside them would make each of the many reads dearer,
// and there are few trials for each decision.
type trial struct {
	c  *state
	on bool
	// nobodyShuns is what demand.nobodyShuns was when the trial began.
	nobodyShuns bool
	pods        []*held // that count otherwise, or did; see held.tried
}

// begin begins a trial for d.
func (t *trial) begin(c *state, d *demand) {
	t.nobodyShuns = d.nobodyShuns(c)
	t.c, t.on, t.pods = c, true, t.pods[:0]
}

// count lets h count once more (sign 1) or once less.
func (t *trial) count(h *held, sign int8) {
	if h.tried == 0 {
		t.pods = append(t.pods, h)
	}
	h.tried += sign
	t.c.lift(h, int64(sign))
}

// end lets everybody count as before.
func (t *trial) end() {
	for _, h := range t.pods {
		if h.tried != 0 {
			t.c.lift(h, -int64(h.tried))
			h.tried = 0
		}
	}
	t.on = false
}

// lift counts h, for a moment.
func (c *state) lift(h *held, sign int64) {
	c.countOnRow(h.Row, h.class, sign)
	c.Census.Count(&h.Pod, int32(sign))
	c.liftNUMA(h, sign)
	c.storage.Use(&h.class.wants, int32(sign), true)
}
