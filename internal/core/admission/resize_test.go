package admission

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"

	"github.com/plimsoll-dev/plimsoll/internal/core/qos"
	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

// node is a node of resizable pods. It asks for verdicts after every change, as the shell does, and performs what was
// allocated at its own pace: what shrinks is held until it is given back.
type node struct {
	cpu, memory int64
	now         unit.Wall
	pods        []*member
	said        strings.Builder
}

type member struct {
	name             string
	want, allocated  [2]int64 // cpu, memory: what it asks for, what it was given last
	actual           [2]int64 // what it really has
	since            unit.Wall
	priority         int32
	class            qos.Class
	never            string
	reason, reported string
}

func placed(name string, priority int32, v [2]int64) scheduler.Pod {
	p := pod(v[0], v[1])
	p.Name, p.ID, p.Priority = name, scheduler.PodID(name), priority
	return p
}

func (m *member) has() [2]int64 {
	return [2]int64{max(m.allocated[0], m.actual[0]), max(m.allocated[1], m.actual[1])}
}

func (n *node) facts() scheduler.Node {
	return scheduler.Node{
		PodsMax:     110,
		Allocatable: []scheduler.Amount{{Resource: "cpu", Value: n.cpu}, {Resource: "memory", Value: n.memory}},
	}
}

func (n *node) judge() {
	for n.judgeOnce() {
	}
}

func (n *node) judgeOnce() (allocated bool) {
	var asking []*member
	var pending []Resize
	var held []scheduler.Pod
	for _, m := range n.pods {
		has := placed(m.name, m.priority, m.has())
		held = append(held, has)
		if m.want != m.allocated {
			asking = append(asking, m)
			pending = append(pending, Resize{
				Want:  placed(m.name, m.priority, m.want),
				Has:   has,
				Class: m.class,
				Since: m.since,
				Never: m.never,
			})
		} else {
			m.reason, m.reported, m.since = "", "", 0
		}
	}
	for i, v := range NewNode(n.facts(), held...).Resizes(pending) {
		m := asking[i]
		if v.Allocated {
			m.allocated, m.reason, m.reported, m.since = m.want, "", "", 0
			allocated = true
			fmt.Fprintf(&n.said, "%s allocated cpu=%d memory=%d\n", m.name, m.want[0], m.want[1])
			continue
		}
		if m.reason != v.Reason || m.reported != v.Message {
			fmt.Fprintf(&n.said, "%s %s: %s\n", m.name, v.Reason, v.Message)
		}
		if m.reason != v.Reason {
			m.since = n.now
		}
		m.reason, m.reported = v.Reason, v.Message
	}
	return allocated
}

func (n *node) find(name string) *member {
	for _, m := range n.pods {
		if m.name == name {
			return m
		}
	}
	return nil
}

// TestResizes plays testdata/resize.txt. Each command changes something, and prints what the node allocates or reports
// anew:
//
//	node cpu=M memory=B                  what it has to give, from now on
//	pod NAME cpu=M memory=B [priority=P] [guaranteed]    runs here with that much
//	ask NAME cpu=M memory=B [never=(TEXT)]               its specification changes; never: what stands against it
//	done NAME                            what was allocated is what it has
//	gone NAME                            it left
//	crash                                all that is known is what the API was told
func TestResizes(t *testing.T) {
	var n *node
	datadriven.RunTest(t, "testdata/resize.txt", func(t *testing.T, d *datadriven.TestData) string {
		number := func(key string) (v int64) {
			for _, arg := range d.CmdArgs {
				if arg.Key == key {
					v, _ = strconv.ParseInt(arg.Vals[0], 10, 64)
				}
			}
			return v
		}
		amounts, name := [2]int64{number("cpu"), number("memory")}, ""
		if len(d.CmdArgs) > 0 {
			name = d.CmdArgs[0].Key
		}
		switch d.Cmd {
		case "node":
			if n == nil || d.HasArg("new") {
				n = &node{}
			}
			n.cpu, n.memory = amounts[0], amounts[1]
		case "pod":
			m := &member{
				name:      name,
				want:      amounts,
				allocated: amounts,
				actual:    amounts,
				priority:  int32(number("priority")),
				class:     qos.Burstable,
			}
			if d.HasArg("guaranteed") {
				m.class = qos.Guaranteed
			}
			n.pods = append(n.pods, m)
		case "ask":
			n.find(name).want = amounts
			for _, arg := range d.CmdArgs {
				if arg.Key == "never" {
					n.find(name).never = strings.Join(arg.Vals, " ")
				}
			}
		case "done":
			n.find(name).actual = n.find(name).allocated
		case "gone":
			n.pods = slices.DeleteFunc(n.pods, func(m *member) bool { return m.name == name })
		case "crash":
			for _, m := range n.pods {
				m.reason, m.reported = "", ""
			}
		default:
			t.Fatalf("%s: unknown command %q", d.Pos, d.Cmd)
		}
		n.now++
		n.said.Reset()
		n.judge()
		return n.said.String()
	})
}

