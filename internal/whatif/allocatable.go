package whatif

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	kubeletconfigv1beta1 "k8s.io/kubelet/config/v1beta1"

	"github.com/plimsoll-dev/plimsoll/internal/core/allocatable"
	"github.com/plimsoll-dev/plimsoll/internal/core/machine"
	"github.com/plimsoll-dev/plimsoll/internal/core/qos"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
	"github.com/plimsoll-dev/plimsoll/internal/kube/kubeletconfig"
	"github.com/plimsoll-dev/plimsoll/internal/kube/translate"
)

// Allocatable is what a node with a configuration on a machine would publish, and why.
type Allocatable struct {
	Capacity    map[string]string `json:"capacity"`
	Allocatable map[string]string `json:"allocatable"`
	Breakdown   []Subtraction     `json:"breakdown"`
	// for all pods together; absent with cgroupsPerQOS: false
	Enforced *Enforced       `json:"enforced,omitempty"`
	Reserved []ReservedGroup `json:"enforcedReserved,omitempty"` // cgroups whose reservations are enforced
	Warnings []string        `json:"warnings"`                   // settings whose effect may surprise; never null
}

// Subtraction is the row of one resource: capacity minus everything else is allocatable, or 0. Quantities of 0 are "0".
type Subtraction struct {
	Resource       string `json:"resource"`
	Capacity       string `json:"capacity"`
	SystemReserved string `json:"systemReserved"`
	KubeReserved   string `json:"kubeReserved"`
	EvictionHard   string `json:"evictionHard"`
	HugePages      string `json:"hugePages,omitempty"` // of memory: the huge pages of all sizes
	Allocatable    string `json:"allocatable"`

	Threshold string `json:"threshold,omitempty"` // as configured: "nodefs.available<10%"

	terms terms
	kind  kind
}

// terms are a row's numbers in the order of the table's columns: capacity, what is subtracted, allocatable.
type terms [6]int64

// kind says how the numbers of a row are printed.
type kind int

const (
	inCounts kind = iota
	inCPUs
	inBytes
)

func (k kind) print(n int64) string {
	switch k {
	case inCPUs:
		q := translate.CPUQuantity(unit.MilliCPU(n))
		return q.String()
	case inBytes:
		q := translate.BytesQuantity(unit.Bytes(n))
		return q.String()
	}
	return strconv.FormatInt(n, 10)
}

// Enforced is the limits that the kernel enforces on a cgroup. An absent limit stays as it is.
type Enforced struct {
	CPUShares int64  `json:"cpuShares,omitempty"` // cgroup v1
	CPUWeight int64  `json:"cpuWeight,omitempty"` // cgroup v2
	Memory    string `json:"memory,omitempty"`
	PIDs      int64  `json:"pids,omitempty"`
}

// ReservedGroup is a reserved cgroup that enforceNodeAllocatable names.
type ReservedGroup struct {
	Group  allocatable.Group `json:"group"`
	Cgroup string            `json:"cgroup"`
	Enforced
}

// DrawAllocatable answers for a loaded configuration. An error says why no node would start with it. With the error
// there may be a result that shows the numbers.
func DrawAllocatable(c *kubeletconfigv1beta1.KubeletConfiguration, m machine.Machine) (*Allocatable, error) {
	settings, err := kubeletconfig.Allocatable(c)
	if err != nil {
		return nil, err
	}
	resources, impossible := allocatable.Compute(m, settings)
	a := &Allocatable{Warnings: append([]string{}, resources.Notes...)}
	a.publish(resources)
	a.breakDown(resources, c.EvictionHard)
	a.enforce(resources, c)
	for _, name := range slices.Sorted(maps.Keys(m.Devices)) {
		n := int64(len(m.Devices[name]))
		a.Capacity[name], a.Allocatable[name] = inCounts.print(n), inCounts.print(n)
		a.Breakdown = append(a.Breakdown, subtraction(name, inCounts, terms{n, 0, 0, 0, 0, n}))
	}
	// The description of a machine does not contain its cgroup version, so CheckMachine's results for v1 are left out.
	const unified = true
	if err := kubeletconfig.CheckMachine(c, m, unified); err != nil {
		a.Warnings = append(a.Warnings, "the agent would refuse to start: "+err.Error())
	}
	return a, impossible
}

// publish sets what the Node object would contain.
func (a *Allocatable) publish(resources allocatable.Resources) {
	capacity, allocatable := translate.NodeResources(resources)
	a.Capacity, a.Allocatable = map[string]string{}, map[string]string{}
	for name, quantity := range capacity {
		a.Capacity[string(name)] = quantity.String()
	}
	for name, quantity := range allocatable {
		a.Allocatable[string(name)] = quantity.String()
	}
}

