package placement

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
	judge  func(c *cluster, d *demand, r row) bool
	// explain appends the reasons of a rejection, spelled as upstream spells them.
	explain func(c *cluster, d *demand, r row, reasons []string) []string
	// final reports whether no eviction from the row can change a rejection (upstream's UnschedulableAndUnresolvable).
	final func(c *cluster, d *demand, r row) bool
	// key appends what the answer depends on besides the pods that are counted: rows with equal keys get the same answer
	// at any moment. nil: the rule looks at the row alone, and its answer holds until the row changes.
	key func(c *cluster, d *demand, r row, key []int32) []int32
	// whole, of a rule that asks about the pod's claims alone, is why no node can take it; empty: some may. It judges before
	// the rules that look at nodes.
	whole func(a *volumeAsk) string
}

// Rules that look at the row alone come first. What a later one says of a row can be asked once for all rows with
// the same keys.
var filters = []filter{
	{RuleSupported, "Plimsoll", isSupported, explainSupported, always, nil, nil},
	{RuleAgent, "Plimsoll", passesAgent, explainAgent, always, nil, nil},
	wholeRule(RuleVolumeRestrictions, "VolumeRestrictions", func(a *volumeAsk) string { return a.unknown }),
	wholeRule(RuleVolumeBinding, "VolumeBinding", func(a *volumeAsk) string { return a.useless }),
	wholeRule(RuleVolumeZone, "VolumeZone", func(a *volumeAsk) string { return a.astray }),
	{RuleNames, "NodeAffinity", passesNames, explainNames, always, nil, nil},
	{RuleUnschedulable, "NodeUnschedulable", passesCordon, constantly("node(s) were unschedulable"), always, nil, nil},
	{RuleTaints, "TaintToleration", passesTaints, constantly("node(s) had untolerated taint(s)"), always, nil, nil},
	{RuleNodeAffinity, "NodeAffinity", passesNodeAffinity, explainNodeAffinity, always, nil, nil},
	{RulePorts, "NodePorts", passesPorts, constantly("node(s) didn't have free ports for the requested pod ports"), never, nil, nil},
	{RuleResources, "NodeResourcesFit", passesResources, explainResources, resourcesAreFinal, nil, nil},
	{RuleVolumeRestrictions, "VolumeRestrictions", passesDisks, constantly("node(s) had no available disk"), never, nil, nil},
	{RuleNUMA, "NodeResourceTopologyMatch", passesNUMA, explainNUMA, numaIsFinal, nil, nil},
	{RuleVolumeRestrictions, "VolumeRestrictions", passesOncePod, constantly("node(s) unavailable due to PersistentVolumeClaim with ReadWriteOncePod access mode already in-use by another pod"), never, keyOncePod, nil},
	{RuleVolumeLimits, "NodeVolumeLimits", passesVolumeLimits, constantly("node(s) exceed max volume count"), never, keyVolumeLimits, nil},
	{RuleVolumeBinding, "VolumeBinding", passesVolumeBinding, explainVolumeBinding, always, keyVolumeBinding, nil},
	{RuleVolumeZone, "VolumeZone", passesVolumeZone, constantly("node(s) had no available volume zone"), always, keyVolumeZone, nil},
	{RuleSpread, "PodTopologySpread", passesSpread, explainSpread, spreadIsFinal, keySpread, nil},
	{RulePodAffinity, "InterPodAffinity", passesPodAffinity, explainPodAffinity, podAffinityIsFinal, keyPodAffinity, nil},
	{RuleFeatures, "NodeDeclaredFeatures", passesFeatures, constantly("node(s) didn't match Pod's required features"), always, keyFeatures, nil},
}

// wholeRule is what a rule says before any node is looked at. Terms that contradict each other have the first word.
func wholeRule(rule RuleSet, plugin string, whole func(*volumeAsk) string) filter {
	return filter{
		rule, plugin,
		func(_ *cluster, d *demand, _ row) bool {
			return d.volumes == nil || d.conflict || whole(d.volumes) == ""
		},
		func(_ *cluster, d *demand, _ row, reasons []string) []string {
			return append(reasons, whole(d.volumes))
		},
		always, nil, whole,
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

// Judge asks some rules about one node and the pods on it, outside of any scheduling: the node's own last look at a pod.
// It returns the verdict of the first that objects; without Plugin, none does.
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
