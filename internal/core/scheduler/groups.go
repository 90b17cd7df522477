package scheduler

import (
	"slices"

	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler/census"
	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler/shrink"
)

// groups are the objects that select pods. Only the default spread constraints ask for them.
type groups struct {
	services map[string]*services // by namespace
	owners   map[ownerKey]LabelSelector
	version  uint64 // grows with each change
}

type ownerKey struct {
	namespace string
	Owner
}

// services are those of a namespace, found by a label that they want of pods: so a pod asks few of many.
type services struct {
	byName  map[string]service
	byLabel map[Label][]string // names
	others  []string           // that want no label with one value
}

type service struct {
	selector LabelSelector
	by       *Label // under which it is found; nil: among the others
}

func newGroups() groups {
	return groups{services: map[string]*services{}, owners: map[ownerKey]LabelSelector{}}
}

// set takes note of a group, and reports whether it selects other pods than before: its status does not matter.
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

// add takes in a service, under the label that it wants which the fewest others are found by.
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

// selecting lists the services that select pods with labels, by name.
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

// hardDefaults reports whether groups decide where a pod may go: it has no spread constraints of its own, and some that
// its profile gives it are hard.
func (k *class) hardDefaults() bool {
	return len(k.spread) == 0 && slices.ContainsFunc(k.profile.DefaultSpread, func(s SpreadConstraint) bool { return s.Hard })
}

// selectorFor joins the selectors of all groups that pod belongs to: those of the services that select it and that of
// its owner. ok is false if there are none, or if they select everything.
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

// defaultSpread remembers the aim of the default constraints for pods of one identity and owner.
type defaultSpread struct {
	version uint64
	owner   Owner
	aim     *census.Aim // nil: no groups, no constraints
}

// defaultsOf returns the aim of the default spread constraints for pods of who and owner; nil if they have none.
func (c *cluster) defaultsOf(who *census.Identity, owner Owner) *census.Aim {
	if s := &keptWith(who).spreading; s.version == c.groups.version+1 && s.owner == owner {
		return s.aim
	}
	old := keptWith(who).spreading.aim
	keptWith(who).spreading = defaultSpread{version: c.groups.version + 1, owner: owner}
	if selector, ok := c.groups.selectorFor(who, owner); ok {
		keptWith(who).spreading.aim = c.AimAt(census.AimPart{Namespaces: []string{who.Namespace}, ByLabels: LabelSelector{Nothing: true}, Pods: selector})
	}
	if old != nil {
		c.ReleaseAim(old)
	}
	return keptWith(who).spreading.aim
}
