package scheduler

import (
	"math"
	"math/bits"
	"slices"

	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler/census"
	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler/rows"
	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler/shrink"
)

// A Budget is a PodDisruptionBudget: how many of the pods that it selects may still be disrupted.
type Budget struct {
	Namespace, Name string
	Selector        LabelSelector
	Allowed         int32
	Disrupted       []string // names of pods whose disruption its status counts already
}

// budget is a Budget, with the number of chosen victims that its status does not count yet (charges.go).
type budget struct {
	Budget
	of      *selection
	number  row   // in budgetsIn.numbers
	place   int   // its index in selection.budgets
	charges int32 // how many victims count against it

	remains int32 // only during overBudget: what is left of it; see selection.each
}

// left returns how many pods may still be disrupted.
func (b *budget) left() int32 { return b.Allowed - b.charges }

// counts reports whether the disruption of h counts already.
func (b *budget) counts(h *placedPod) bool {
	x := b.of.in.charged[h.id]
	return x != nil && x.on.Has(b.number) || b.names(h.name)
}

// names reports whether the status of b names a pod as disrupted.
func (b *budget) names(pod string) bool {
	return b.of.in.named[pod] > 0 && slices.Contains(b.Disrupted, pod)
}

// A selection is the budgets of a namespace that have the same selector. They select the same pods. As long as none of
// them counts one of these pods as disrupted, only the smallest number that one of them allows matters, so many budgets
// cost no more than one.
type selection struct {
	in       *budgetsIn
	key      string // the selector, encoded; its key in budgetsIn.bySelector
	selector LabelSelector
	pods     *census.PodSet // the pods they select; it is not in the census
	number   row            // in budgetsIn.selections
	budgets  []*budget      // in no order
	least    int32          // see leastLeft
	stale    bool           // least must be recomputed

	// Only during overBudget, and only if call is the number of that call. taken is how many pods count against all of
	// the budgets. each says that budgets are counted one by one (budget.remains), because some count a pod already.
	call  uint64
	taken int32
	each  bool
}

// leastLeft returns the fewest disruptions that one of the budgets allows; anyNumber if there are none.
func (s *selection) leastLeft() int32 {
	if s.stale {
		s.stale, s.least = false, anyNumber
		for _, b := range s.budgets {
			s.least = min(s.least, b.left())
		}
	}
	return s.least
}

// take counts h as evicted, and reports whether one of the budgets does not allow that. counted says that some budget
// may count the disruption of h already. call is the number of the call of overBudget.
func (s *selection) take(h *placedPod, counted bool, call uint64) (over bool) {
	if s.call != call {
		s.call = call
		s.taken = 0
		s.each = false
	}
	if !counted && !s.each {
		s.taken++
		return s.leastLeft() < s.taken
	}
	if !s.each {
		s.each = true
		for _, b := range s.budgets {
			b.remains = b.left() - s.taken
		}
	}
	for _, b := range s.budgets {
		if counted && b.counts(h) {
			continue
		}
		b.remains--
		over = over || b.remains < 0
	}
	return over
}

// protects reports whether s selects the pods of who. As upstream, pods without labels are in no budget.
func (s *selection) protects(who *census.Identity) bool {
	return len(who.Labels) > 0 && s.selector.Matches(who.Labels)
}

// budgets are all budgets. The selections that have the pods of an identity are stored with the identity
// (identityData.budgets).
type budgets struct {
	in       map[string]*budgetsIn // by namespace
	calls    uint64                // counts the calls of overBudget
	expiries []expiry              // the earliest first
}

// budgetsIn has the budgets of a namespace. A selection that requires one of some values of a label is in byLabel under
// each of them, other selections are in others.
type budgetsIn struct {
	byName     map[string]*budget
	bySelector map[string]*selection
	byLabel    map[Label][]*selection
	others     []*selection
	selections numbered[selection]
	allPods    *census.PodSet // all pods of the namespace; it is not in the census

	numbers numbered[budget]
	charged map[PodID]*charge // by victim
	named   map[string]int    // how many budgets name a pod as disrupted
}

// selectedBy is the set of selections that have the pods of an identity. It is a mask, because there may be thousands
// of selections and of identities.
type selectedBy struct {
	in    *budgetsIn // nil if there are none
	which rows.Mask  // by number
}

