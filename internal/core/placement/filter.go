package placement

import "github.com/plimsoll-dev/plimsoll/internal/core/placement/volumes"

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

// A filter is one rule. It returns the reasons for which a demand cannot go to row r; none means that it can.
type filter struct {
	rule RuleSet
	// plugin is upstream's name of the rule.
	plugin string
	reads  podFields
	judge  func(c *cluster, d *demand, r row) bool
	// explain appends the reasons of a rejection, spelled as upstream spells them.
	explain func(c *cluster, d *demand, r row, reasons []string) []string
	// final reports whether no eviction from the row can change a rejection (upstream's UnschedulableAndUnresolvable).
	final func(c *cluster, d *demand, r row) bool
	// key appends what the answer depends on besides the pods that are counted: rows with equal keys get the same
	// answer at any moment. nil: the rule looks at the row alone, and its answer holds until the row changes.
	key func(c *cluster, d *demand, r row, key []int32) []int32
	// narrow takes out of m the rows that the rule rejects; nil: they are asked one by one.
	narrow func(c *cluster, d *demand, m mask)
	// alike: it gives the same reasons for all rows. tell, if there is one, adds to failure the reasons for those in m.
	alike bool
	tell  func(c *cluster, failure *Failure, d *demand, m mask)
	// whole, of a rule that asks about the pod's claims alone, is why no node can take it; empty: some may. It judges
	// before the rules that look at nodes.
	whole func(a *volumes.Ask) string
}

// podFields are the fields of Pod that a rule reads, in whatever form. A class must hold all of them, and its key must
// tell them apart, or pods that differ share an answer; TestKeysTellWhatRulesRead holds them to it.
type podFields []string