// TestNoResizeIsMissed plays random histories, and after every change looks from outside: what the pods hold together
// is never more than there is, except where there became less; nobody waits who fits; and nothing is allocated that is
// not asked for.
func TestNoResizeIsMissed(t *testing.T) {
	for seed := range uint64(300) {
		r := rand.New(rand.NewPCG(seed, 7))
		n := &node{cpu: 10, memory: 10}
		amounts := func() [2]int64 { return [2]int64{int64(r.IntN(6)), int64(r.IntN(6))} }
		over := [2]int64{} // held beyond what there is, because there became less
		for step := range 200 {
			n.now++
			shrunk := false
			switch i := r.IntN(len(n.pods) + 1); {
			case i == len(n.pods):
				m := &member{
					name:     fmt.Sprintf("p%d", step),
					want:     amounts(),
					priority: int32(r.IntN(2)),
					class:    []qos.Class{qos.Burstable, qos.Guaranteed}[r.IntN(2)],
				}
				m.allocated, m.actual = m.want, m.want
				if NewNode(n.facts(), n.held()...).Check(placed(m.name, 0, m.want)) == nil {
					n.pods = append(n.pods, m)
				}
			case r.IntN(6) == 0:
				n.pods = slices.Delete(n.pods, i, i+1)
			case r.IntN(12) == 0:
				n.cpu, n.memory, shrunk = int64(5+r.IntN(10)), int64(5+r.IntN(10)), true
			case r.IntN(3) == 0: // the kernel was told; or somebody died on the way and the API knows the last word
				n.pods[i].actual = n.pods[i].allocated
			case r.IntN(8) == 0:
				for _, m := range n.pods {
					m.reason, m.reported = "", ""
				}
			default:
				n.pods[i].want = amounts()
			}
			before := n.total()
			n.judge()
			total := n.total()
			for k, there := range [2]int64{n.cpu, n.memory} {
				if shrunk || before[k] < over[k]+there {
					over[k] = max(0, before[k]-there)
				}
				if total[k] > there+over[k] {
					t.Fatalf("seed %d, step %d: %d of resource %d held, there is %d", seed, step, total[k], k, there)
				}
			}
			for _, m := range n.pods {
				has := m.has()
				fits := func(k int, there int64) bool { return m.want[k] <= has[k] || total[k]-has[k]+m.want[k] <= there }
				if m.want != m.allocated && fits(0, n.cpu) && fits(1, n.memory) {
					t.Fatalf("seed %d, step %d: %s waits for %v, has %v, and it fits", seed, step, m.name, m.want, has)
				}
			}
		}
	}
}

func (n *node) held() (held []scheduler.Pod) {
	for _, m := range n.pods {
		held = append(held, placed(m.name, 0, m.has()))
	}
	return held
}

func (n *node) total() (sum [2]int64) {
	for _, m := range n.pods {
		has := m.has()
		sum[0], sum[1] = sum[0]+has[0], sum[1]+has[1]
	}
	return sum
}

func TestNever(t *testing.T) {
	for _, c := range []struct {
		change Change
		want   string
	}{
		{Change{Class: qos.Guaranteed, CPU: true, Memory: true}, ""},
		{
			Change{Class: qos.Guaranteed, CPU: true, StaticCPUs: true},
			`Resize is infeasible for Guaranteed Pods alongside CPU Manager policy "static"`,
		},
		{Change{Class: qos.Guaranteed, Memory: true, StaticCPUs: true}, ""},
		{
			Change{Class: qos.Guaranteed, Memory: true, StaticMemory: true},
			`Resize is infeasible for Guaranteed Pods alongside Memory Manager policy "Static"`,
		},
		{Change{Class: qos.Burstable, CPU: true, Memory: true, StaticCPUs: true, StaticMemory: true}, ""},
		{Change{Class: qos.Burstable, Memory: true, Swap: true}, "In-place resize of containers with swap is not supported."},
	} {
		if got := Never(c.change); got != c.want {
			t.Errorf("%+v: %q, want %q", c.change, got, c.want)
		}
	}
}
