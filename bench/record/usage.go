package record

import (
	"errors"
	"os"
)

// Usage is CPU seconds up to a moment.
type Usage struct {
	Side    float64            // of the measured process
	Parts   map[string]float64 // of the control plane's processes, by name
	Control float64            // the sum of Parts
	Harness float64            // of this process
	Machine float64            // of all processes; without idle and stolen time
	Idle    float64
	Stolen  float64
}

// Use reads what processes and the machine have used. side 0: none is measured yet.
func Use(parts map[string]int, side int) (u Usage, err error) {
	u.Parts = map[string]float64{}
	add := func(to *float64, pid int) {
		s, e := CPUSeconds(pid)
		*to, err = *to+s, errors.Join(err, e)
	}
	for name, pid := range parts {
		part := 0.0
		add(&part, pid)
		u.Parts[name], u.Control = part, u.Control+part
	}
	if side != 0 {
		add(&u.Side, side)
	}
	add(&u.Harness, os.Getpid())
	for to, read := range map[*float64]func() (float64, error){&u.Machine: MachineSeconds, &u.Idle: IdleSeconds,
		&u.Stolen: StolenSeconds} {
		s, e := read()
		*to, err = s, errors.Join(err, e)
	}
	return u, err
}

// Less returns what was used since an earlier Usage.
func (u Usage) Less(before Usage) Usage {
	parts := map[string]float64{}
	for name, used := range u.Parts {
		parts[name] = used - before.Parts[name]
	}
	return Usage{
		Side:    u.Side - before.Side,
		Parts:   parts,
		Control: u.Control - before.Control,
		Harness: u.Harness - before.Harness,
		Machine: u.Machine - before.Machine,
		Idle:    u.Idle - before.Idle,
		Stolen:  u.Stolen - before.Stolen,
	}
}

// Others is what the measured process, the control plane and this process did not use.
func (u Usage) Others() float64 { return u.Machine - u.Side - u.Control - u.Harness }