// Rules that look at the row alone come first. What a later one says of a row can be asked once for all rows with
// the same keys.
var filters = []filter{
	{rule: RuleSupported, plugin: "Plimsoll", reads: podFields{"Unsupported"}, judge: isSupported, explain: explainSupported, final: always, narrow: narrowSupported, alike: true},
	{rule: RuleAgent, plugin: "Plimsoll", reads: podFields{"NeedsOfAgent", "Mounts"}, judge: passesAgent, explain: explainAgent, final: always, narrow: narrowAgent},
	wholeRule(RuleVolumeRestrictions, "VolumeRestrictions", func(a *volumes.Ask) string { return a.Unknown }),
	wholeRule(RuleVolumeBinding, "VolumeBinding", func(a *volumes.Ask) string { return a.Useless }),
	wholeRule(RuleVolumeZone, "VolumeZone", func(a *volumes.Ask) string { return a.Astray }),
	{rule: RuleNames, plugin: "NodeAffinity", reads: podFields{"NodeAffinity"}, judge: passesNames, explain: explainNames, final: always, narrow: narrowNames, alike: true},
	{
		rule: RuleUnschedulable, plugin: "NodeUnschedulable", reads: podFields{"Tolerations"}, judge: passesCordon, explain: constantly("node(s) were unschedulable"), final: always,
		narrow: narrowCordon, alike: true,
	},
	{
		rule: RuleTaints, plugin: "TaintToleration", reads: podFields{"Tolerations"}, judge: passesTaints, explain: constantly("node(s) had untolerated taint(s)"), final: always,
		narrow: narrowTaints, alike: true,
	},
	{rule: RuleNodeAffinity, plugin: "NodeAffinity", reads: podFields{"NodeSelector", "NodeAffinity"}, judge: passesNodeAffinity, explain: explainNodeAffinity, final: always, narrow: narrowNodeAffinity},
	{
		rule: RulePorts, plugin: "NodePorts", reads: podFields{"Ports"}, judge: passesPorts, explain: constantly("node(s) didn't have free ports for the requested pod ports"), final: never,
		narrow: narrowPorts, alike: true,
	},
	{
		rule: RuleResources, plugin: "NodeResourcesFit", reads: podFields{"Requests"}, judge: passesResources, explain: explainResources, final: resourcesAreFinal,
		narrow: narrowResources, tell: tellResources,
	},
	{
		rule: RuleVolumeRestrictions, plugin: "VolumeRestrictions", reads: podFields{"Mounts"}, judge: passesDisks, explain: constantly("node(s) had no available disk"), final: never,
		narrow: narrowDisks, alike: true,
	},
	{rule: RuleNUMA, plugin: "NodeResourceTopologyMatch", reads: podFields{"NUMA"}, judge: passesNUMA, explain: explainNUMA, final: numaIsFinal, narrow: narrowNUMA},
	{
		rule: RuleVolumeRestrictions, plugin: "VolumeRestrictions", reads: podFields{"Namespace", "Mounts"}, judge: passesOncePod, explain: constantly(reasonOncePod), final: never,
		key: keyOncePod, narrow: narrowOncePod, alike: true,
	},
	{
		rule: RuleVolumeLimits, plugin: "NodeVolumeLimits", reads: podFields{"Namespace", "Mounts"}, judge: passesVolumeLimits, explain: constantly("node(s) exceed max volume count"), final: never,
		key: keyVolumeLimits, narrow: narrowVolumeLimits, alike: true,
	},
	{
		rule: RuleVolumeBinding, plugin: "VolumeBinding", reads: podFields{"Namespace", "Mounts"}, judge: passesVolumeBinding, explain: explainVolumeBinding, final: always,
		key: keyVolumeBinding, narrow: narrowVolumeBinding,
	},
	{
		rule: RuleVolumeZone, plugin: "VolumeZone", reads: podFields{"Namespace", "Mounts"}, judge: passesVolumeZone, explain: constantly("node(s) had no available volume zone"), final: always,
		key: keyVolumeZone, narrow: narrowVolumeZone, alike: true,
	},
	{
		rule: RuleSpread, plugin: "PodTopologySpread", reads: podFields{"Spread", "Namespace", "Labels", "Owner", "NodeSelector", "NodeAffinity", "Tolerations"}, judge: passesSpread, explain: explainSpread, final: spreadIsFinal,
		key: keySpread, narrow: narrowSpread,
	},
	{
		rule: RulePodAffinity, plugin: "InterPodAffinity", reads: podFields{"Affinity", "AntiAffinity", "Namespace", "Labels"}, judge: passesPodAffinity, explain: explainPodAffinity, final: podAffinityIsFinal,
		key: keyPodAffinity, narrow: narrowPodAffinity,
	},
	{
		rule: RuleFeatures, plugin: "NodeDeclaredFeatures", reads: podFields{"Features"}, judge: passesFeatures, explain: constantly("node(s) didn't match Pod's required features"), final: always,
		key: keyFeatures, narrow: narrowFeatures, alike: true,
	},
}

const reasonOncePod = "node(s) unavailable due to PersistentVolumeClaim with ReadWriteOncePod access mode already in-use by another pod"

// wholeRule is what a rule says before any node is looked at. Terms that contradict each other have the first word.
func wholeRule(rule RuleSet, plugin string, whole func(*volumes.Ask) string) filter {
	rejects := func(d *demand) bool { return d.volumes != nil && !d.conflict && whole(d.volumes) != "" }
	return filter{
		rule: rule, plugin: plugin, reads: podFields{"Namespace", "Mounts", "ID", "Name"},
		judge: func(_ *cluster, d *demand, _ row) bool { return !rejects(d) },
		explain: func(_ *cluster, d *demand, _ row, reasons []string) []string {
			return append(reasons, whole(d.volumes))
		},
		final:  always,
		narrow: func(_ *cluster, d *demand, m mask) { m.unless(rejects(d)) },
		alike:  true, whole: whole,
	}
}

func always(*cluster, *demand, row) bool { return true }
func never(*cluster, *demand, row) bool  { return false }

func constantly(reason string) func(*cluster, *demand, row, []string) []string {
	return func(_ *cluster, _ *demand, _ row, reasons []string) []string { return append(reasons, reason) }
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
