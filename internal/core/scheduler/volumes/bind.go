package volumes

import (
	"slices"

	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler/rows"
	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler/selector"
)

// Place is a node to which volumes are to be bound.
type Place struct {
	Row    rows.Row
	Name   string
	Labels []selector.LabelID
	Lacks  []string // what its agent cannot do, as codes, sorted
}

// LacksAny reports whether the agent of the node lacks one of needs.
func (p *Place) LacksAny(needs []string) bool {
	return slices.ContainsFunc(needs, func(need string) bool {
		_, lacks := slices.BinarySearch(p.Lacks, need)
		return lacks
	})
}

// Conflict is a set of reasons why volumes cannot be bound; zero: none.
type Conflict int32

// The order is that of reasons.
const (
	notAccessible Conflict = 1 << iota // a bound volume is not accessible from the node
	noMatch                            // there is no volume for an unbound claim
	noSpace                            // no published capacity is large enough
	missing                            // a bound volume does not exist
	notMounted                         // the node's agent cannot mount what would be provisioned
)

// AgentWouldHold begins the reason of a node whose agent cannot do what the pod needs.
const AgentWouldHold = "node(s) had an agent that would hold the pod: "

// reasons are what Explain says of each Conflict, in the order of the constants.
var reasons = []string{
	"node(s) didn't match PersistentVolume's node affinity",
	"node(s) didn't find available persistent volumes to bind",
	"node(s) did not have enough free storage",
	"node(s) unavailable due to one or more pvc(s) bound to non-existent pv(s)",
	AgentWouldHold + "it does not mount volumes of the storage class's provisioner",
}

// Explain appends the reasons in k, in upstream's words.
func (k Conflict) Explain(to []string) []string {
	for i, reason := range reasons {
		if k&(1<<i) != 0 {
			to = append(to, reason)
		}
	}
	return to
}

// A Plan is what must be written to the API before a pod with unbound claims is bound.
type Plan struct {
	Bind      []Bind
	Provision []ProvisionFor
}

// Bind reserves a volume for a claim. Version is the volume's version for which this was decided: the write must fail
// on any other version.
type Bind struct {
	Volume, Version                     string
	ClaimNamespace, ClaimName, ClaimUID string
	// ByController says that the scheduler chose the volume, and must mark that (pv.kubernetes.io/bound-by-controller).
	ByController bool
	Done         bool // the volume names the claim already: nothing must be written
}

// ProvisionFor requests a volume for the claim Namespace/Name, accessible from Node. Version is the claim's version for
// which this was decided: the write must fail on any other version.
type ProvisionFor struct {
	Namespace, Name, Version string
	Node                     string
	Done                     bool // the claim names the node already: nothing must be written
}

func (p *Plan) bind(v *KnownVolume, claim *Claim) {
	if p == nil {
		return
	}
	ours := v.Claimed && v.ClaimNamespace == claim.Namespace && v.ClaimName == claim.Name
	p.Bind = append(p.Bind, Bind{
		Volume:         v.Name,
		Version:        v.Version,
		ClaimNamespace: claim.Namespace,
		ClaimName:      claim.Name,
		ClaimUID:       claim.UID,
		ByController:   !ours,
		Done:           ours && v.ClaimUID == claim.UID,
	})
}

func (p *Plan) provision(claim *Claim, node string) {
	if p == nil {
		return
	}
	p.Provision = append(p.Provision, ProvisionFor{
		Namespace: claim.Namespace,
		Name:      claim.Name,
		Version:   claim.Version,
		Node:      node,
		Done:      claim.Selected && claim.Node == node,
	})
}

// Bind finds volumes for the claims of a on a node. If plan is not nil, it adds what must be written.
//
//   - A bound claim: its volume must exist, and its node affinity must match the node.
//   - A claim whose class waits for the first consumer: it gets the smallest free volume of the class that matches, or
//     one that is reserved for the claim. Claims choose one after another, the smallest first.
//   - A claim that gets none is provisioned: the class must have a provisioner, its allowed topologies must match the
//     node and, if the driver publishes capacities, one for the node must be large enough.
//   - A claim for which a node was selected already is provisioned for that node only.
//   - A volume that the node's agent cannot mount is not chosen.
func (s *Store) Bind(a *Needs, at Place, plan *Plan) (conflict Conflict) {
	for _, b := range a.Bound {
		if b.Volume == nil {
			conflict |= missing
			break
		}
		if !s.Reaches(b.Volume, at) {
			conflict |= notAccessible
			break
		}
	}
	for i := range a.Chosen {
		if a.Chosen[i].Claim.Node != at.Name {
			return conflict | noMatch
		}
	}
	for i := range a.Chosen {
		if why := s.provisions(&a.Chosen[i], at, plan); why != 0 {
			return conflict | why
		}
	}
	var taken [4]*KnownVolume // large enough for most pods, to avoid an allocation
	chosen := taken[:0]
	made := Conflict(0)
	for i := range a.Open {
		p := &a.Open[i]
		if v := s.match(p, at, chosen); v != nil {
			chosen = append(chosen, v)
			plan.bind(v, p.Claim)
		} else if made == 0 {
			made = s.provisions(p, at, plan)
		}
	}
	return conflict | made
}

