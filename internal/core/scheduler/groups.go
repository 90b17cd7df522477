package scheduler

import (
	"slices"

	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler/census"
	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler/shrink"
)

// groups are the objects that select pods. Only the default spread constraints use them.
type groups struct {
	services map[string]*services // by namespace
	owners   map[ownerKey]LabelSelector
	version  uint64 // grows with each change
}

type ownerKey struct {
	namespace string
	Owner
}

// services are the services of a namespace. They are indexed by a label that they require, so that few are evaluated
// for a pod.
type services struct {
	byName  map[string]service
	byLabel map[Label][]string // names
	others  []string           // those that require no label with a single value
}

type service struct {
	selector LabelSelector
	by       *Label // under which it is indexed; nil: in others
}

func newGroups() groups {
	return groups{services: map[string]*services{}, owners: map[ownerKey]LabelSelector{}}
}

// set adds or replaces a group, and reports whether it selects other pods than before. Updates of a status report
// false.
func (g *groups) set(of Group) (changed bool) {
	was, known := g.selectorOf(of)
	if known && was.Equal(&of.Selector) {
		return false
	}
	g.version++
	if of.Kind != KindService {
		g.owners[ownerKey{of.Namespace, Owner{of.Kind, of.Name}}] = of.Selector
		return true
	}
	s := g.services[of.Namespace]
	if s == nil {
		s = &services{byName: map[string]service{}, byLabel: map[Label][]string{}}
		g.services[of.Namespace] = s
	}
	s.remove(of.Name)
	s.add(of.Name, of.Selector)
	return true
}

func (g *groups) selectorOf(of Group) (s LabelSelector, known bool) {
	if of.Kind != KindService {
		s, known = g.owners[ownerKey{of.Namespace, Owner{of.Kind, of.Name}}]
		return s, known
	}
	if in := g.services[of.Namespace]; in != nil {
		x, known := in.byName[of.Name]
		return x.selector, known
	}
	return s, false
}

func (g *groups) remove(of Group) {
	g.version++
	if of.Kind != KindService {
		delete(g.owners, ownerKey{of.Namespace, Owner{of.Kind, of.Name}})
		return
	}
	s := g.services[of.Namespace]
	if s == nil {
		return
	}
	if s.remove(of.Name); len(s.byName) == 0 {
		delete(g.services, of.Namespace)
	}
}

// add adds a service. Of the labels that it requires, it is indexed under the one with the fewest services.
func (s *services) add(name string, selector LabelSelector) {
	x := service{selector: selector}
	for i := range selector.Requirements {
		r := &selector.Requirements[i]
		if r.Op != In || len(r.Values) != 1 {
			continue
		}
		l := Label{Key: r.Key, Value: r.Values[0]}
		if x.by == nil || len(s.byLabel[l]) < len(s.byLabel[*x.by]) {
			x.by = &l
		}
	}
	s.byName[name] = x
	if x.by == nil {
		s.others = append(s.others, name)
	} else {
		s.byLabel[*x.by] = append(s.byLabel[*x.by], name)
	}
}

func (s *services) remove(name string) {
	x, known := s.byName[name]
	if !known {
		return
	}
	delete(s.byName, name)
	if x.by == nil {
		s.others = shrink.Without(s.others, name)
	} else if s.byLabel[*x.by] = shrink.Without(s.byLabel[*x.by], name); len(s.byLabel[*x.by]) == 0 {
		delete(s.byLabel, *x.by)
	}
}

// selecting returns the names of the services that select pods with labels, sorted.
func (s *services) selecting(labels []Label) (names []string) {
	add := func(candidates []string) {
		for _, name := range candidates {
			if selector := s.byName[name].selector; selector.Selects(labels) {
				names = append(names, name)
			}
		}
	}
	add(s.others)
	for _, l := range labels {
		add(s.byLabel[l])
	}
	slices.Sort(names)
	return names
}

// hardDefaults reports whether groups decide where pods of the class may go: the pods have no spread constraints, and
// some default constraint of the profile is hard.
func (k *class) hardDefaults() bool {
	isHard := func(s SpreadConstraint) bool { return s.Hard }
	return len(k.spread) == 0 && slices.ContainsFunc(k.profile.DefaultSpread, isHard)
}

// selectorFor joins the selectors of all groups that have the pod: the services that select it, and its owner. ok is
// false if there are none, or if their selectors are empty.
func (g *groups) selectorFor(who *census.Identity, owner Owner) (s LabelSelector, ok bool) {
	if in := g.services[who.Namespace]; in != nil {
		for _, name := range in.selecting(who.Labels) {
			s.Requirements = append(s.Requirements, in.byName[name].selector.Requirements...)
		}
	}
	if of, known := g.owners[ownerKey{who.Namespace, owner}]; known {
		if of.Nothing {
			return of, true
		}
		s.Requirements = append(s.Requirements, of.Requirements...)
	}
	return s, len(s.Requirements) > 0
}

// defaultSpread caches the pod set of the default constraints for pods with one identity and owner.
type defaultSpread struct {
	version uint64 // groups.version when it was found, plus one; zero: not found yet
	owner   Owner
	set     *census.PodSet // nil: no groups, so no constraints
}

// defaultsOf returns the pod set of the default spread constraints for pods with identity who and this owner; nil:
// none.
func (c *cluster) defaultsOf(who *census.Identity, owner Owner) *census.PodSet {
	if s := &dataOf(who).spreading; s.version == c.groups.version+1 && s.owner == owner {
		return s.set
	}
	old := dataOf(who).spreading.set
	dataOf(who).spreading = defaultSpread{version: c.groups.version + 1, owner: owner}
	if selector, ok := c.groups.selectorFor(who, owner); ok {
		dataOf(who).spreading.set = c.PodSetOf(census.PodSelector{
			Namespaces: []string{who.Namespace},
			ByLabels:   LabelSelector{Nothing: true},
			Pods:       selector,
		})
	}
	if old != nil {
		c.DropPodSet(old)
	}
	return dataOf(who).spreading.set
}
