package topology

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"weak"

	"github.com/plimsoll-dev/plimsoll/internal/core/idset"
	"github.com/plimsoll-dev/plimsoll/internal/core/machine"
	"github.com/plimsoll-dev/plimsoll/internal/core/numa"
	"github.com/plimsoll-dev/plimsoll/internal/kube/machinefile"
)

// ErrForeign says that an object has sums by zone only: a program other than our agent wrote it.
var ErrForeign = errors.New("contains sums by zone only: a program other than plimsoll's agent wrote it")

// Bounds on what is read of a node: a node's credentials can write its object, and every scheduler reads it. Chosen
// above existing machines (1,920 CPUs, and 64 NUMA nodes with 16 and 32 sockets; some hundreds of containers with
// devices of a dozen resources). An object beyond the bounds counts as no report; its node is then treated as upstream
// treats every node.
const (
	cpusMax      = 4096
	nodesMax     = 128
	resourcesMax = 256
	// assigned to all containers together; more than cpusMax, because containers of one pod can share CPUs
	ownedCPUsMax = 16 * cpusMax
)

// Node is the content of an object. The caller may modify State.
type Node struct {
	Layout *numa.Layout
	State  *numa.State

	described string // the attributes from which Layout was made
}

// Decode reads an object. before is the result for the same node's previous object, nil if there is none: its Layout is
// used again when machine and configuration are the same, as they nearly always are.
func Decode(o *Object, before *Node) (*Node, error) {
	n, err := decode(o, func(described string) *numa.Layout {
		if before != nil && before.described == described {
			return before.Layout
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read NodeResourceTopology: %s: %w", o.Name, err)
	}
	return n, nil
}

// A Decoder reads the objects of many nodes. Nodes with equal machines and configurations share one Layout, for as long
// as it is in use.
type Decoder struct {
	layouts map[string]weak.Pointer[numa.Layout] // by Node.described
}

// Decode reads the object of any node.
func (d *Decoder) Decode(o *Object) (*Node, error) {
	n, err := decode(o, func(described string) *numa.Layout { return d.layouts[described].Value() })
	if err != nil {
		return nil, fmt.Errorf("read NodeResourceTopology: %s: %w", o.Name, err)
	}
	if known := d.layouts[n.described].Value(); known != n.Layout {
		if d.layouts == nil {
			d.layouts = map[string]weak.Pointer[numa.Layout]{}
		}
		maps.DeleteFunc(d.layouts, func(_ string, l weak.Pointer[numa.Layout]) bool { return l.Value() == nil })
		d.layouts[n.described] = weak.Make(n.Layout)
	}
	return n, nil
}

func decode(o *Object, known func(described string) *numa.Layout) (*Node, error) {
	if _, ours := o.Attribute(attributeMachine); !ours {
		return nil, ErrForeign
	}
	var p problems
	said := map[string]string{}
	described := ""
	for _, name := range []string{attributePolicy, attributeScope, attributeMachine, attributeConfig, attributePlugins,
		attributePods} {
		value, ok := o.Attribute(name)
		if !ok {
			p.add(name, "is missing")
		}
		if said[name] = value; name != attributePlugins && name != attributePods {
			described += fmt.Sprintf("%q", value)
		}
	}
	if err := p.err(); err != nil {
		return nil, err
	}
	n := &Node{described: described}
	if n.Layout = known(described); n.Layout == nil {
		if n.Layout = layout(said, &p); n.Layout == nil {
			return nil, p.err()
		}
	}
	n.State = n.Layout.NewState()
	fill(n.State, said, &p)
	if err := p.err(); err != nil {
		return nil, err
	}
	return n, nil
}

// layout reads machine and configuration; nil if there is a problem with them.
func layout(said map[string]string, p *problems) *numa.Layout {
	if checkSize(said[attributeMachine], p); len(*p) > 0 {
		return nil
	}
	file, err := machinefile.Decode([]byte(said[attributeMachine]))
	if err != nil {
		p.add(attributeMachine, err.Error())
		return nil
	}
	var w wireConfig
	p.json(said, attributeConfig, &w)
	if len(*p) > 0 {
		return nil
	}
	config := w.config(file.Machine, p)
	config.Topology.Policy = policy(said[attributePolicy], p)
	switch scope := said[attributeScope]; scope {
	case scopePod:
		config.Topology.PodScope = true
	case scopeContainer:
	default:
		p.add(attributeScope, fmt.Sprintf("%.80q: want %s or %s", scope, scopeContainer, scopePod))
	}
	if len(*p) > 0 {
		return nil
	}
	l, err := numa.New(file.Machine, config)
	if err != nil {
		p.add(attributeConfig, err.Error())
		return nil
	}
	return l
}

// checkSize reports a machine that is too large before its parts are read: the cost of reading grows with the square of
// some of these numbers.
func checkSize(text string, p *problems) {
	var size struct {
		Spec struct {
			NUMANodes []struct {
				CPUs json.RawMessage `json:"cpus"`
			} `json:"numaNodes"`
		} `json:"spec"`
	}
	if err := json.Unmarshal([]byte(text), &size); err != nil {
		p.add(attributeMachine, err.Error())
		return
	}
	cpus := 0
	for _, n := range size.Spec.NUMANodes {
		if set, err := idset.Parse(strings.Trim(string(n.CPUs), `"`)); err == nil { // machinefile reports an invalid list
			cpus += set.Len()
		}
	}
	if nodes := len(size.Spec.NUMANodes); cpus > cpusMax || nodes > nodesMax {
		p.add(attributeMachine, fmt.Sprintf("%d CPUs and %d NUMA nodes: at most %d and %d are read", cpus, nodes, cpusMax,
			nodesMax))
	}
}

func policy(name string, p *problems) numa.Policy {
	var names []string
	for policy := numa.PolicyNone; policy <= numa.PolicySingleNUMANode; policy++ {
		if policy.String() == name {
			return policy
		}
		names = append(names, policy.String())
	}
	p.add(attributePolicy, fmt.Sprintf("%.80q: want one of %s", name, strings.Join(names, ", ")))
	return numa.PolicyNone
}

// fill adds devices and pods to a new state.
func fill(s *numa.State, said map[string]string, p *problems) {
	var plugins []wirePlugin
	p.json(said, attributePlugins, &plugins)
	if len(plugins) > resourcesMax {
		p.add(attributePlugins, fmt.Sprintf("%d resources: at most %d are read", len(plugins), resourcesMax))
		return
	}
	seen := map[string]bool{}
	for _, w := range plugins {
		if seen[w.Resource] {
			p.add(attributePlugins, fmt.Sprintf("resource %.80q is listed twice", w.Resource))
			continue
		}
		seen[w.Resource] = true
		s.SetPlugin(w.plugin(p))
	}
	var pods []wirePod
	p.json(said, attributePods, &pods)
	var t totals
	for _, w := range pods {
		a := w.assignment(&t, p)
		if len(*p) > 0 {
			return
		}
		for _, problem := range s.Adopt(a) {
			p.add(attributePods, problem)
		}
	}
}

// problems are what is wrong with an object.
type problems []string

// Bounds on an error: an object must not make its readers log more than they read. Chosen.
const (
	problemsMax    = 16
	problemTextMax = 512 // bytes
)

func (p *problems) add(what, why string) {
	if len(*p) < problemsMax {
		*p = append(*p, fmt.Sprintf("%.*s: %.*s", problemTextMax, what, problemTextMax, why))
	}
}

func (p problems) err() error {
	if len(p) == 0 {
		return nil
	}
	slices.Sort(p)
	return errors.New(strings.Join(slices.Compact(p), "; "))
}

// json decodes an attribute strictly.
func (p *problems) json(said map[string]string, name string, into any) {
	d := json.NewDecoder(bytes.NewReader([]byte(said[name])))
	d.DisallowUnknownFields()
	if err := d.Decode(into); err != nil {
		p.add(name, err.Error())
		return
	}
	if _, err := d.Token(); err != io.EOF {
		p.add(name, "something follows the document")
	}
}

// MachineOf returns the machine that an object describes.
func MachineOf(o *Object) (machine.Machine, error) {
	text, ours := o.Attribute(attributeMachine)
	if !ours {
		return machine.Machine{}, ErrForeign
	}
	var p problems
	if checkSize(text, &p); len(p) > 0 {
		return machine.Machine{}, fmt.Errorf("read NodeResourceTopology: %s: %w", o.Name, p.err())
	}
	file, err := machinefile.Decode([]byte(text))
	if err != nil {
		return machine.Machine{}, fmt.Errorf("read NodeResourceTopology: %s: %w", o.Name, err)
	}
	return file.Machine, nil
}