// breakDown sets how the numbers are computed.
func (a *Allocatable) breakDown(resources allocatable.Resources, configured map[string]string) {
	add := func(resource string, k kind, t terms, signal allocatable.Signal) {
		row := subtraction(resource, k, t)
		if text, ok := configured[string(signal)]; ok && t[3] > 0 {
			row.Threshold = string(signal) + "<" + text
		}
		a.Breakdown = append(a.Breakdown, row)
	}
	add("cpu", inCPUs, rowTerms(resources.CPU), "")
	memory := rowTerms(resources.Memory)
	memory[4] = int64(resources.HugeMemory())
	add("memory", inBytes, memory, allocatable.MemoryAvailable)
	if !resources.StorageUncounted {
		add("ephemeral-storage", inBytes, rowTerms(resources.EphemeralStorage), allocatable.NodeFSAvailable)
	}
	for _, h := range resources.HugePages {
		add(string(translate.HugePageResource(h.Size)), inBytes, rowTerms(h.Row), "")
	}
	add("pods", inCounts, rowTerms(resources.Pods), "")
}

func rowTerms[T ~int64](r allocatable.Row[T]) terms {
	return terms{int64(r.Capacity), int64(r.System), int64(r.Kube), int64(r.Eviction), 0, int64(r.Allocatable)}
}

func subtraction(resource string, k kind, t terms) Subtraction {
	s := Subtraction{
		Resource: resource, Capacity: k.print(t[0]), SystemReserved: k.print(t[1]), KubeReserved: k.print(t[2]),
		EvictionHard: k.print(t[3]), Allocatable: k.print(t[5]), terms: t, kind: k,
	}
	if t[4] > 0 {
		s.HugePages = k.print(t[4])
	}
	return s
}

// enforce sets the limits that the kernel enforces.
func (a *Allocatable) enforce(resources allocatable.Resources, c *kubeletconfigv1beta1.KubeletConfiguration) {
	if !*c.CgroupsPerQOS {
		a.Warnings = append(a.Warnings,
			"cgroupsPerQOS is false: the kernel enforces no limits on all pods together, whatever enforceNodeAllocatable says")
		return
	}
	pods := enforced(resources.Enforced())
	a.Enforced = &pods
	const protect = false // memory.min is additional to the limit, and exists only on cgroup v2
	for _, r := range kubeletconfig.Reservations(c) {
		group := ReservedGroup{r.Group, r.Cgroup, enforced(resources.EnforcedOn(r.Group, r.Compressible, protect))}
		a.Reserved = append(a.Reserved, group)
		if group.Memory != "" {
			a.Warnings = append(a.Warnings,
				fmt.Sprintf("enforceNodeAllocatable %s: the reserved %s of memory are the limit of %s: "+
					"a process there that needs more is OOM-killed", r.Group, group.Memory, r.Cgroup))
		}
	}
}

func enforced(v qos.Values) Enforced {
	var e Enforced
	if shares, ok := v.CPUShares.Get(); ok {
		e.CPUShares, e.CPUWeight = int64(shares), shares.Weight()
	}
	if memory, ok := v.Memory.Get(); ok {
		e.Memory = inBytes.print(int64(memory))
	}
	e.PIDs, _ = v.PIDs.Get()
	return e
}

// String returns what the kernel does, as a part of a sentence.
func (e Enforced) String() string {
	var all []string
	if e.Memory != "" {
		all = append(all, "limits it to "+e.Memory+" of memory")
	}
	if e.PIDs > 0 {
		all = append(all, fmt.Sprintf("limits it to %d processes", e.PIDs))
	}
	if e.CPUShares > 0 {
		all = append(all, fmt.Sprintf("gives it cpu.shares %d (cgroup v2: cpu.weight %d)", e.CPUShares, e.CPUWeight))
	}
	return cmp.Or(strings.Join(all, ", "), "does not limit it")
}

// Table returns a for people: each row in one unit, so that a person can add it up.
func (a *Allocatable) Table() []byte {
	t := newTable()
	t.line("RESOURCE", "CAPACITY", "- SYSTEM", "- KUBE", "- EVICTION", "- HUGE PAGES", "= ALLOCATABLE", "THRESHOLD")
	for _, row := range a.Breakdown {
		print := row.kind.print
		if row.kind == inBytes {
			print = inOneUnit(row.terms)
		}
		columns := []string{row.Resource}
		for i, n := range row.terms {
			switch subtracted := i > 0 && i < len(row.terms)-1; {
			case subtracted && n == 0:
				columns = append(columns, "-")
			case n == 0:
				columns = append(columns, "0")
			default:
				columns = append(columns, print(n))
			}
		}
		t.line(append(columns, cmp.Or(row.Threshold, "-"))...)
	}
	t.text("")
	if a.Enforced != nil {
		t.text(fmt.Sprintf("The group of all pods: the kernel %v.", a.Enforced))
	}
	for _, r := range a.Reserved {
		t.text(fmt.Sprintf("%s (%s): the kernel %v.", r.Cgroup, r.Group, r.Enforced))
	}
	for _, w := range a.Warnings {
		t.text("warning: " + w)
	}
	return t.bytes()
}

// inOneUnit returns a function that prints bytes in the largest unit in which all of them are whole numbers.
func inOneUnit(all terms) func(int64) string {
	for _, u := range []struct {
		size unit.Bytes
		name string
	}{{unit.TiB, "Ti"}, {unit.GiB, "Gi"}, {unit.MiB, "Mi"}, {unit.KiB, "Ki"}} {
		size := int64(u.size)
		if !slices.ContainsFunc(all[:], func(n int64) bool { return n%size != 0 }) {
			return func(n int64) string { return strconv.FormatInt(n/size, 10) + u.name }
		}
	}
	return inCounts.print
}
