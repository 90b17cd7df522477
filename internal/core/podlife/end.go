package podlife

import (
	"cmp"
	"slices"
	"time"
)

// end plans the end of the pod: first the main containers, then the sidecars in reverse order, then the sandbox. The
// preStop hooks of all of them begin at once. If the pod object was deleted, it also removes all containers and
// sandboxes.
func (p *plan) end(order StopOrder) {
	if p.stopContainers(order) {
		return
	}
	for _, s := range p.o.Sandboxes {
		if s.State == SandboxReady {
			p.doOnce(Action{Kind: StopSandbox, ID: s.ID, Why: "its containers have ended"})
		}
	}
	if !order.Remove {
		return
	}
	for _, s := range p.o.Sandboxes {
		p.doOnce(Action{Kind: RemoveSandbox, ID: s.ID, Why: "its pod was deleted"}) // removes its containers too
	}
	if len(p.o.Sandboxes) > 0 {
		return
	}
	for _, c := range p.o.Containers {
		p.remove(c, "its pod was deleted")
	}
	if len(p.o.Containers) == 0 {
		p.doOnce(Action{Kind: Finish, Why: "nothing of the pod is left in the runtime"})
	}
}

// sidecarGraceMin is the grace period that a sidecar gets even if the main containers used up the pod's grace period
// (kubelet: minimumGracePeriodInSeconds).
const sidecarGraceMin = 2 * time.Second

// stopContainers stops the next group of containers. It reports whether a container is still alive.
func (p *plan) stopContainers(order StopOrder) bool {
	grace := max(order.Deadline.Sub(p.now), 0)
	place := map[string]int{} // of sidecars, in the spec
	for i, s := range p.o.Spec.Containers {
		if s.Kind == Sidecar {
			place[s.Name] = i
		}
	}
	var group, sidecars []Container
	for _, c := range p.o.Containers {
		if _, sidecar := place[c.Name]; c.alive() && sidecar {
			sidecars = append(sidecars, c)
		} else if c.alive() {
			group = append(group, c)
		}
	}
	if len(group) == 0 && len(sidecars) > 0 {
		slices.SortFunc(sidecars, func(a, b Container) int {
			return cmp.Or(place[b.Name]-place[a.Name], cmp.Compare(a.ID, b.ID))
		})
		group, sidecars = sidecars[:1], sidecars[1:]
		grace = max(grace, sidecarGraceMin)
	}
	for _, c := range sidecars {
		if c.State == Running && !c.PreStop && p.o.Spec.Containers[place[c.Name]].PreStop && order.Deadline > p.now {
			p.doOnce(Action{
				Kind: BeginPreStop, Container: c.Name, ID: c.ID, Grace: order.Deadline.Sub(p.now), Why: "its pod ends",
			})
		}
	}
	slices.SortFunc(group, func(a, b Container) int {
		return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.ID, b.ID))
	})
	for _, c := range group {
		p.doOnce(Action{
			Kind: StopContainer, Container: c.Name, ID: c.ID, Grace: grace, NoHook: order.Deadline <= p.now,
			Why: cmp.Or(order.Reason, "its pod ends"),
		})
	}
	return len(group) > 0
}
