package volume

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

// TestScenarios plays testdata/*.txt in virtual time. After each command it steps and prints the calls, the notices,
// and what changed of why pods wait. CONTRIBUTING.md says how to rewrite outcomes. The commands:
//
//	node                                     a new agent without knowledge
//	driver NAME [gone]                       a driver registers, or goes
//	want POD VOLUME [driver=D] [stages] [attaches] [exclusive] [republish] [grows] [expand=BYTES] [label=L]
//	release POD                              its containers have ended
//	found VOLUME yes|uncertain [stages ...]  it was staged before this agent began
//	found VOLUME yes|uncertain pod=POD ...   it was published to a pod before
//	known                                    all pods of the node are known
//	reported VOLUME ...                      the Node's status says that they are in use
//	attached VOLUME ...                      the Node's status says that they are attached
//	told VOLUME ...                          others tell which volumes are to grow, and these are
//	told off                                 nobody tells
//	missed                                   a volume was to grow, and nobody had told
//	ended CALL done|failed|unclear|unsent|infeasible
//	run TIME                                 time passes, from one wake-up to the next
//	in-use                                   what the node reports as in use
func TestScenarios(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		p := &player{}
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			p.t, p.d = t, d
			return p.play()
		})
	})
}

type player struct {
	t     *testing.T
	d     *datadriven.TestData
	r     *Reconciler
	now   unit.Instant
	calls map[int64]Call
	waits map[string]Reason
	out   strings.Builder
}

var (
	states   = map[string]State{"yes": Yes, "uncertain": Uncertain}
	outcomes = map[string]Outcome{
		"done": Done, "failed": Failed, "unclear": Unclear, "unsent": Unsent, "infeasible": Infeasible,
	}
	verbs = map[Verb]string{
		Stage: "stage", Publish: "publish", Unpublish: "unpublish", Unstage: "unstage", Expand: "expand",
	}
)

func (c Call) String() string {
	text := fmt.Sprintf("call %d: %s %s", c.ID, verbs[c.Verb], c.Volume)
	if c.Pod != "" {
		text += " pod " + string(c.Pod)
	}
	if c.Again {
		text += " again"
	}
	if c.Size > 0 {
		text += fmt.Sprintf(" to %d", c.Size)
	}
	return text
}

func (p *player) play() string {
	p.out.Reset()
	var words []string
	spec := Spec{Driver: "d"}
	pod := Pod("")
	for _, a := range p.d.CmdArgs {
		value := strings.Join(a.Vals, ",")
		switch a.Key {
		case "driver":
			spec.Driver = value
		case "stages":
			spec.Stages = true
		case "attaches":
			spec.Attaches = true
		case "exclusive":
			spec.Exclusive = true
		case "republish":
			spec.Republish = true
		case "label":
			spec.Label = value
		case "grows":
			spec.Grows = true
		case "expand":
			_, err := fmt.Sscan(value, &spec.Expand)
			p.must(err == nil, "expand=%s", value)
		case "pod":
			pod = Pod(value)
		default:
			words = append(words, a.Key)
		}
	}
	switch p.d.Cmd {
	case "node":
		p.r, p.now, p.calls, p.waits = New(), unit.Instant(time.Second), map[int64]Call{}, map[string]Reason{}
	case "driver":
		p.r.Driver(words[0], len(words) == 1)
	case "want":
		p.r.Want(p.now, Pod(words[0]), Name(words[1]), spec)
	case "release":
		p.r.Release(Pod(words[0]))
	case "found":
		state, ok := states[words[1]]
		p.must(ok, "state %s", words[1])
		if pod != "" {
			p.r.FoundPublished(Name(words[0]), pod, spec, state)
		} else {
			p.r.Found(Name(words[0]), spec, state)
		}
	case "known":
		p.r.Known()
	case "reported":
		p.r.Reported(namesOf(words))
	case "attached":
		p.r.Attached(namesOf(words))
	case "told":
		off := len(words) == 1 && words[0] == "off"
		if off {
			words = nil
		}
		p.r.Told(!off, namesOf(words))
	case "missed":
		p.r.Missed()
	case "ended":
		p.ended(words[0], words[1])
	case "run":
		p.run(words[0])
		return p.out.String()
	case "in-use":
		names, known := p.r.InUse()
		return fmt.Sprintf("%v, all of it: %t\n", names, known)
	default:
		p.d.Fatalf(p.t, "unknown command %q", p.d.Cmd)
	}
	p.step("")
	return p.out.String()
}

func namesOf(words []string) (names []Name) {
	for _, w := range words {
		names = append(names, Name(w))
	}
	return names
}

func (p *player) must(ok bool, format string, args ...any) {
	p.t.Helper()
	if !ok {
		p.d.Fatalf(p.t, format, args...)
	}
}

func (p *player) ended(id, how string) {
	var n int64
	_, err := fmt.Sscan(id, &n)
	c, there := p.calls[n]
	outcome, known := outcomes[how]
	p.must(err == nil && there && known, "no call %s, or no outcome %s", id, how)
	delete(p.calls, n)
	p.r.Ended(p.now, n, c.Volume, outcome)
}

// run goes from one wake-up to the next, as a shell does.
func (p *player) run(text string) {
	d, err := time.ParseDuration(text)
	p.must(err == nil, "%v", err)
	start := p.now
	for end := p.now.Add(d); ; {
		wake := p.r.Step(p.now).Wake
		if wake.IsZero() || wake > end {
			p.now = end
			return
		}
		p.must(wake > p.now, "woken at %v for %v", p.now, wake)
		p.now = wake
		p.step(fmt.Sprintf("+%v ", p.now.Sub(start)))
	}
}

func (p *player) step(prefix string) {
	decided := p.r.Step(p.now)
	for _, c := range decided.Calls {
		p.calls[c.ID] = c
		fmt.Fprintf(&p.out, "%s%v\n", prefix, c)
	}
	for _, look := range decided.Looks {
		told := ""
		if look.Told {
			told = ", as told"
		}
		fmt.Fprintf(&p.out, "%slook at the sizes of %s%s\n", prefix, look.Volume, told)
	}
	for _, n := range decided.Notices {
		late := ""
		if n.Late {
			late = "late: "
		}
		fmt.Fprintf(&p.out, "%stell pod %s of %s: %s%s\n", prefix, n.Pod, n.Volume, late, n.Why)
	}
	var news []string
	seen := map[string]bool{}
	for name, v := range p.r.volumes {
		for pod, u := range v.uses {
			if !u.wanted {
				continue
			}
			key := fmt.Sprintf("pod %s, %s", pod, name)
			seen[key] = true
			why := p.r.Waits(p.now, pod, name)
			if had, known := p.waits[key]; known && had == why {
				continue
			}
			p.waits[key] = why
			news = append(news, fmt.Sprintf("%s: %s", key, cmp.Or(string(why), "there")))
		}
	}
	for key := range p.waits {
		if !seen[key] {
			delete(p.waits, key)
		}
	}
	slices.Sort(news)
	for _, n := range news {
		fmt.Fprintf(&p.out, "%s%s\n", prefix, n)
	}
}
