package top

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

var noon = time.Date(2026, 11, 26, 12, 0, 0, 0, time.UTC)

// pretended is a cluster of four nodes: one with everything, one of another agent under pressure, one that is away and
// one that is cordoned.
func pretended() *State {
	whole := Amounts{CPU: 16 * unit.CPU, Memory: 64 * unit.GiB, Disk: 500 * unit.GiB, Pods: 110}
	rest := Amounts{CPU: 15 * unit.CPU, Memory: 60 * unit.GiB, Disk: 450 * unit.GiB, Pods: 110}
	node := func(name string, asked, used int64) *Node {
		return &Node{
			Name:        name,
			Kubelet:     "v1.36.3+plimsoll.0.1.0",
			Ours:        true,
			State:       "Ready",
			Capacity:    whole,
			Allocatable: rest,
			Requested: &Amounts{CPU: unit.MilliCPU(asked) * 100, Memory: unit.Bytes(asked) * unit.GiB / 4,
				Disk: 10 * unit.GiB, Pods: asked / 10},
			Used: Usage{At: noon, CPU: unit.MilliCPU(used) * 100, Memory: unit.Bytes(used) * unit.GiB / 3},
		}
	}
	s := &State{
		Now:       noon.Add(90 * time.Second),
		Synced:    true,
		Since:     noon.Add(89 * time.Second),
		Measured:  true,
		NodeCount: 4,
		PodCount:  3,
		Waiting:   1,
		Nodes:     []*Node{node("n1", 120, 60), node("n2", 30, 90), node("n3", 0, 0), node("n4", 10, 5)},
		Pods: []*Pod{
			{ID: "shop/db-0", Namespace: "shop", Name: "db-0", Node: "n1", State: "Running", Created: noon.Add(-50 * time.Hour),
				Requested: Amounts{CPU: 4000, Memory: 8 * unit.GiB},
				Used:      Usage{At: noon, CPU: 3120, Memory: 7*unit.GiB + 300*unit.MiB}},
			{ID: "shop/web-1", Namespace: "shop", Name: "web-1", Node: "n1", State: "CrashLoopBackOff", Restarts: 17,
				Created: noon.Add(-30 * time.Minute), Requested: Amounts{CPU: 250, Memory: 100 * unit.MiB}},
			{ID: "team/batch-x", Namespace: "team", Name: "batch-x", State: "Pending", Created: noon.Add(-5 * time.Second),
				Requested: Amounts{CPU: 64000, Memory: unit.GiB}},
		},
		Decisions: []Decision{
			{Time: noon.Add(-time.Hour), From: "node-controller", About: "n3", Text: "NodeNotReady: it is silent", Bad: true},
			{Time: noon, From: "scheduler", About: "team/batch-x", Pod: true, Text: "0/4 nodes: insufficient\x1b[31m cpu",
				Bad: true},
			{Time: noon.Add(80 * time.Second), From: "agent", About: "shop/web-1", Pod: true, Text: "started 容器 web"},
		},
	}
	other := s.Nodes[1]
	other.Ours, other.Kubelet, other.Pressure = false, "v1.36.3", []string{"memory", "pid"}
	s.Nodes[2].State = "Unknown"
	s.Nodes[2].Used = Usage{}
	s.Nodes[2].Taints = []string{"node.kubernetes.io/unreachable:NoExecute"}
	s.Nodes[3].Cordoned = true
	return s
}

// detailOf is what is known of node n1: a stall that ends, two NUMA nodes with CPUs of two containers.
func detailOf() *Detail {
	d := &Detail{Node: "n1", Policy: "SingleNUMANodeContainerLevel"}
	for i := range 30 {
		stall := NoStall
		stall.CPUSome = float64(i)
		stall.MemorySome = 40 / float64(i+1)
		stall.MemoryFull = 0
		d.Samples = append(d.Samples, Sample{Stall: stall,
			Used: Usage{At: noon.Add(time.Duration(i) * time.Second), CPU: unit.MilliCPU(5000 + 100*i), Memory: 20 * unit.GiB}})
	}
	for n := range 2 {
		one := NUMANode{ID: n, Memory: 32 * unit.GiB, Free: 30 * unit.GiB}
		for i := range 8 {
			c := CPU{ID: 8*n + i}
			switch {
			case c.ID == 0:
				c.Kept = true
			case c.ID >= 2 && c.ID < 6:
				c.Owner = "shop/db-0/postgres"
			case c.ID == 12 || c.ID == 14:
				c.Owner = "shop/web-1/app"
			}
			one.CPUs = append(one.CPUs, c)
		}
		d.NUMA = append(d.NUMA, one)
	}
	d.Decisions = []Decision{{Time: noon, From: "agent", About: "shop/db-0", Pod: true, Text: "admitted: CPUs 2-5"},
		{Time: noon.Add(time.Minute), From: "agent", About: "shop/web-1", Pod: true,
			Text: "container app: exit code 1", Bad: true}}
	return d
}

