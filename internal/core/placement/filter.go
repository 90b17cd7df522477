package placement

import (
	"github.com/plimsoll-dev/plimsoll/internal/core/placement/rows"
	"github.com/plimsoll-dev/plimsoll/internal/core/placement/volumes"
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
// A new one is a file with a type that says all of this, and a line in rowFilters or aroundFilters.
type filterRule interface {
	about() ruling
	// judge reports whether d can go to row r.
	judge(c *cluster, d *demand, r row) bool
	// explain appends the reasons of a rejection, spelled as upstream spells them.
	explain(c *cluster, d *demand, r row, reasons []string) []string
	// final reports whether no eviction from the row can change a rejection (upstream's UnschedulableAndUnresolvable).
	final(c *cluster, d *demand, r row) bool
	// narrow takes out of m the rows that judge rejects.
	narrow(c *cluster, d *demand, m rows.Mask)
}

// An aroundFilter looks at more than the row.
type aroundFilter interface {
	filterRule
	// key appends what the answer depends on besides the pods that are counted: rows with equal keys get the same
	// answer at any moment.
	key(c *cluster, d *demand, r row, key []int32) []int32
}

// A teller adds to failure the reasons for all rows in m at once.
type teller interface {
	tell(c *cluster, failure *Failure, d *demand, m rows.Mask)
}

// ruling is what is to be known of a filterRule before it is asked.
type ruling struct {
	rule RuleSet
	// plugin is upstream's name of the rule.
	plugin string
	reads  podFields
	alike  bool // it gives the same reasons for all rows
}

// filter is a filterRule with what it says of itself.
type filter struct {
	filterRule
	ruling
	around aroundFilter // the same; nil: it looks at the row alone
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
		all = append(all, filter{filterRule: f, ruling: f.about(), around: f})
	}
	return all
}

// objection returns the first of rules that keeps d off row r; nil: none does.
func (c *cluster) objection(rules []*filter, d *demand, r row) *filter {
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
func (c *cluster) verdict(d *demand, self PodID, r row) Verdict {
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
func (c *cluster) verdicts(d *demand, self PodID) []Verdict {
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
		if f := &filters[i]; f.rule&rules != 0 && !f.judge(c, d, r) {
			return Verdict{Node: node.Name, Plugin: f.plugin, Reasons: f.explain(c, d, r, nil), Final: f.final(c, d, r)}
		}
	}
	return Verdict{Node: node.Name}
}
