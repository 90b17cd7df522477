package scheduler

import (
	"slices"
	"time"

	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler/selector"
)

// Profile says which rules judge the pods of one schedulerName, and how scores weigh.
type Profile struct {
	Name string

	// Skip names filters that do not judge, Weights the scorers that count; one that is absent does not. By plugin.
	Skip    map[string]bool
	Weights map[string]int64

	Strategy         Strategy
	Balanced         []string // resources of NodeResourcesBalancedAllocation
	IgnoredResources []string // extended resources that somebody else counts
	IgnoredGroups    []string // likewise, by the part of the name before the slash

	HardAffinityWeight  int64 // what a required affinity term of a pod that is there adds
	IgnoreHeldPreferred bool  // pods without preferred pod terms are not drawn or driven off by those of others

	DefaultSpread []SpreadConstraint // for pods without any; their selector is that of the pod's groups
	// SystemDefaults: DefaultSpread is upstream's own, which also scores nodes that lack a key.
	SystemDefaults bool

	AddedAffinity  *[]NodeTerm // every pod's, besides its own
	AddedPreferred []WeightedTerm

	NoPreemption bool

	Sample Sample

	// VolumeTimeout is how long volumes that a pod waits for may take to be bound. Zero: upstream's default.
	VolumeTimeout time.Duration
}

// A Strategy scores nodes by how much of them is taken.
type Strategy struct {
	Type      string // LeastAllocated, MostAllocated or RequestedToCapacityRatio
	Resources []WeightedResource
	Shape     []ShapePoint // of RequestedToCapacityRatio, by rising utilization
}

// WeightedResource is a resource that counts Weight times.
type WeightedResource struct {
	Resource string
	Weight   int64
}

// ShapePoint says what score, 0 to 100, a utilization in percent has.
type ShapePoint struct{ Utilization, Score int64 }

// The scoring strategies of NodeResourcesFit.
const (
	LeastAllocated           = "LeastAllocated"
	MostAllocated            = "MostAllocated"
	RequestedToCapacityRatio = "RequestedToCapacityRatio"
)

// DefaultProfile is that of kube-scheduler 1.36, apis/config/v1.
func DefaultProfile() Profile {
	soft := func(key string, skew int32) SpreadConstraint {
		return SpreadConstraint{MaxSkew: skew, TopologyKey: key, MinDomains: 1}
	}
	return Profile{
		Weights:            defaultWeights(),
		Strategy:           Strategy{Type: LeastAllocated, Resources: []WeightedResource{{CPU, 1}, {Memory, 1}}},
		Balanced:           []string{CPU, Memory},
		HardAffinityWeight: 1,
		DefaultSpread:      []SpreadConstraint{soft("kubernetes.io/hostname", 3), soft("topology.kubernetes.io/zone", 5)},
		SystemDefaults:     true,
	}
}

// asksAbout reports whether a rule is one of the profile's.
func (p *profile) asksAbout(rule RuleSet) bool {
	return slices.ContainsFunc(p.filters, func(f *filter) bool { return f.rule == rule })
}

// profile is a Profile, compiled.
type profile struct {
	Profile
	hasAdded  bool
	added     selector.Terms
	preferred weightedTerms

	filters []*filter
	local   int // of filters, so many come first that look at nothing but the row
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
