package placement

// A Budget is a PodDisruptionBudget: how many of the pods it selects may still be disrupted.
type Budget struct {
	Namespace, Name string
	Selector        LabelSelector
	Allowed         int32
	Disrupted       []string // names of pods whose disruption is counted already
}

type budgets struct {
	in      map[string]map[string]*Budget // by namespace, name
	version uint64                        // grows with each change
}

func newBudgets() budgets { return budgets{in: map[string]map[string]*Budget{}} }

func (b *budgets) set(of Budget) {
	b.version++
	if b.in[of.Namespace] == nil {
		b.in[of.Namespace] = map[string]*Budget{}
	}
	b.in[of.Namespace][of.Name] = &of
}

func (b *budgets) remove(namespace, name string) {
	b.version++
	delete(b.in[namespace], name)
	if len(b.in[namespace]) == 0 {
		delete(b.in, namespace)
	}
}