// TestScreens plays keys and shows screens. Commands:
//
//	screen WIDTHxHEIGHT   what is on the terminal; the selected row begins with »
//	keys KEY...           presses keys, and says what the program has to do
//	text                  what is printed without a terminal
//	state CHANGE...       away: the API server does not answer; blind: pods may not be read; detail: the agent of n1 has
//	                      answered; nothing: nothing was read yet; whole: all is well again
//	story LINE            what is known of the pod
func TestScreens(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		v, s := &View{}, pretended()
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			switch d.Cmd {
			case "screen":
				if _, err := fmt.Sscanf(d.CmdArgs[0].Key, "%dx%d", &v.Width, &v.Height); err != nil {
					t.Fatal(err)
				}
				return drawn(t, v, s)
			case "keys":
				var orders []string
				for _, a := range d.CmdArgs {
					orders = append(orders, [...]string{"-", "quit", "ask for the story of " + v.Pod}[v.Key(a.Key, s)])
				}
				return strings.Join(orders, " ")
			case "text":
				return string(v.Text(s))
			case "story":
				v.Story = strings.Split(d.Input, "\n")
			case "state":
				for _, a := range d.CmdArgs {
					change(t, s, a.Key)
				}
			default:
				t.Fatalf("%s: want screen, keys, text, state or story", d.Cmd)
			}
			return ""
		})
	})
}

func change(t *testing.T, s *State, how string) {
	switch how {
	case "away":
		s.Away = "dial tcp 10.0.0.1:6443: connect: connection refused"
		s.Now = s.Since.Add(45 * time.Second)
	case "blind":
		for i := range s.Nodes {
			s.Nodes[i].Requested = nil
			s.Nodes[i].Used = Usage{}
		}
		s.Lacks = []Lack{{What: "pods, and what they request", Why: `pods is forbidden: User "reader" cannot list`},
			{What: "what nodes use", Why: "the cluster has no metrics.k8s.io (metrics-server)"}}
		s.Pods = nil
		s.PodCount = 0
		s.Blind = true
	case "detail":
		s.Detail = detailOf()
		s.Pods = s.Pods[:2]
	case "nothing":
		*s = State{Now: s.Now}
	case "whole":
		*s = *pretended()
	default:
		t.Fatalf("state %s: not known", how)
	}
}

// drawn is the screen as text. It checks that it fits.
func drawn(t *testing.T, v *View, s *State) string {
	lines := v.Lines(s)
	if len(lines) > v.Height {
		t.Errorf("%d lines on a terminal of %d", len(lines), v.Height)
	}
	var out []string
	for _, l := range lines {
		text := l.String()
		if n := columns(text); n > v.Width {
			t.Errorf("%d columns on a terminal of %d: %q", n, v.Width, text)
		}
		mark := " "
		if len(l) == 1 && l[0].Style == Chosen {
			mark = "»"
		}
		if strings.TrimSpace(text) == "" {
			mark, text = "~", ""
		}
		out = append(out, strings.TrimRight(mark+text, " "))
	}
	return strings.Join(out, "\n")
}

// TestEveryTerminal: on every size of terminal, every page fits, also after any key.
func TestEveryTerminal(t *testing.T) {
	s := pretended()
	s.Detail = detailOf()
	s.Lacks = []Lack{{What: "x", Why: strings.Repeat("long ", 50)}}
	const keys = "down enter down end pgup up home down enter esc esc 2 s s S r / n enter 3 down enter ? esc tab tab x " +
		"pgdown end G g k j backspace"
	for width := 1; width < 180; width += 7 {
		for height := 1; height < 60; height += 5 {
			v := &View{}
			v.Width, v.Height = width, height
			for _, key := range strings.Fields(keys) {
				v.Key(key, s)
				drawn(t, v, s)
			}
		}
	}
}

// TestAmounts: amounts in columns have few characters.
func TestAmounts(t *testing.T) {
	for _, c := range []struct{ have, want string }{
		{cpuText(0), "0"}, {cpuText(250), "250m"}, {cpuText(1500), "1.5"}, {cpuText(123456), "123"}, {cpuText(-500), "-500m"},
		{bytesText(0), "0"}, {bytesText(512), "512"}, {bytesText(unit.GiB), "1Gi"}, {bytesText(1000 * unit.MiB), "1.0Gi"},
		{bytesText(31*unit.GiB + 300*unit.MiB), "31.3Gi"}, {bytesText(310*unit.GiB + 300*unit.MiB), "310Gi"},
		{ageText(-time.Second), "0s"}, {ageText(119 * time.Second), "119s"}, {ageText(50 * time.Hour), "2d"},
		{sparkline([]float64{0, 5, -1, 10}, 10, 3), "▄ █"}, {sparkline([]float64{1, 2}, 0, 5), "▁▁"},
		{loadLine(10, 1, 5, 2, 10), "██▒▒▒····╳"}, {loadLine(10, 9, 5, 20, 10), "██████████"},
		{loadLine(0, 0, 1, 1, 3), "   "},
		{shorten("容器x", 4), "容…"}, {shorten("abc", 3), "abc"}, {shorten("abc", 0), ""},
		{clean("a\x1b[31m\u202eb\n"), "a [31m b "},
	} {
		if c.have != c.want {
			t.Errorf("%q, want %q", c.have, c.want)
		}
	}
}
