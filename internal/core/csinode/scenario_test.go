package csinode

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

// TestScenarios plays testdata/*.txt in virtual time. After each command it prints what is to be done, with the time
// since the start. CONTRIBUTING.md says how to rewrite outcomes. The commands:
//
//	node                       a new agent; there is no Node object yet
//	exists                     there is a Node object, perhaps a new one
//	add DRIVER [max=N] [period=TIME]   a driver registers
//	remove DRIVER              it leaves
//	period DRIVER TIME         its CSIDriver object changed
//	exhausted DRIVER           a volume could not be attached: the node has no room
//	says DRIVER N, silent DRIVER   the answer to another question, or none
//	written, conflict, failed  the outcome of the write
//	run TIME                   time passes
func TestScenarios(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		p := &player{}
		datadriven.RunTest(t, path, p.play)
	})
}

// player plays one scenario.
type player struct {
	s    *State
	now  unit.Instant
	wake unit.Instant
}

const start = unit.Instant(time.Second)

func (p *player) play(t *testing.T, d *datadriven.TestData) string {
	name := ""
	if len(d.CmdArgs) > 0 {
		name = d.CmdArgs[0].Key
	}
	failed := errors.New("failed")
	switch d.Cmd {
	case "node":
		p.s = New()
		p.now = start
	case "exists":
		p.s.NodeExists()
	case "add":
		info := Info{NodeID: "n"}
		var period time.Duration
		for _, arg := range d.CmdArgs[1:] {
			if arg.Key == "max" {
				info.VolumesMax = number(t, arg.Vals[0])
			} else {
				period = duration(t, arg.Vals[0])
			}
		}
		p.s.Add(p.now, name, info, period)
	case "remove":
		p.s.Remove(name)
	case "period":
		p.s.SetPeriod(p.now, name, duration(t, d.CmdArgs[1].Key))
	case "exhausted":
		p.s.Exhausted(p.now, name)
	case "says":
		p.s.Asked(p.now, name, Info{NodeID: "n", VolumesMax: number(t, d.CmdArgs[1].Key)}, nil)
	case "silent":
		p.s.Asked(p.now, name, Info{}, failed)
	case "written":
		p.s.Written(p.now, false, nil)
	case "conflict":
		p.s.Written(p.now, true, failed)
	case "failed":
		p.s.Written(p.now, false, failed)
	case "run":
		return p.run(duration(t, name))
	default:
		t.Fatalf("%s: unknown command %q", d.Pos, d.Cmd)
	}
	return p.step()
}

func number(t *testing.T, text string) int64 {
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func duration(t *testing.T, text string) time.Duration {
	d, err := time.ParseDuration(text)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func (p *player) step() string {
	d := p.s.Step(p.now)
	p.wake = d.Wake
	var out strings.Builder
	for _, name := range d.Ask {
		fmt.Fprintf(&out, "%v ask %s\n", p.now.Sub(start), name)
	}
	if d.Write {
		entries, _ := Merge(nil, p.s.Drivers(), p.s.Removed())
		fmt.Fprintf(&out, "%v write", p.now.Sub(start))
		for _, e := range entries {
			fmt.Fprintf(&out, " %s=%d", e.Name, e.Count)
		}
		for _, name := range p.s.Removed() {
			fmt.Fprintf(&out, " -%s", name)
		}
		out.WriteString("\n")
	}
	return out.String()
}

// run goes from one wake-up to the next, as a shell does.
func (p *player) run(d time.Duration) string {
	out := ""
	for end := p.now.Add(d); ; {
		if p.wake.IsZero() || p.wake > end {
			p.now = end
			return out + p.step()
		}
		p.now = p.wake
		out += p.step()
	}
}
