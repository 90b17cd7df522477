package scheduler

import "testing"

// TestQuestionsAgreeAndLeaveNothing asks about random pods during random histories. Judge must agree with the choice
// that would be made, VerdictOn with Judge, shortages with the room of the node; and what Hold keeps must be gone.
func TestQuestionsAgreeAndLeaveNothing(t *testing.T) {
	failures, short := 0, 0
	for seed := range uint64(20) {
		h := newHistory(t, 2000+seed)
		for range 60 {
			h.step()
			pod := h.randomPod()
			h.placer.Hold(pod)() // makes what is kept for later, such as the topologies of its terms
			before := sweptSizes(h.placer)
			release := h.placer.Hold(pod)
			all, _, failure := h.placer.Judge(pod, 0)
			var want *Failure
			h.placer.cluster.ask(&pod, func(d *demand) { want = h.placer.cluster.choosePlain(d, pod.ID).failure })
			if (failure == nil) != (want == nil) || want != nil && failure.String() != want.String() {
				t.Fatalf("seed %d: %s: judged %v, chosen %v", seed, pod.Name, failure, want)
			}
			if failure != nil {
				failures++
			}
			for _, v := range all {
				if one, known := h.placer.VerdictOn(pod, v.Node); !known || one.Plugin != v.Plugin || one.Rule != v.Rule {
					t.Fatalf("seed %d: %s on %s: %v, alone %v", seed, pod.Name, v.Node, v, one)
				}
				short += h.checkShort(seed, &v)
			}
			release()
			if after := sweptSizes(h.placer); after != before {
				t.Fatalf("seed %d: %s: the question leaves\n%s\nof\n%s", seed, pod.Name, after, before)
			}
		}
	}
	if failures == 0 || short == 0 {
		t.Errorf("%d pods fitted nowhere, %d shortages were compared", failures, short)
	}
}

// sweptSizes returns the sizes of everything that p keeps, after strings that are not in use were dropped.
func sweptSizes(p *Placer) string {
	p.cluster.intern.Most = 0
	p.cluster.sweepStrings()
	return sizesOf(p)
}

// checkShort compares the shortages of a verdict with the room on the node, where no nominated pod counts. It returns
// how many it compared.
func (h *history) checkShort(seed uint64, v *Verdict) (compared int) {
	if (v.Rule == RuleResources) != (len(v.Short) > 0) {
		h.t.Fatalf("seed %d: %+v", seed, v)
	}
	c := h.placer.cluster
	room, known := h.placer.RoomOn(v.Node)
	if !known {
		h.t.Fatalf("seed %d: %s: no such node", seed, v.Node)
	}
	if len(c.nominated[c.rows[v.Node]]) > 0 {
		return 0
	}
	for _, s := range v.Short {
		has := ResourceRoom{Resource: Pods, Allocatable: room.PodsMax, Requested: room.Pods}
		for _, r := range room.Resources {
			if r.Resource == s.Resource {
				has = r
			}
		}
		if s.Resource != has.Resource && s.Allocatable+s.Requested != 0 {
			h.t.Fatalf("seed %d: %s: %+v, the node has %+v", seed, v.Node, s, room)
		}
		if s.Resource == has.Resource && (s.Allocatable != has.Allocatable || s.Requested != has.Requested) ||
			s.Free() >= s.Asked {
			h.t.Fatalf("seed %d: %s: %+v, the node has %+v", seed, v.Node, s, has)
		}
		compared++
	}
	return compared
}
