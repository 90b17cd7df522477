package scheduler

import (
	"slices"

	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler/rows"
	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler/volumes"
)

// RuleSet is a set of rules, one bit each.
type RuleSet uint32

// The rules, in the order of evaluation. A node is rejected by the first rule that rejects it. Upstream's filters stop
// at the first plugin, too, so the counts of reasons agree.
const (
	RuleSupported RuleSet = 1 << iota
	RuleAgent
	RuleVolumeRestrictions
	RuleVolumeLimits
	RuleVolumeBinding
	RuleVolumeZone
	RuleNames
	RuleUnschedulable
	RuleTaints
	RuleNodeAffinity
	RulePorts
	RuleResources
	RuleSpread
	RulePodAffinity
	RuleFeatures
	RuleNUMA
)

// A filterRule decides whether a demand fits a row, for one of upstream's plugins. The answer of a rule that is not an
// aroundFilter depends on the row alone, so it holds until the row changes.
//
// To add a rule, write a file with a type that implements this interface, and add a line in rowFilters or
// aroundFilters. CONTRIBUTING.md has a checklist.
type filterRule interface {
	about() ruling
	// applies reports whether the rule applies to d. If not, it rejects no row.
	applies(d *demand) bool
	// judge reports whether d fits row r.
	judge(c *state, d *demand, r row) bool
	// explain appends the reasons of a rejection, in upstream's words.
	explain(c *state, d *demand, r row, reasons []string) []string
	// final reports whether no eviction from the row can change a rejection (upstream's UnschedulableAndUnresolvable).
	final(c *state, d *demand, r row) bool
	// narrow removes from m the rows that judge rejects.
	narrow(c *state, d *demand, m rows.Mask)
}

// An aroundFilter depends on more than the row.
type aroundFilter interface {
	filterRule
	// key appends what the answer depends on, except the pods on rows. Rows with equal keys get the same answer at any
	// time.
	key(c *state, d *demand, r row, key []int32) []int32
}

// A surroundFilter depends on pods near the row, by counters, and of the demand only on its surroundings. So its answer
// is computed once for all waiting pods with the same surroundings (audience).
type surroundFilter interface {
	aroundFilter
	// meets reports whether pods with surroundings x fit row r, as far as other pods matter.
	meets(x *surroundings, r row) bool
}

// A bulkExplainer adds the reasons for all rows in m to failure at once.
type bulkExplainer interface {
	explainRows(c *state, failure *Failure, d *demand, m rows.Mask)
}

// ruling is what must be known of a filterRule before it is evaluated.
type ruling struct {
	rule RuleSet
	// plugin is upstream's name of the plugin.
	plugin string
	// ends is the kinds of changes that may end its rejections.
	ends endedBy
	// reads are the fields of Pod on which its answer depends.
	reads podFields
	alike bool // it gives the same reasons for all rows
}

// endedBy is a set of kinds of changes that may end a rejection. A waiting pod is notified of changes that may end its
// rejections, and of no others; see waits.register.
type endedBy uint8

const (
	// byNothing: no change ends it.
	byNothing endedBy = 1 << iota
	// byNode: the node changed, or was added. Every waiting pod is notified.
	byNode
	// byRoom: a pod left the row, or allocatable grew.
	byRoom
	// byCounters: a counter of the demand's surroundings changed. See surroundFilter.
	byCounters
	// byVolumes: a fact about claims, or about what they need, changed. Every waiting pod with claims is notified.
	byVolumes
)

// The rules whose rejections a change of one of these kinds may end.
var (
	rulesOfRoom = rulesEnded(byRoom)
	rulesAround = rulesEnded(byCounters)
)

func rulesEnded(by endedBy) (rules RuleSet) {
	for i := range filters {
		if filters[i].ends&by != 0 {
			rules |= filters[i].rule
		}
	}
	return rules
}

// filter is a filterRule with its ruling.
type filter struct {
	filterRule
	ruling
	around   aroundFilter   // the same rule; nil: it depends on the row alone
	surround surroundFilter // the same rule; nil: byCounters does not end its rejections
}

// podFields are the fields of Pod that a rule reads, in any form. A class must have all of them, and its key must
// depend on them; otherwise different pods would share an answer. TestKeysHaveWhatRulesRead checks that.
type podFields []string

// The rules, in the order of evaluation. Those that depend on the row alone come first. The answer of the others can be
// computed once for all rows with equal keys.
var (
	rowFilters = []filterRule{
		supportFilter{},
		agentFilter{},
		claimsFilter{
			ruling:  ruling{rule: RuleVolumeRestrictions, plugin: "VolumeRestrictions"},
			problem: func(a *volumes.Needs) string { return a.MissingClaim },
		},
		claimsFilter{
			ruling:  ruling{rule: RuleVolumeBinding, plugin: "VolumeBinding"},
			problem: func(a *volumes.Needs) string { return a.UnusableClaim },
		},
		claimsFilter{
			ruling:  ruling{rule: RuleVolumeZone, plugin: "VolumeZone"},
			problem: func(a *volumes.Needs) string { return a.UnknownZone },
		},
		nameFilter{},
		cordonFilter{},
		taintFilter{},
		nodeAffinityFilter{},
		portFilter{},
		resourceFilter{},
		diskFilter{},
		numaFilter{},
	}
	aroundFilters = []aroundFilter{
		oncePodFilter{},
		volumeLimitFilter{},
		volumeBindingFilter{},
		volumeZoneFilter{},
		spreadFilter{},
		podAffinityFilter{},
		featureFilter{},
	}
	filters = allFilters()
)

