package podlife

import (
	"cmp"
	"fmt"

	"github.com/plimsoll-dev/plimsoll/internal/core/resize"
)

// resize plans the steps from the actual sizes of the pod's cgroups to the desired ones.
func (p *plan) resize() {
	steps, _ := p.resizeSteps()
	if len(steps) == 0 {
		delete(p.life.troubles, resizeKey)
		return
	}
	p.doOnce(Action{Kind: Resize, Steps: steps, Why: fmt.Sprintf("allocated %v", steps)})
}

// resizeSteps also reports whether a running container must be restarted first.
func (p *plan) resizeSteps() (steps []resize.Step, leaving bool) {
	pod := resize.Group{Has: known(p.o.Size, p.o.Spec.Size), Want: p.o.Spec.Size}
	var containers []resize.Group
	for _, s := range p.o.Spec.Containers {
		if c, ok := p.newest(s.Name); ok && c.State == Running && !p.stray(c) {
			g := resize.Group{
				Name: s.Name, ID: c.ID, Has: known(c.Size, s.Size), Want: s.Size,
				Leaving: s.Kind != Ephemeral && (changed(s, c) || needsResizeRestart(s, c)),
			}
			containers, leaving = append(containers, g), leaving || g.Leaving
		}
	}
	return resize.Plan(pod, containers), leaving
}

// known returns the size that a group has. If nothing of it is known, it returns the desired size, so that nothing is
// written. If only a part is not known, that part is written.
func known(has, want resize.Size) resize.Size {
	if has == (resize.Size{}) {
		return want
	}
	return has
}

// resizeConditions returns the conditions of a resize that is pending or in progress, in upstream's words.
func (p *plan) resizeConditions() []Condition {
	var out []Condition
	r := p.o.Resizing
	if p.order != nil {
		return nil
	}
	if r.Pending != nil {
		out = append(out, Condition{
			Type:       ResizePending,
			True:       true,
			Reason:     r.Pending.Reason,
			Message:    r.Pending.Message,
			Generation: r.Pending.Generation,
		})
	}
	if r.Generation == 0 || p.sized() {
		return out
	}
	c := Condition{Type: ResizeInProgress, True: true, Generation: r.Generation}
	if t := p.life.troubles[resizeKey]; t != nil {
		c.Reason, c.Message = "Error", cmp.Or(t.message, t.reason)
	}
	return append(out, c)
}

// sized reports whether everything that runs has its desired size.
func (p *plan) sized() bool {
	for _, s := range p.o.Spec.Containers {
		if c, ok := p.newest(s.Name); ok && c.State == Exited && needsResizeRestart(s, c) && p.restarts(s, c) {
			return false
		}
	}
	steps, leaving := p.resizeSteps()
	return len(steps) == 0 && !leaving
}

// The condition types of a resize.
const (
	ResizePending    = "PodResizePending"
	ResizeInProgress = "PodResizeInProgress"
)

// wanted returns the sizes that a specification asks for, as a text to compare.
func wanted(spec Spec) string {
	text := spec.Size.String()
	for _, s := range spec.Containers {
		text += " " + s.Name + " " + s.Size.String()
	}
	return text
}
