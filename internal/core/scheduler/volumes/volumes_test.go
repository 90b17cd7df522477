package volumes

import (
	"slices"
	"testing"

	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler/rows"
	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler/selector"
	"github.com/plimsoll-dev/plimsoll/internal/core/wellknown"
)

// shelf is a store with two nodes, and the rows for which the function changed was called.
type shelf struct {
	*Store
	in      *selector.Interner
	changed []rows.Row
	nodes   []Place
}

func newShelf() *shelf {
	x := &shelf{in: selector.NewInterner()}
	x.Store = NewStore(x.in, func(r rows.Row) { x.changed = append(x.changed, r) })
	for i, name := range []string{"n0", "n1"} {
		x.AddRow()
		labels := []selector.Label{
			{Key: "kubernetes.io/hostname", Value: name},
			{Key: "topology.kubernetes.io/zone", Value: "z" + name[1:]},
		}
		x.nodes = append(x.nodes, Place{Row: rows.Row(i), Name: name, Labels: x.in.Labels(labels)})
	}
	x.SetClass("slow", &StorageClass{Name: "slow", Waits: true, Provisioner: "d", Driver: "d"})
	x.SetClass("local", &StorageClass{Name: "local", Waits: true, Provisioner: NoProvisioner})
	return x
}

func onHost(name string) *[]selector.NodeTerm {
	return &[]selector.NodeTerm{
		{Labels: []selector.Requirement{{Key: "kubernetes.io/hostname", Op: selector.In, Values: []string{name}}}},
	}
}

func (x *shelf) ask(w *PodMounts) *Needs { return x.NeedsOf(w, x.Inputs(w, nil)) }

func wants(claims ...string) *PodMounts {
	var mounts []Mount
	for _, name := range claims {
		mounts = append(mounts, Mount{Claim: name})
	}
	w := PodMountsOf(mounts, "x", "uid", "pod")
	return &w
}

// TestBind checks that each claim gets the smallest volume that matches, a different one each, and that volumes are
// provisioned where there is none, if possible.
func TestBind(t *testing.T) {
	x := newShelf()
	for _, v := range []Volume{{Name: "large", Capacity: 9}, {Name: "small", Capacity: 1}, {Name: "right", Capacity: 4}} {
		v.Class, v.Available, v.Affinity, v.Version = "local", true, onHost("n0"), "1"
		x.VolumeSeen(v)
	}
	x.ClaimSeen(&Claim{Namespace: "x", Name: "a", Class: "local", Size: 3, Version: "1"})
	x.ClaimSeen(&Claim{Namespace: "x", Name: "b", Class: "local", Size: 2, Version: "1"})
	x.ClaimSeen(&Claim{Namespace: "x", Name: "made", Class: "slow", Size: 2, Sized: true, Version: "1"})
	a := x.ask(wants("a", "b", "made"))
	plan := &Plan{}
	if why := x.Bind(a, x.nodes[0], plan); why != 0 {
		t.Fatalf("n0: %v", why.Explain(nil))
	}
	if len(plan.Bind) != 2 || plan.Bind[0].Volume != "right" || plan.Bind[1].Volume != "large" ||
		plan.Bind[0].ClaimName != "b" {
		t.Errorf("bound: %+v, want the smaller claim to have the smaller volume", plan.Bind)
	}
	if len(plan.Provision) != 1 || plan.Provision[0].Node != "n0" {
		t.Errorf("made: %+v", plan.Provision)
	}
	if got := x.Bind(a, x.nodes[1], nil).Explain(nil); !slices.Equal(got, reasons[1:2]) {
		t.Errorf("n1, from which no volume is accessible: %v", got)
	}
	x.SetDriver("d", true, true)
	if got := x.Bind(x.ask(wants("made")), x.nodes[0], nil).Explain(nil); !slices.Equal(got, reasons[2:3]) {
		t.Errorf("a driver without enough capacity: %v", got)
	}
	if _, _, larger := x.SetCapacity(ClaimKey{Name: "k"}, "slow", &Capacity{Nodes: &selector.Selector{}, Size: 2,
		Sized: true}); !larger {
		t.Error("the first capacity does not count as larger")
	}
	if why := x.Bind(x.ask(wants("made")), x.nodes[0], nil); why != 0 {
		t.Errorf("a driver with enough capacity: %v", why.Explain(nil))
	}
	lacking := x.nodes[0]
	lacking.Lacks = []string{wellknown.LacksCSI}
	if got := x.Bind(x.ask(wants("made")), lacking, nil).Explain(nil); !slices.Equal(got, reasons[4:]) {
		t.Errorf("an agent that cannot mount it: %v", got)
	}
}

