package numa

import (
	"fmt"
	"strings"

	"github.com/plimsoll-dev/plimsoll/internal/core/machine"
	"github.com/plimsoll-dev/plimsoll/internal/core/numa/bitset"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

// Reasons of rejected pods, in upstream's spelling.
const (
	TopologyAffinity    = "TopologyAffinityError"
	SMTAlignment        = "SMTAlignmentError"
	UnexpectedAdmission = "UnexpectedAdmissionError"
)

// Rejection says why a pod gets nothing. The numbers of its Message are computed only on request.
type Rejection struct {
	Reason    string
	Upstream  string // upstream's message
	Container string // whose request failed; empty: that of the pod as a whole
	// What it needs may be there soon: for example, a plugin is not connected or has no healthy device. The pod may wait.
	Waiting bool

	asked asked
	state *State           // as it was for this request
	tied  []machine.NUMAID // nodes where init containers have passed on some of what is requested; it must be used
}

// rejectTopology: the policy allows no set of nodes. If a plugin has no device to offer, that may be the reason, so the
// pod may wait.
func (w *work) rejectTopology(container string, a asked) *Rejection {
	waiting := false
	for _, d := range a.devices {
		if i, ok := w.pool(d.Resource); ok {
			waiting = waiting || w.pools[i].away()
		}
	}
	return &Rejection{
		Reason: TopologyAffinity, Upstream: "Resources cannot be allocated with Topology locality",
		Container: container, Waiting: waiting, asked: a, state: w.State, tied: w.tied(a),
	}
}

// tied returns the nodes on which finished init containers have passed on CPUs or devices of a requested kind. The
// kubelet's managers give only hints that include these nodes.
func (w *work) tied(a asked) []machine.NUMAID {
	if w.passedCPUs.IsEmpty() && w.passedDevices == nil {
		return nil
	}
	nodes := bitset.New(len(w.l.nodeID))
	for i := range w.l.cpu.Nodes {
		if a.cpus > 0 && w.passedCPUs.Meets(w.l.cpu.Nodes[i].CPUs) {
			nodes.Add(i)
		}
	}
	for _, d := range a.devices {
		if i, ok := w.pool(d.Resource); ok {
			for device := range w.passedOnDevices(i).All {
				nodes.Unite(w.pools[i].places[device])
			}
		}
	}
	return w.l.ids(nodes)
}

func (w *work) rejectSMT(container string, a asked, why string) *Rejection {
	return &Rejection{
		Reason:    SMTAlignment,
		Upstream:  "SMT Alignment Error: " + why,
		Container: container,
		asked:     a,
		state:     w.State,
	}
}

// Unexpected is the rejection for what none of upstream's other reasons names.
func Unexpected(message string) *Rejection {
	return &Rejection{Reason: UnexpectedAdmission, Upstream: message}
}

// NotAllocated is the rejection of a pod that does not get what would be assigned to it, in upstream's words.
func NotAllocated(why string) *Rejection {
	return Unexpected("Allocate failed due to " + why + ", which is unexpected")
}

// reject: a resource is not available, or not where it would have to be.
func (w *work) reject(container string, a asked, why string, waiting bool) *Rejection {
	r := NotAllocated(why)
	r.Container = container
	r.Waiting = waiting
	r.asked = a
	r.state = w.State
	return r
}

// Shortage is what one NUMA node has of what was requested.
type Shortage struct {
	Node machine.NUMAID
	Has  []Part
}

// Part is one of the requested resources.
type Part struct {
	Resource           string
	Asked, Free, Total int64 // CPUs, bytes or devices
}

// String returns, for example, "cpu 3 of 8".
func (p Part) String() string {
	return fmt.Sprintf("%s %s of %s", p.Resource, p.amount(p.Free), p.amount(p.Total))
}

func (p Part) amount(n int64) string {
	if p.Resource == "memory" || strings.HasPrefix(p.Resource, "hugepages-") {
		return unit.Bytes(n).String()
	}
	return fmt.Sprint(n)
}

// Nodes returns what each node has of what was requested.
func (r *Rejection) Nodes() []Shortage {
	if r.state == nil {
		return nil
	}
	l, s := r.state.l, r.state
	out := make([]Shortage, len(l.nodeID))
	available := s.available()
	for i, id := range l.nodeID {
		out[i].Node = id
		add := func(resource string, asked, free, total int64) {
			out[i].Has = append(out[i].Has, Part{Resource: resource, Asked: asked, Free: free, Total: total})
		}
		if n := r.asked.cpus; n > 0 {
			add("cpu", int64(n), int64(available.CountIn(l.cpu.Nodes[i].CPUs)), int64(len(l.cpu.Nodes[i].Members)))
		}
		for _, m := range r.asked.memory {
			if m.Kind >= 0 {
				add(KindName(l.memory.Kinds[m.Kind]), m.Bytes, s.memory.Free(l.memory, m.Kind)[i], l.memory.Total(m.Kind)[i])
			}
		}
		for _, d := range r.asked.devices {
			if p, ok := s.pool(d.Resource); ok && s.pools[p].aligned {
				free, total := s.pools[p].nearCounts(i)
				add(d.Resource, int64(d.Count), free, total)
			}
		}
	}
	return out
}

// nearCounts returns how many devices near a node are free, and how many there are.
func (p *pool) nearCounts(node int) (free, total int64) {
	available := p.free()
	for i := range p.ids {
		if p.places[i].Has(node) {
			total++
			if available.Has(i) {
				free++
			}
		}
	}
	return free, total
}

// Message returns upstream's message, then what was requested, what each node has, and what the best single node could
// give.
func (r *Rejection) Message() string {
	nodes := r.Nodes()
	if len(nodes) == 0 || len(nodes[0].Has) == 0 {
		return r.Upstream
	}
	var b strings.Builder
	b.WriteString(r.Upstream)
	who := "the pod"
	if r.Container != "" {
		who = "container " + r.Container
	}
	fmt.Fprintf(&b, ": %s asks for ", who)
	for i, p := range nodes[0].Has {
		fmt.Fprintf(&b, "%s%s %s", comma(i), p.Resource, p.amount(p.Asked))
	}
	b.WriteString("; free are ")
	for i, n := range nodes {
		fmt.Fprintf(&b, "%son node %d ", semicolon(i), n.Node)
		for j, p := range n.Has {
			fmt.Fprintf(&b, "%s%v", comma(j), p)
		}
	}
	for i, id := range r.tied {
		if i == 0 {
			b.WriteString("; what init containers leave for it is on node ")
		}
		fmt.Fprintf(&b, "%s%d", comma(i), id)
	}
	if best := nearest(nodes); best != nil {
		fmt.Fprintf(&b, "; node %d alone could give ", best.Node)
		for i, p := range best.Has {
			fmt.Fprintf(&b, "%s%s %s", comma(i), p.Resource, p.amount(min(p.Asked, p.Free)))
		}
	}
	return b.String()
}

func comma(i int) string {
	if i == 0 {
		return ""
	}
	return ", "
}

func semicolon(i int) string {
	if i == 0 {
		return ""
	}
	return "; "
}

// nearest returns the node that has most of what was requested: with the fewest resources too short, then with the
// largest share of the shortest one, then with the lowest id. It returns nil when one node has everything, because then
// something else is the reason.
func nearest(nodes []Shortage) *Shortage {
	var best *Shortage
	bestShort := 0
	var bestShare float64
	for i := range nodes {
		short, share := 0, 1.0
		for _, p := range nodes[i].Has {
			if p.Free < p.Asked {
				short++
				share = min(share, float64(p.Free)/float64(p.Asked))
			}
		}
		if best == nil || short < bestShort || short == bestShort && share > bestShare {
			best = &nodes[i]
			bestShort = short
			bestShare = share
		}
	}
	if bestShort == 0 {
		return nil
	}
	return best
}