// each yields the selections.
func (x *selectedBy) each(yield func(*selection) bool) {
	for i, w := range x.which {
		for ; w != 0; w &= w - 1 {
			if !yield(x.in.selections.of[i<<6|bits.TrailingZeros64(w)]) {
				return
			}
		}
	}
}

func (x *selectedBy) add(s *selection) { x.in, x.which = s.in, x.which.With(s.number) }

func (x *selectedBy) drop(s *selection) {
	x.which.Clear(s.number)
	for n := len(x.which); n > 0 && x.which[n-1] == 0; n-- {
		x.which = x.which[:n-1]
	}
	if len(x.which) == 0 {
		*x = selectedBy{}
	}
}

// count reports whether some budget may count the disruption of h already.
func (x *selectedBy) count(h *placedPod) bool {
	return x.in != nil && (x.in.charged[h.id] != nil || x.in.named[h.name] > 0)
}

// numbered gives things small numbers, and reuses numbers.
type numbered[T any] struct {
	of   []*T // by number; nil: the number is free
	free []row
}

func (x *numbered[T]) add(what *T) (number row) {
	if n := len(x.free); n > 0 {
		number, x.free = x.free[n-1], x.free[:n-1]
		x.of[number] = what
		return number
	}
	x.of = append(x.of, what)
	return row(len(x.of) - 1)
}

func (x *numbered[T]) drop(number row) {
	x.of[number] = nil
	x.free = append(x.free, number)
}

func newBudgets() budgets { return budgets{in: map[string]*budgetsIn{}} }

// at returns a budget; nil if there is none with this name.
func (b *budgets) at(namespace, name string) *budget {
	if in := b.in[namespace]; in != nil {
		return in.byName[name]
	}
	return nil
}

// inNamespace returns the budgets of a namespace, and creates an empty set if necessary.
func (b *budgets) inNamespace(name string) *budgetsIn {
	in := b.in[name]
	if in == nil {
		in = &budgetsIn{
			byName:     map[string]*budget{},
			bySelector: map[string]*selection{},
			byLabel:    map[Label][]*selection{},
			allPods:    setIn(name, LabelSelector{}),
			charged:    map[PodID]*charge{},
			named:      map[string]int{},
		}
		b.in[name] = in
	}
	return in
}

func setIn(namespace string, pods LabelSelector) *census.PodSet {
	return &census.PodSet{Parts: []census.PodSelector{
		{Namespaces: []string{namespace}, ByLabels: LabelSelector{Nothing: true}, Pods: pods},
	}}
}

// name records that one budget more (sign 1) or less (sign -1) names pods as disrupted.
func (in *budgetsIn) name(pods []string, sign int) {
	for _, pod := range pods {
		if in.named[pod] += sign; in.named[pod] == 0 {
			delete(in.named, pod)
		}
	}
}

// setBudget adds or replaces a budget.
func (c *cluster) setBudget(of Budget) {
	b := c.budgets.at(of.Namespace, of.Name)
	if b != nil && !b.Selector.Equal(&of.Selector) {
		c.removeBudget(of.Namespace, of.Name)
		b = nil
	}
	if b == nil {
		c.addBudget(of)
		return
	}
	in := b.of.in
	if !slices.Equal(b.Disrupted, of.Disrupted) {
		c.recordAll(b.of)
	}
	change := c.changeAllowed(in)
	change.of(b.of)
	in.name(b.Disrupted, -1)
	b.Budget = of
	in.name(b.Disrupted, 1)
	c.statusSeen(b)
	change.record()
}

func (c *cluster) addBudget(of Budget) {
	in := c.budgets.inNamespace(of.Namespace)
	s := c.selectionOf(in, of.Namespace, of.Selector)
	change := c.changeAllowed(in)
	change.of(s)
	b := &budget{Budget: of, of: s, place: len(s.budgets)}
	b.number = in.numbers.add(b)
	s.budgets = append(s.budgets, b)
	in.byName[of.Name] = b
	in.name(of.Disrupted, 1)
	change.record()
}