// Reaches reports whether a volume is accessible from a node.
func (s *Store) Reaches(v *KnownVolume, from Place) bool {
	if x := s.rows[from.Row]; v.Plugin != "" && x != nil && x.node != nil && slices.Contains(x.node.Plugins, v.Plugin) {
		return s.allows(&v.MovedFrom, from)
	}
	return s.allows(&v.From, from)
}

func (s *Store) allows(t *Reach, from Place) bool {
	return !t.Limited || s.in.MatchAny(t.Terms, from.Name, from.Labels)
}

// match chooses the volume for an unbound claim on a node: one that is reserved for the claim, else the smallest free
// one. It skips the volumes that other claims of the pod have chosen.
func (s *Store) match(p *Provision, at Place, chosen []*KnownVolume) *KnownVolume {
	claim := p.Claim
	for _, v := range p.Stock.reserved[ClaimKey{Namespace: claim.Namespace, Name: claim.Name}] {
		if (v.ClaimUID == "" || v.ClaimUID == claim.UID) && !v.Deleting && v.suits(claim) && !slices.Contains(chosen, v) {
			if !s.allows(&v.From, at) || at.LacksAny(v.NeedsOfAgent) {
				return nil
			}
			return v
		}
	}
	var best *KnownVolume
	look := func(list []*KnownVolume) {
		for _, v := range list {
			if best != nil && smallestFirst(best, v) < 0 {
				return
			}
			if v.suits(claim) && v.offers(claim) && s.allows(&v.From, at) &&
				!at.LacksAny(v.NeedsOfAgent) && !slices.Contains(chosen, v) {
				best = v
				return
			}
		}
	}
	if host, ok := selector.NumberOf(at.Labels, s.hostKey); ok {
		look(p.Stock.byHost[host])
	}
	look(p.Stock.anywhere)
	return best
}

// suits reports whether the claim may be bound to v at all.
func (v *KnownVolume) suits(claim *Claim) bool {
	return v.Capacity >= claim.Size && v.Block == claim.Block && v.Attributes == claim.Attributes
}

// offers reports whether the claim may choose v among free volumes.
func (v *KnownVolume) offers(claim *Claim) bool {
	if claim.Selector != nil && !claim.Selector.Selects(v.Labels) {
		return false
	}
	for _, mode := range claim.Modes {
		if !slices.Contains(v.Modes, mode) {
			return false
		}
	}
	return true
}

// provisions returns why no volume accessible from the node can be provisioned for a claim; zero: one can. If plan is
// not nil, capacity is not checked: it was checked before.
func (s *Store) provisions(p *Provision, at Place, plan *Plan) Conflict {
	k := p.Class
	if !k.Provisions() || k.Limits() && !s.in.MatchAny(k.Topologies, at.Name, at.Labels) {
		return noMatch
	}
	if plan == nil && p.Claim.Sized && s.opted[k.Provisioner] && !s.hasSpace(k.Name, p.Claim.Size, at) {
		return noSpace
	}
	if at.LacksAny(p.OfAgent) {
		return notMounted
	}
	plan.provision(p.Claim, at.Name)
	return 0
}

func (s *Store) hasSpace(class string, size int64, at Place) bool {
	for _, k := range s.capacities[class] {
		if k.Sized && k.Size >= size && s.IsFor(k, at.Labels) {
			return true
		}
	}
	return false
}

// IsFor reports whether a capacity is for nodes with these labels. Unlike in a term, an empty selector matches all.
func (s *Store) IsFor(k *KnownCapacity, labels []selector.LabelID) bool {
	return k.Nodes != nil && !k.Selects.Never && s.in.Meet(k.Selects.Labels, labels)
}

// Conflicts reports whether two pods on one node must not use d and other.
func (d *Disk) Conflicts(other *Disk) bool {
	shared := func(monitor string) bool { return slices.Contains(other.Monitors, monitor) }
	return d.Kind == other.Kind && d.ID == other.ID && !(d.ReadOnly && other.ReadOnly) &&
		(d.Monitors == nil || slices.ContainsFunc(d.Monitors, shared))
}
