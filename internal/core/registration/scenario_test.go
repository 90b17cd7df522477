package registration

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

// TestScenarios plays testdata/*.txt in virtual time. After each command it prints the actions that follow, each with
// the time since the start. CONTRIBUTING.md says how to rewrite outcomes. The commands:
//
//	registry                          an empty directory
//	list PATH[#MADE] ...              the sockets that there are now
//	answer PATH [kind=K] [name=N] [endpoint=E] [versions=V,...]   what a plugin says it is; kind is CSIPlugin if not given
//	silent PATH                       it does not answer
//	works PATH, fails PATH WHY        the outcome of its registration
//	hears PATH, deaf PATH             it was told, or could not be
//	run TIME                          time passes
//	plugins                           the registered plugins
func TestScenarios(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		p := &player{}
		datadriven.RunTest(t, path, p.play)
	})
}

// player plays one scenario.
type player struct {
	r     *Registry
	now   unit.Instant
	wake  unit.Instant
	there map[string]Socket
}

const start = unit.Instant(time.Second)

func (p *player) play(t *testing.T, d *datadriven.TestData) string {
	path := ""
	if len(d.CmdArgs) > 0 {
		path = d.CmdArgs[0].Key
	}
	s := p.there[path]
	switch d.Cmd {
	case "registry":
		p.r = New()
		p.now = start
		p.there = map[string]Socket{}
	case "list":
		p.list(t, d)
	case "answer":
		p.r.Asked(p.now, s, answerOf(d), nil)
	case "silent":
		p.r.Asked(p.now, s, Answer{}, errors.New("silent"))
	case "works":
		p.r.Registered(p.now, s, nil)
	case "fails":
		p.r.Registered(p.now, s, errors.New(d.CmdArgs[1].Key))
	case "hears":
		p.r.Told(p.now, s, nil)
	case "deaf":
		p.r.Told(p.now, s, errors.New("deaf"))
	case "run":
		return p.run(t, path)
	case "plugins":
		out := ""
		for _, q := range p.r.List() {
			out += fmt.Sprintf("%s %s %s at %s\n", q.Kind, q.Name, q.Version, q.Endpoint)
		}
		return out
	default:
		t.Fatalf("%s: unknown command %q", d.Pos, d.Cmd)
	}
	return p.step()
}

func (p *player) list(t *testing.T, d *datadriven.TestData) {
	var all []Socket
	for _, a := range d.CmdArgs {
		path, made, _ := strings.Cut(a.Key, "#")
		s := Socket{Path: path}
		if made != "" {
			n, err := strconv.ParseUint(made, 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			s.Made = n
		}
		all = append(all, s)
		if _, known := p.there[path]; !known {
			p.there[path] = s
		}
	}
	p.r.Listed(p.now, all)
}

func answerOf(d *datadriven.TestData) Answer {
	a := Answer{Kind: CSI}
	for _, arg := range d.CmdArgs[1:] {
		value := strings.Join(arg.Vals, ",")
		switch arg.Key {
		case "kind":
			a.Kind = Kind(value)
		case "name":
			a.Name = value
		case "endpoint":
			a.Endpoint = value
		case "versions":
			a.Versions = arg.Vals
		}
	}
	return a
}

// step prints what is to be done now. A socket that is asked is the one that later outcomes are about.
func (p *player) step() string {
	d := p.r.Step(p.now)
	p.wake = d.Wake
	out := ""
	at := p.now.Sub(start)
	for _, q := range d.Unregister {
		out += fmt.Sprintf("%v unregister %s %s\n", at, q.Kind, q.Name)
	}
	for _, s := range d.Ask {
		out += fmt.Sprintf("%v ask %s#%d\n", at, s.Path, s.Made)
		p.there[s.Path] = s
	}
	for _, q := range d.Register {
		out += fmt.Sprintf("%v register %s %s %s at %s\n", at, q.Kind, q.Name, q.Version, q.Endpoint)
	}
	for _, x := range d.Tell {
		out += fmt.Sprintf("%v tell %s %t %s\n", at, x.Socket.Path, x.OK, x.Why)
	}
	return out
}

// run goes from one wake-up to the next, as a shell does.
func (p *player) run(t *testing.T, text string) string {
	d, err := time.ParseDuration(text)
	if err != nil {
		t.Fatal(err)
	}
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
