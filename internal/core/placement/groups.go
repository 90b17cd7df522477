package placement

import (
	"maps"
	"slices"

	"github.com/plimsoll-dev/plimsoll/internal/core/placement/census"
)

// groups are the objects that select pods. Only the default spread constraints ask for them.
type groups struct {
	services map[string]map[string]LabelSelector // by namespace, name
	owners   map[ownerKey]LabelSelector
	version  uint64 // grows with each change
}

type ownerKey struct {
	namespace string
	Owner
}

func newGroups() groups {
	return groups{services: map[string]map[string]LabelSelector{}, owners: map[ownerKey]LabelSelector{}}
}

// set takes note of a group, and reports whether it selects other pods than before: its status does not matter.
func (g *groups) set(of Group) (changed bool) {
	was, known := g.services[of.Namespace][of.Name]
	owner := ownerKey{of.Namespace, Owner{of.Kind, of.Name}}
	if of.Kind != KindService {
		was, known = g.owners[owner]
	}
	if known && was.Equal(&of.Selector) {
		return false
	}
	g.version++
	if of.Kind != KindService {
		g.owners[owner] = of.Selector
		return true
	}
	if g.services[of.Namespace] == nil {
		g.services[of.Namespace] = map[string]LabelSelector{}
	}
	g.services[of.Namespace][of.Name] = of.Selector
	return true
}

func (g *groups) remove(of Group) {
	g.version++
	if of.Kind != KindService {
		delete(g.owners, ownerKey{of.Namespace, Owner{of.Kind, of.Name}})
		return
	}
	delete(g.services[of.Namespace], of.Name)
	if len(g.services[of.Namespace]) == 0 {
		delete(g.services, of.Namespace)
	}
}

// hardDefaults reports whether groups decide where a pod may go: it has no spread constraints of its own, and some that
// its profile gives it are hard.
func (k *class) hardDefaults() bool {
	return len(k.spread) == 0 && slices.ContainsFunc(k.profile.DefaultSpread, func(s SpreadConstraint) bool { return s.Hard })
}

// selectorFor joins the selectors of all groups that pod belongs to: those of the services that select it and that of
// its owner. ok is false if there are none, or if they select everything.
func (g *groups) selectorFor(who *census.Identity, owner Owner) (s LabelSelector, ok bool) {
	for _, name := range slices.Sorted(maps.Keys(g.services[who.Namespace])) {
		service := g.services[who.Namespace][name]
		if service.Selects(who.Labels) {
			s.Requirements = append(s.Requirements, service.Requirements...)
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