func allFilters() (all []filter) {
	for _, f := range rowFilters {
		all = append(all, filter{filterRule: f, ruling: f.about()})
	}
	for _, f := range aroundFilters {
		surround, _ := f.(surroundFilter)
		all = append(all, filter{filterRule: f, ruling: f.about(), around: f, surround: surround})
	}
	return all
}

// othersApply reports whether some rule may reject d on some row, apart from the rules in except and those that depend
// only on the node itself.
func (d *demand) othersApply(except RuleSet) bool {
	for _, f := range d.profile.filters {
		if f.rule&(except|nodeRules) == 0 && f.ends&(byRoom|byCounters|byVolumes) != 0 && f.applies(d) {
			return true
		}
	}
	return false
}

// firstRejecting returns the first of rules that rejects d on row r; nil: none does.
func (c *state) firstRejecting(rules []*filter, d *demand, r row) *filter {
	for _, f := range rules {
		if !f.judge(c, d, r) {
			return f
		}
	}
	return nil
}

// Verdict is the result of the rules for one node.
type Verdict struct {
	Node    string
	Plugin  string   // upstream's name of the plugin that rejected the node; empty: the node is feasible
	Rule    RuleSet  // the rule that rejected it; zero: none
	Reasons []string // in upstream's words
	// Short is, if RuleResources rejected it, each resource of which the node has too little left.
	Short []Shortage
	// Final says that evicting pods from the node would not help.
	Final bool
	// Detail has the numbers behind the reason, if there are any.
	Detail string
}

// verdict evaluates all rules for row r, with nominated pods.
func (c *state) verdict(d *demand, self PodID, r row) Verdict {
	v, _ := c.judgement(&lists{}, d.profile.filters, d, self, r, 0)
	return v
}

// lists has room for the lists of many verdicts: one for each would take most of their time.
type lists struct {
	reasons []string
	short   []Shortage
}

// judgement is verdict by filters, with its lists in l, and with what those of rules say that come after the rejection.
func (c *state) judgement(
	l *lists, filters []*filter, d *demand, self PodID, r row, rules RuleSet,
) (v Verdict, x Rejection) {
	c.withNominated(d, self, r, func() bool {
		v = Verdict{Node: c.name[r], Reasons: []string{}}
		at := slices.IndexFunc(filters, func(f *filter) bool { return !f.judge(c, d, r) })
		if at < 0 {
			return true
		}
		f := filters[at]
		v.Plugin = f.plugin
		v.Rule = f.rule
		v.Reasons = since(&l.reasons, func(all []string) []string { return f.explain(c, d, r, all) })
		v.Final = f.final(c, d, r)
		switch f.rule {
		case RuleNUMA:
			v.Detail = c.detailNUMA(d, r)
		case RuleResources:
			v.Short = since(&l.short, func(all []Shortage) []Shortage { return c.shortages(d, r, all) })
		}
		if rules != 0 {
			x = c.rejection(l, d, r, &v, filters[at+1:], rules)
		}
		return false
	})
	return v, x
}

// rejection returns the Rejection of a row with verdict v: of the rule that gave it and of those after it.
func (c *state) rejection(l *lists, d *demand, r row, v *Verdict, after []*filter, rules RuleSet) Rejection {
	x := Rejection{Rules: v.Rule & rules, Short: v.Short}
	if v.Final {
		x.Final = x.Rules
	}
	for _, f := range after {
		if f.rule&rules == 0 || f.judge(c, d, r) {
			continue
		}
		x.Rules |= f.rule
		if f.final(c, d, r) {
			x.Final |= f.rule
		}
		if f.rule == RuleResources {
			x.Short = since(&l.short, func(all []Shortage) []Shortage { return c.shortages(d, r, all) })
		}
	}
	return x
}

// since returns what more appends to all.
func since[T any](all *[]T, more func([]T) []T) []T {
	from := len(*all)
	*all = more(*all)
	return slices.Clip((*all)[from:])
}

// judgements evaluates every node, in the order of names.
func (c *state) judgements(d *demand, self PodID, rules RuleSet) (all []Verdict, rejections []Rejection) {
	nodes := c.byName()
	all, rejections = make([]Verdict, len(nodes)), make([]Rejection, len(nodes))
	l := lists{reasons: make([]string, 0, len(nodes)), short: make([]Shortage, 0, len(nodes))} // one for most
	filters := slices.DeleteFunc(slices.Clone(d.profile.filters), func(f *filter) bool { return !f.applies(d) })
	for i, n := range nodes {
		all[i], rejections[i] = c.judgement(&l, filters, d, self, n.row, rules)
	}
	return all, rejections
}
