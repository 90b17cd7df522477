package remedy

import (
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

// facts are a cluster as a list of facts, from which worlds and placers can be made again and again.
type facts struct {
	nodes   []scheduler.Node
	pods    []scheduler.Pod // with a node, or with a nomination
	budgets []scheduler.Budget
	waiting []scheduler.Pod
}

// options of all schedulers in these tests.
var options = scheduler.Options{Seed: 1}

// world returns the facts as a World.
func (f *facts) world() *World {
	w := NewWorld(options)
	for _, n := range f.nodes {
		w.NodeSeen(1, n)
	}
	for _, p := range f.pods {
		w.PodSeen(1, p)
	}
	for _, b := range f.budgets {
		w.BudgetSeen(1, b)
	}
	return w
}

// placer returns the facts with changes made, in a new Placer.
func (f *facts) placer(r *Remedy, changes []Change) *scheduler.Placer {
	p := scheduler.New(options)
	for _, n := range f.nodes {
		if r.Of == OfNode && n.Name == r.Node {
			n = ChangeNode(n, changes)
		}
		p.NodeSeen(1, n)
		for _, c := range changes {
			if c.Kind == AddNode && c.Name == n.Name {
				p.NodeSeen(1, Another(n, r.Node))
			}
		}
	}
	for _, pod := range f.pods {
		p.PodSeen(1, pod)
	}
	for _, b := range f.budgets {
		for _, c := range changes {
			if c.Kind == AllowDisruptions && c.Name == b.Namespace+"/"+b.Name {
				b.Allowed = int32(c.To)
			}
		}
		p.BudgetSeen(1, b)
	}
	return p
}

// read reads one line of a text; see TestScenarios.
func (f *facts) read(t *testing.T, line string) {
	t.Helper()
	words := strings.Fields(line)
	if len(words) < 2 {
		t.Fatalf("%q: want a command and a name", line)
	}
	name, rest := words[1], words[2:]
	switch words[0] {
	case "node":
		f.nodes = append(f.nodes, readNode(t, name, rest))
	case "pod":
		pod := readPod(t, name, rest)
		if pod.Node != "" || pod.Nominated != "" {
			f.pods = append(f.pods, pod)
		} else {
			f.waiting = append(f.waiting, pod)
		}
	case "budget":
		b := scheduler.Budget{Namespace: "default", Name: name}
		for _, word := range rest {
			key, value, _ := strings.Cut(word, "=")
			if key == "allowed" {
				b.Allowed = int32(number(t, value))
			} else {
				b.Selector = oneApp(value)
			}
		}
		f.budgets = append(f.budgets, b)
	default:
		t.Fatalf("%q: unknown command", line)
	}
}

func readNode(t *testing.T, name string, words []string) scheduler.Node {
	t.Helper()
	n := scheduler.Node{
		Name:    name,
		PodsMax: 110,
		Labels:  []scheduler.Label{{Key: "kubernetes.io/hostname", Value: name}},
	}
	for _, word := range words {
		key, value, _ := strings.Cut(word, "=")
		switch key {
		case "cordoned":
			n.Unschedulable = true
			n.Taints = append(n.Taints, scheduler.Taint{
				Key:    "node.kubernetes.io/unschedulable",
				Effect: scheduler.NoSchedule,
			})
		case "pods":
			n.PodsMax = number(t, value)
		case "taint":
			part := strings.Split(value, ":")
			n.Taints = append(n.Taints, scheduler.Taint{
				Key:    part[0],
				Value:  part[1],
				Effect: scheduler.Effect(part[2]),
			})
		case "label":
			n.Labels = append(n.Labels, label(value))
		default:
			n.Allocatable = append(n.Allocatable, scheduler.Amount{Resource: key, Value: number(t, value)})
		}
	}
	return n
}

func readPod(t *testing.T, name string, words []string) scheduler.Pod {
	t.Helper()
	p := scheduler.Pod{ID: scheduler.PodID(name), Namespace: "default", Name: name}
	for _, word := range words {
		key, value, _ := strings.Cut(word, "=")
		first, second, _ := strings.Cut(value, ":")
		switch key {
		case "on":
			p.Node = value
		case "nominated":
			p.Nominated = value
		case "prio":
			p.Priority = int32(number(t, value))
		case "never":
			p.NeverPreempts = true
		case "gate":
			p.Gates = append(p.Gates, value)
		case "app":
			p.Labels = []scheduler.Label{{Key: "app", Value: value}}
		case "select":
			p.NodeSelector = append(p.NodeSelector, label(value))
		case "require":
			p.NodeAffinity = &[]scheduler.NodeTerm{{Labels: []scheduler.Requirement{readRequirement(t, value)}}}
		case "name":
			named := scheduler.Requirement{Key: "metadata.name", Op: scheduler.In, Values: []string{value}}
			p.NodeAffinity = &[]scheduler.NodeTerm{{Names: []scheduler.Requirement{named}}}
		case "port":
			p.Ports = append(p.Ports, scheduler.HostPort{
				IP:       scheduler.AnyIP,
				Protocol: "TCP",
				Port:     int32(number(t, value)),
			})
		case "spread":
			p.Spread = append(p.Spread, scheduler.SpreadConstraint{
				MaxSkew:     1,
				TopologyKey: first,
				Hard:        true,
				Selector:    oneApp(second),
				MinDomains:  1,
			})
		case "near":
			p.Affinity = append(p.Affinity, podTerm(first, second))
		case "apart":
			p.AntiAffinity = append(p.AntiAffinity, podTerm(first, second))
		case "needs":
			p.Unsupported = append(p.Unsupported, value)
		default:
			p.Requests = append(p.Requests, scheduler.Amount{Resource: key, Value: number(t, value)})
		}
	}
	return p
}

// readRequirement reads KEY:VALUE, KEY (it exists), !KEY, KEY!VALUE, KEY>N or KEY<N.
func readRequirement(t *testing.T, text string) scheduler.Requirement {
	t.Helper()
	for _, op := range []struct {
		sign string
		op   scheduler.Operator
	}{{":", scheduler.In}, {">", scheduler.Gt}, {"<", scheduler.Lt}} {
		if key, value, is := strings.Cut(text, op.sign); is {
			q := scheduler.Requirement{Key: key, Op: op.op, Values: []string{value}}
			if op.op != scheduler.In {
				q.Values, q.Bound = nil, number(t, value)
			}
			return q
		}
	}
	if key, is := strings.CutPrefix(text, "!"); is {
		return scheduler.Requirement{Key: key, Op: scheduler.DoesNotExist}
	}
	if key, value, is := strings.Cut(text, "!"); is {
		return scheduler.Requirement{Key: key, Op: scheduler.NotIn, Values: []string{value}}
	}
	return scheduler.Requirement{Key: text, Op: scheduler.Exists}
}

func label(text string) scheduler.Label {
	key, value, _ := strings.Cut(text, ":")
	return scheduler.Label{Key: key, Value: value}
}

func oneApp(app string) scheduler.LabelSelector {
	return scheduler.LabelSelector{Requirements: []scheduler.Requirement{
		{Key: "app", Op: scheduler.In, Values: []string{app}},
	}}
}

func podTerm(key, app string) scheduler.PodTerm {
	return scheduler.PodTerm{
		Selector:          oneApp(app),
		Namespaces:        []string{"default"},
		NamespaceSelector: scheduler.LabelSelector{Nothing: true},
		TopologyKey:       key,
	}
}

func number(t *testing.T, text string) int64 {
	t.Helper()
	scale := int64(1)
	if rest, is := strings.CutSuffix(text, "Gi"); is {
		text, scale = rest, int64(unit.GiB)
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return n * scale
}

// show prints an answer, one fact per line.
func show(a Answer) string {
	var b strings.Builder
	if len(a.Gates) > 0 {
		fmt.Fprintf(&b, "gates: %s\n", strings.Join(a.Gates, ", "))
	}
	if len(a.Feasible) > 0 {
		fmt.Fprintf(&b, "fits on %s\n", strings.Join(a.Feasible, ", "))
	} else {
		fmt.Fprintln(&b, a.Failure)
	}
	for _, r := range a.Reasons {
		fmt.Fprintf(&b, "  %d %s: %s: %s\n", len(r.Nodes), r.Plugin, r.Text, strings.Join(r.Nodes, ", "))
	}
	if a.Nearest != nil {
		fmt.Fprintf(&b, "nearest: %s: %s\n", a.Nearest.Node, strings.Join(a.Nearest.Reasons, "; "))
	}
	for i := range a.Remedies {
		r := &a.Remedies[i]
		fmt.Fprintf(&b, "%s: %s:", r.Of, r.Node)
		for _, c := range r.Changes {
			b.WriteString(" " + showChange(&c))
		}
		if r.Fits > 0 {
			fmt.Fprintf(&b, " (fits on %d)", r.Fits)
		}
		for _, v := range r.Victims {
			fmt.Fprintf(&b, " -%s", v.Name)
		}
		if r.Violations > 0 {
			fmt.Fprintf(&b, " (against budgets: %d)", r.Violations)
		}
		b.WriteString("\n")
	}
	return b.String()
}

func showChange(c *Change) string {
	words := []string{string(c.Kind)}
	for _, word := range []string{c.Name, c.Value} {
		if word != "" {
			words = append(words, word)
		}
	}
	if c.Taint.Key != "" {
		words = append(words, fmt.Sprintf("%s=%s:%s", c.Taint.Key, c.Taint.Value, c.Taint.Effect))
	}
	if c.From != 0 || c.To != 0 {
		words = append(words, fmt.Sprintf("%d..%d", c.From, c.To))
	}
	return "[" + strings.Join(words, " ") + "]"
}
