package scheduler

import (
	"slices"
	"time"

	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler/selector"
	"github.com/plimsoll-dev/plimsoll/internal/core/wellknown"
)

// Profile says which plugins are used for the pods of one schedulerName, and with which weights.
type Profile struct {
	Name string

	// Skip has the filters that are not used. Weights has the weights of scorers; a scorer that is absent is not used.
	// Both are by upstream's plugin names.
	Skip    map[string]bool
	Weights map[string]int64

	Strategy         Strategy
	Balanced         []string // resources of NodeResourcesBalancedAllocation
	IgnoredResources []string // extended resources that an extender manages
	IgnoredGroups    []string // the same, by the part of the name before the slash

	HardAffinityWeight      int64 // the score of each required affinity term of a pod on the node that selects this pod
	IgnoreExistingPreferred bool  // preferred terms of other pods do not affect pods without preferred pod terms

	DefaultSpread []SpreadConstraint // for pods without any; the selector is that of the pod's groups
	// SystemDefaults says that DefaultSpread is upstream's own, which also scores nodes without the topology key.
	SystemDefaults bool

	AddedAffinity  *[]NodeTerm // in addition to every pod's own
	AddedPreferred []WeightedTerm

	NoPreemption bool

	Sample Sample

	// VolumeTimeout is how long a pod waits for its volumes to be bound. Zero: upstream's default.
	VolumeTimeout time.Duration
}

// A Strategy scores nodes by how much of their resources is requested.
type Strategy struct {
	Type      string // LeastAllocated, MostAllocated or RequestedToCapacityRatio
	Resources []WeightedResource
	Shape     []ShapePoint // of RequestedToCapacityRatio, by rising utilization
}

// WeightedResource is a resource with its weight in a score.
type WeightedResource struct {
	Resource string
	Weight   int64
}

// ShapePoint is the score, 0 to 100, of a utilization in percent.
type ShapePoint struct{ Utilization, Score int64 }

// The scoring strategies of NodeResourcesFit.
const (
	LeastAllocated           = "LeastAllocated"
	MostAllocated            = "MostAllocated"
	RequestedToCapacityRatio = "RequestedToCapacityRatio"
)

// DefaultProfile is the default profile of kube-scheduler 1.36, apis/config/v1.
func DefaultProfile() Profile {
	soft := func(key string, skew int32) SpreadConstraint {
		return SpreadConstraint{MaxSkew: skew, TopologyKey: key, MinDomains: 1}
	}
	return Profile{
		Weights:            defaultWeights(),
		Strategy:           Strategy{Type: LeastAllocated, Resources: []WeightedResource{{CPU, 1}, {Memory, 1}}},
		Balanced:           []string{CPU, Memory},
		HardAffinityWeight: 1,
		DefaultSpread:      []SpreadConstraint{soft(wellknown.LabelHostname, 3), soft(wellknown.LabelZone, 5)},
		SystemDefaults:     true,
	}
}

// hasRule reports whether the profile has a rule.
func (p *profile) hasRule(rule RuleSet) bool {
	return slices.ContainsFunc(p.filters, func(f *filter) bool { return f.rule == rule })
}

// profile is a compiled Profile.
type profile struct {
	Profile
	hasAdded  bool
	added     selector.Terms
	preferred weightedTerms

	filters []*filter
	local   int // how many of filters depend on the row alone; these come first
	scorers []weightedScorer
}

func compileProfile(c *cluster, p Profile) *profile {
	out := &profile{Profile: p}
	if p.AddedAffinity != nil {
		out.hasAdded = true
		for _, t := range *p.AddedAffinity {
			out.added.Add(c.intern.Compile(t))
		}
	}
	for _, w := range p.AddedPreferred {
		out.preferred.add(w.Weight, c.intern.Compile(w.Term))
	}
	for i := range filters {
		if f := &filters[i]; !p.Skip[f.plugin] {
			out.filters = append(out.filters, f)
			if f.around == nil {
				out.local = len(out.filters)
			}
		}
	}
	for _, s := range allScorers(p.Weights) {
		if s.weight > 0 {
			out.scorers = append(out.scorers, s)
		}
	}
	return out
}
