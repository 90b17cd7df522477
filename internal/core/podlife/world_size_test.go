package podlife

import (
	"time"

	"github.com/plimsoll-dev/plimsoll/internal/core/qos"
	"github.com/plimsoll-dev/plimsoll/internal/core/resize"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

// resize performs the steps of a resize as the shell does: none if memory in use forbids one, otherwise up to the first
// that fails.
func (w *world) resize(a Action, line string) bool {
	var reasons []string
	for _, step := range a.Steps {
		if why := step.WhyNot(w.uses[step.Name]); why != "" {
			reasons = append(reasons, why)
		}
	}
	if len(reasons) > 0 {
		w.said("%s: refused", line)
		w.life.Failed(w.now, a, "Error", resize.NotMade(reasons))
		return false
	}
	f := w.failing(a)
	for i, step := range a.Steps {
		if f != nil && i == len(a.Steps)/2 {
			w.said("%s: fails at %s: %s", line, step, f.reason)
			w.life.Failed(w.now, a, f.reason, f.message)
			return false
		}
		if step.Name == "" {
			w.group = step.After(w.group)
			continue
		}
		for _, b := range w.containers {
			if b.ID == step.ID {
				b.Size = step.After(b.Size)
			}
		}
	}
	w.said("%s", line)
	return true
}

// sizeOf returns the size of a container with these limits, and requests equal to them; zero: no limit.
func sizeOf(cpu unit.MilliCPU, memory unit.Bytes) resize.Size {
	v := qos.Values{CPUShares: unit.Of(qos.SharesOf(cpu))}
	if cpu > 0 {
		v.CPUQuota, v.CPUPeriod = unit.LimitTo(time.Duration(cpu)*100*time.Microsecond), qos.CFSPeriodDefault
	}
	if memory > 0 {
		v.Memory = unit.LimitTo(memory)
	}
	return resize.SizeOf(v)
}

// grant allocates another size to a container, and to the pod's group the sum.
func (w *world) grant(name string, size resize.Size) {
	w.spec(name).Size = size
	w.sizePod()
	w.generation++
	w.o.Resizing.Generation = w.generation
}

// sizePod sets the size of the pod's group to the sum of its containers.
func (w *world) sizePod() {
	var sum qos.Values
	sum.CPUPeriod = qos.CFSPeriodDefault
	for i, s := range w.o.Spec.Containers {
		sum.CPUShares = sum.CPUShares.Plus(s.Size.Shares)
		sum.CPUQuota, sum.Memory = plus(sum.CPUQuota, s.Size.Quota, i), plus(sum.Memory, s.Size.Memory, i)
	}
	w.o.Spec.Size = resize.SizeOf(sum)
}

func plus[T ~int64](sum, more unit.Limit[T], place int) unit.Limit[T] {
	a, bounded := sum.Get()
	b, also := more.Get()
	if also && (bounded || place == 0) {
		return unit.LimitTo(a + b)
	}
	return unit.Unlimited[T]()
}