// selectionOf returns the selection with this selector, and creates it if necessary.
func (c *cluster) selectionOf(in *budgetsIn, namespace string, by LabelSelector) *selection {
	c.scratch = by.Append(c.scratch[:0])
	if known := in.bySelector[string(c.scratch)]; known != nil {
		return known
	}
	s := &selection{in: in, key: string(c.scratch), selector: by, pods: setIn(namespace, by), least: anyNumber}
	s.number = in.selections.add(s)
	in.bySelector[s.key] = s
	if labels := s.demanded(); labels == nil {
		in.others = append(in.others, s)
	} else {
		for _, label := range labels {
			in.byLabel[label] = append(in.byLabel[label], s)
		}
	}
	for _, who := range c.MayBeIn(s.pods) {
		if s.protects(who) {
			dataOf(who).budgets.add(s)
		}
	}
	return s
}

// demanded returns labels of which every pod of s has at least one; nil: s has no such requirement.
func (s *selection) demanded() (labels []Label) {
	q := s.pods.Demanded()
	if q == nil {
		return nil
	}
	for _, value := range q.Values {
		if label := (Label{Key: q.Key, Value: value}); !slices.Contains(labels, label) {
			labels = append(labels, label)
		}
	}
	return labels
}

func (c *cluster) removeBudget(namespace, name string) {
	b := c.budgets.at(namespace, name)
	if b == nil {
		return
	}
	s, in := b.of, b.of.in
	change := c.changeAllowed(in)
	change.of(s)
	for id, x := range in.charged {
		if x.on.Has(b.number) {
			c.uncharge(b, id, x)
		}
	}
	last := s.budgets[len(s.budgets)-1]
	s.budgets[b.place], last.place = last, b.place
	s.budgets[len(s.budgets)-1] = nil
	s.budgets = s.budgets[:len(s.budgets)-1]
	change.record()
	in.name(b.Disrupted, -1)
	in.numbers.drop(b.number)
	if len(s.budgets) == 0 {
		c.removeSelection(s)
	}
	if delete(in.byName, name); len(in.byName) == 0 {
		delete(c.budgets.in, namespace)
	}
}

func (c *cluster) removeSelection(s *selection) {
	for _, who := range c.MayBeIn(s.pods) {
		if dataOf(who).budgets.which.Has(s.number) {
			dataOf(who).budgets.drop(s)
		}
	}
	in := s.in
	in.selections.drop(s.number)
	delete(in.bySelector, s.key)
	labels := s.demanded()
	if labels == nil {
		in.others = shrink.Without(in.others, s)
	}
	for _, label := range labels {
		if in.byLabel[label] = shrink.Without(in.byLabel[label], s); len(in.byLabel[label]) == 0 {
			delete(in.byLabel, label)
		}
	}
}

// findBudgets finds the budgets that select the pods of a new identity.
func (c *cluster) findBudgets(who *census.Identity) {
	in := c.budgets.in[who.Namespace]
	if in == nil {
		return
	}
	find := func(list []*selection) {
		for _, s := range list {
			if s.protects(who) {
				dataOf(who).budgets.add(s)
			}
		}
	}
	for _, label := range who.Labels {
		find(in.byLabel[label])
	}
	find(in.others)
}

// overBudget reports for each of pods, evicted in this order, whether some disruption budget does not allow it.
func (c *cluster) overBudget(pods []*placedPod) []bool {
	spent := c.overAllowed[:0]
	c.budgets.calls++
	for _, h := range pods {
		by := &dataOf(h.Who).budgets
		over, counted := false, by.count(h)
		for s := range by.each {
			if int(s.leastLeft()) < len(pods) { // otherwise its budgets allow the eviction of all pods
				over = s.take(h, counted, c.budgets.calls) || over
			}
		}
		spent = append(spent, over)
	}
	c.overAllowed = spent
	return spent
}

// isProtected reports whether a budget of h allows no further disruption.
func (h *placedPod) isProtected() bool {
	by := &dataOf(h.Who).budgets
	counted := by.count(h)
	spent := func(b *budget) bool { return b.left() <= 0 && !b.counts(h) }
	for s := range by.each {
		if s.leastLeft() <= 0 && (!counted || slices.ContainsFunc(s.budgets, spent)) {
			return true
		}
	}
	return false
}

// anyNumber is what is allowed where there is no budget.
const anyNumber = math.MaxInt32
