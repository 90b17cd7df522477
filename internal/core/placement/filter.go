package placement

// RuleSet is a set of rules, one bit each.
type RuleSet uint32

// The rules, in the order in which they judge. A node is rejected by the first that objects, as upstream's filter chain
// stops at the first plugin, so that counts of reasons agree.
const (
	RuleSupported RuleSet = 1 << iota
	RuleNames
	RuleUnschedulable
	RuleTaints
	RuleNodeAffinity
	RulePorts
	RuleResources
)

// A filter is one rule. It returns the reasons for which a pod of class k cannot go to row r; none means that it can.
// reasons is a buffer to append to, so that judging 5,000 nodes allocates nothing; a nil buffer asks only for the verdict.
type filter struct {
	rule RuleSet
	// plugin is upstream's name of the rule.
	plugin string
	judge  func(c *cluster, k *class, r row) bool
	// explain appends the reasons of a rejection, spelled as upstream spells them.
	explain func(c *cluster, k *class, r row, reasons []string) []string
}

var filters = []filter{
	{RuleSupported, "Plimsoll", isSupported, explainSupported},
	{RuleNames, "NodeAffinity", passesNames, explainNames},
	{RuleUnschedulable, "NodeUnschedulable", passesCordon, constantly("node(s) were unschedulable")},
	{RuleTaints, "TaintToleration", passesTaints, constantly("node(s) had untolerated taint(s)")},
	{RuleNodeAffinity, "NodeAffinity", passesNodeAffinity, constantly("node(s) didn't match Pod's node affinity/selector")},
	{RulePorts, "NodePorts", passesPorts, constantly("node(s) didn't have free ports for the requested pod ports")},
	{RuleResources, "NodeResourcesFit", passesResources, explainResources},
}

func constantly(reason string) func(*cluster, *class, row, []string) []string {
	return func(_ *cluster, _ *class, _ row, reasons []string) []string { return append(reasons, reason) }
}

// firstRejection returns the first rule that keeps class k off row r, and appends its reasons to the buffer if there is
// one. Zero means that the row is feasible.
func (c *cluster) firstRejection(k *class, r row, reasons []string) (RuleSet, []string) {
	for i := range filters {
		f := &filters[i]
		if f.judge(c, k, r) {
			continue
		}
		if reasons != nil {
			reasons = f.explain(c, k, r, reasons)
		}
		return f.rule, reasons
	}
	return 0, reasons
}

// Verdict is what the rules say about one node.
type Verdict struct {
	Node    string
	Plugin  string   // upstream's name of the rule that rejected the node; empty: feasible
	Reasons []string // spelled as upstream spells them
}

func (c *cluster) verdicts(k *class) []Verdict {
	var out []Verdict
	for _, name := range c.names() {
		rule, reasons := c.firstRejection(k, c.rows[name], make([]string, 0, 2))
		v := Verdict{Node: name, Reasons: reasons}
		for _, f := range filters {
			if f.rule == rule {
				v.Plugin = f.plugin
			}
		}
		out = append(out, v)
	}
	return out
}

// Judge asks some rules about one node and the pods on it, outside of any scheduling: the node's own last look at a pod.
// It returns the verdict of the first that objects; without Plugin, none does.
func Judge(pod Pod, node Node, held []Pod, rules RuleSet) Verdict {
	c := newCluster()
	r, _ := c.setNode(node)
	for _, h := range held {
		c.setPod(h.ID, node.Name, c.compile(h), true)
	}
	k := c.compile(pod)
	for _, f := range filters {
		if f.rule&rules != 0 && !f.judge(c, k, r) {
			return Verdict{Node: node.Name, Plugin: f.plugin, Reasons: f.explain(c, k, r, nil)}
		}
	}
	return Verdict{Node: node.Name}
}