// TestAssume checks that assumed changes are visible until the API's facts arrive, or the plan has failed.
func TestAssume(t *testing.T) {
	x := newShelf()
	x.VolumeSeen(Volume{Name: "v", Class: "local", Available: true, Version: "1"})
	claim := Claim{Namespace: "x", Name: "a", UID: "u", Class: "local", Version: "1"}
	x.ClaimSeen(&claim)
	place := func() *Plan {
		plan := &Plan{}
		if why := x.Bind(x.ask(wants("a")), x.nodes[0], plan); why != 0 {
			t.Fatalf("there is no volume for it: %v", why.Explain(nil))
		}
		x.Assume(plan)
		return plan
	}
	plan := place()
	x.ClaimSeen(&Claim{Namespace: "x", Name: "other", Class: "local", Version: "1"})
	if x.Bind(x.ask(wants("other")), x.nodes[0], nil) == 0 {
		t.Error("another claim gets the volume, too")
	}
	if x.APIVolume("v").Claimed {
		t.Error("an assumed change is returned as the API's fact")
	}
	volumes, _ := x.Revert(plan)
	if len(volumes) != 1 || x.Bind(x.ask(wants("other")), x.nodes[0], nil) != 0 {
		t.Errorf("reverted: %v, but another claim cannot get the volume", volumes)
	}
	plan = place()
	if done, why := x.Check(plan, x.nodes[0]); done || why != "" {
		t.Errorf("nothing was written: %v, %q", done, why)
	}
	x.VolumeSeen(Volume{
		Name:           "v",
		Class:          "local",
		Version:        "2",
		Claimed:        true,
		ClaimNamespace: "x",
		ClaimName:      "a",
		ClaimUID:       "u",
	})
	claim.Version, claim.Volume, claim.Bound = "2", "v", true
	x.ClaimSeen(&claim)
	if done, why := x.Check(plan, x.nodes[0]); !done {
		t.Errorf("all is bound: %q", why)
	}
	if wrong := x.Audit(nil, []*Plan{plan}); wrong != nil {
		t.Error(wrong)
	}
}

// TestLimits checks that a volume of several pods counts once, that an attached one counts, and that rows are reported
// on which other volumes count than before.
func TestLimits(t *testing.T) {
	x := newShelf()
	of := func(handle string) Attached { return Attached{Driver: "d", Handle: handle} }
	x.SetNodeStorage(0, &NodeStorage{Node: "n0", Limits: map[string]int64{"d": 2}})
	for _, name := range []string{"v1", "v2", "v3"} {
		x.VolumeSeen(Volume{Name: name, CSI: true, Attached: of(name)})
	}
	x.ClaimSeen(&Claim{Namespace: "x", Name: "a", Volume: "v1", Bound: true})
	x.Mount(0, wants("a"), 1)
	x.Mount(0, wants("a"), 1)
	if x.TooMany(0, []Attached{of("v1"), of("v2")}) {
		t.Error("a volume that two pods share counts twice")
	}
	x.Attach(Attachment{Name: "t", Node: "n0", Driver: "d", Volume: "v3"}, 0)
	if !x.TooMany(0, []Attached{of("v2")}) || !x.Exceeds(0, "d", 1) {
		t.Error("a volume that is still attached does not count")
	}
	if x.TooMany(1, []Attached{of("v2")}) {
		t.Error("a node without limits rejects a volume")
	}
	if x.Idle(0) || !x.Idle(1) {
		t.Error("a row with an attachment is idle, or one without is not")
	}
	x.changed = nil
	x.ClaimSeen(&Claim{Namespace: "x", Name: "a", Volume: "v2", Bound: true, Version: "2"})
	if !slices.Equal(x.changed, []rows.Row{0}) {
		t.Errorf("changed was called for rows %v, want those whose pods mount the changed claim", x.changed)
	}
	x.Mount(0, wants("a"), -1)
	if r := x.Detach("t"); r != 0 || x.Exceeds(0, "d", 1) {
		t.Errorf("row %d, and the node has no room for one more volume", r)
	}
}

// TestAuditCanFail checks that Audit finds the errors for which the histories of package scheduler use it.
func TestAuditCanFail(t *testing.T) {
	x := newShelf()
	x.ClaimSeen(&Claim{Namespace: "x", Name: "a"})
	w := wants("a")
	x.Mount(0, w, 1)
	if wrong := x.Audit(nil, nil); len(wrong) != 1 {
		t.Errorf("a use by no pod: %v", wrong)
	}
	x.Use(w, 1, false)
	if wrong := x.Audit([]CountedPod{{Mounts: w, Row: 0}}, nil); wrong != nil {
		t.Error(wrong)
	}
	x.apiVolumes["v"] = &KnownVolume{}
	x.stockFor("local").anywhere = []*KnownVolume{{}}
	if wrong := x.Audit([]CountedPod{{Mounts: w, Row: 0}}, nil); len(wrong) != 2 {
		t.Errorf("a volume in stock that does not exist, and one that is assumed without a plan: %v", wrong)
	}
}
