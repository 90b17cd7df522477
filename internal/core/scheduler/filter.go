package scheduler

import (
	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler/rows"
	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler/volumes"
)

// RuleSet is a set of rules, one bit each.
type RuleSet uint32

// The rules, in the order in which they judge. A node is rejected by the first that objects, as upstream's filter chain
// stops at the first plugin, so that counts of reasons agree.
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

// A filterRule says whether a demand can go to a row, for one of upstream's plugins. One that is no aroundFilter looks
// at the row alone: its answer holds until the row changes.
//
// A new one is a file with a type that says all of this, and a line in rowFilters or aroundFilters. CONTRIBUTING.md has
// a checklist.
type filterRule interface {
	about() ruling
	// asks reports whether d has anything that it judges: else it rejects no row.
	asks(d *demand) bool
	// judge reports whether d can go to row r.
	judge(c *state, d *demand, r row) bool
	// explain appends the reasons of a rejection, spelled as upstream spells them.
	explain(c *state, d *demand, r row, reasons []string) []string
	// final reports whether no eviction from the row can change a rejection (upstream's UnschedulableAndUnresolvable).
	final(c *state, d *demand, r row) bool
	// narrow takes out of m the rows that judge rejects.
	narrow(c *state, d *demand, m rows.Mask)
}

// An aroundFilter looks at more than the row.
type aroundFilter interface {
	filterRule
	// key appends what the answer depends on besides the pods that are counted: rows with equal keys get the same
	// answer at any moment.
	key(c *state, d *demand, r row, key []int32) []int32
}

// A surroundFilter looks at pods around the row, by counters, and at nothing else of a demand but its surroundings:
// what they say is found out once for all pods that wait in the same surroundings (audience).
type surroundFilter interface {
	aroundFilter
	// meets reports whether pods in surroundings x can go to row r, as far as pods are counted.
	meets(x *surroundings, r row) bool
}

// A teller adds to failure the reasons for all rows in m at once.
type teller interface {
	tell(c *state, failure *Failure, d *demand, m rows.Mask)
}

// ruling is what is to be known of a filterRule before it is asked.
type ruling struct {
	rule RuleSet
	// plugin is upstream's name of the rule.
	plugin string
	// ends is what may end its rejections.
	ends  endedBy
	reads podFields
	alike bool // it gives the same reasons for all rows
}

// endedBy is what may end a rejection, one bit each. Pods that wait hear of what ends those that keep them off, and of
// nothing else; see waits.register.
type endedBy uint8

const (
	// byNothing: no fact ends it.
	byNothing endedBy = 1 << iota
	// byNode: the node says something else of itself, or is there at all. Every pod hears of that.
	byNode
	// byRoom: something has left the row, or it has become larger.
	byRoom
	// byCounters: a counter of the demand's surroundings counts another number. See surroundFilter.
	byCounters
	// byVolumes: a fact about claims, or what they come down to, is another. Every pod with claims hears of that.
	byVolumes
)

// The rules whose rejections may end by one of these.
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

// filter is a filterRule with what it says of itself.
type filter struct {
	filterRule
	ruling
	around   aroundFilter   // the same; nil: it looks at the row alone
	surround surroundFilter // the same; nil: its rejections do not end byCounters
}

// podFields are the fields of Pod that a rule reads, in whatever form. A class must hold all of them, and its key must
// tell them apart, or pods that differ share an answer; TestKeysTellWhatRulesRead holds them to it.
type podFields []string

// The rules, in the order in which they judge. Those that look at the row alone come first: what the others say of a
// row can be asked once for all rows with the same keys.
var (
	rowFilters = []filterRule{
		supportFilter{},
		agentFilter{},
		wholeFilter{ruling: ruling{rule: RuleVolumeRestrictions, plugin: "VolumeRestrictions"}, whole: func(a *volumes.Ask) string { return a.Unknown }},
		wholeFilter{ruling: ruling{rule: RuleVolumeBinding, plugin: "VolumeBinding"}, whole: func(a *volumes.Ask) string { return a.Useless }},
		wholeFilter{ruling: ruling{rule: RuleVolumeZone, plugin: "VolumeZone"}, whole: func(a *volumes.Ask) string { return a.Astray }},
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

// asksForMore reports whether any rule but those of some, and those that look at nothing but the node, may keep d off a
// row.
func (d *demand) asksForMore(than RuleSet) bool {
	for _, f := range d.profile.filters {
		if f.rule&(than|rulesOfNodes) == 0 && f.ends&(byRoom|byCounters|byVolumes) != 0 && f.asks(d) {
			return true
		}
	}
	return false
}

// objection returns the first of rules that keeps d off row r; nil: none does.
func (c *state) objection(rules []*filter, d *demand, r row) *filter {
	for _, f := range rules {
		if !f.judge(c, d, r) {
			return f
		}
	}
	return nil
}

// Verdict is what the rules say about one node.
type Verdict struct {
	Node    string
	Plugin  string   // upstream's name of the rule that rejected the node; empty: feasible
	Reasons []string // spelled as upstream spells them
	// Final: evicting pods from the node would not help.
	Final bool
	// Detail has the numbers behind the reason where there are more; else it is empty.
	Detail string
}

// verdict judges row r with all rules, nominated pods included.
func (c *state) verdict(d *demand, self PodID, r row) Verdict {
	v := Verdict{Node: c.name[r], Reasons: []string{}}
	c.asIfNominated(d, self, r, func() bool {
		f := c.objection(d.profile.filters, d, r)
		if f != nil {
			v.Plugin, v.Reasons, v.Final = f.plugin, f.explain(c, d, r, nil), f.final(c, d, r)
			if f.rule == RuleNUMA {
				v.Detail = c.detailNUMA(d, r)
			}
		}
		return f == nil
	})
	return v
}

// verdicts judges every node, in the order of names.
func (c *state) verdicts(d *demand, self PodID) []Verdict {
	var out []Verdict
	for _, name := range c.names() {
		out = append(out, c.verdict(d, self, c.rows[name]))
	}
	return out
}

// Judge asks some rules about one node and the pods on it, outside of any scheduling: the node's own last look at a
// pod. It returns the verdict of the first that objects; without Plugin, none does.
func Judge(pod Pod, node Node, held []Pod, rules RuleSet) Verdict {
	c := newCluster(0)
	r, _ := c.setNode(node)
	for i := range held {
		c.setPod(&held[i], node.Name, true)
	}
	d := &demand{class: c.compile(&pod)}
	for i := range filters {
		if f := &filters[i]; f.rule&rules != 0 && !f.judge(&c.state, d, r) {
			return Verdict{Node: node.Name, Plugin: f.plugin, Reasons: f.explain(&c.state, d, r, nil), Final: f.final(&c.state, d, r)}
		}
	}
	return Verdict{Node: node.Name}
}
