package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/plimsoll-dev/plimsoll/internal/core/allocatable"
	"github.com/plimsoll-dev/plimsoll/internal/core/numa"
	"github.com/plimsoll-dev/plimsoll/internal/core/qos"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
	"github.com/plimsoll-dev/plimsoll/internal/host/cgroup"
	"github.com/plimsoll-dev/plimsoll/internal/host/procfs"
	"github.com/plimsoll-dev/plimsoll/internal/kube/kubeletconfig"
)

// Reasons of Events about the node's limits: the kubelet's.
const (
	eventEnforced    = "NodeAllocatableEnforced"
	eventNotEnforced = "FailedNodeAllocatableEnforcement"
)

// nodeEvent records an Event about the Node, which may not be registered yet.
func (a *Agent) nodeEvent(kind, reason, message string) {
	a.recorder.Event(&corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: a.o.NodeName,
		UID: types.UID(a.o.NodeName)}, kind, reason, message)
}

// enforce creates the node's cgroups before the first pod, and sets the limits that allocatable demands on them and on
// the reserved cgroups. It finds all problems first; if there is one, it changes nothing.
func (a *Agent) enforce(ctx context.Context) error {
	inspection, err := a.inspect(ctx)
	if err != nil {
		return err
	}
	c := a.o.Config
	tree := inspection.tree
	if err := createReserved(tree, inspection.reserved); err != nil {
		return err
	}
	if *c.CgroupsPerQOS { // on v2 only an existing cgroup shows whether swap is accounted for
		if err := tree.Create(inspection.layout.Node()); err != nil {
			return err
		}
	}
	unified := tree.Mode() == cgroup.V2
	a.metrics.CgroupVersion.Set(1)
	if unified {
		a.metrics.CgroupVersion.Set(2)
	}
	kernel := kubeletconfig.Kernel{
		Unified:      unified,
		AccountsSwap: tree.AccountsSwap(),
		PageSize:     unit.Bytes(os.Getpagesize()),
	}
	for _, w := range kubeletconfig.MachineWarnings(c, a.machine, kernel) {
		slog.Warn("configuration", "warning", w)
	}
	a.groups = &groups{
		tree:      tree,
		layout:    inspection.layout,
		memory:    a.machine.Memory,
		policy:    kubeletconfig.QoSPolicy(c, a.machine, a.resources.Unreserved(), kernel),
		tiers:     kubeletconfig.TierPolicy(c, a.resources.Unreserved(), kernel),
		limits:    newLimits(tree, a.reportLimit),
		unmanaged: !*c.CgroupsPerQOS,
		groupOOM:  unified && !isTrue(c.SingleProcessOOMKill),
		holders:   func() []*corev1.Pod { return a.pods.Holders() },
		created:   map[types.UID]string{},
		written:   map[string]qos.Values{},
		took: func(operation string, d time.Duration) {
			a.metrics.CgroupDuration.WithLabelValues(operation).Observe(d.Seconds())
		},
	}
	if slices.Contains(tree.Controllers(), "hugetlb") {
		a.groups.pageSizes = slices.Sorted(maps.Keys(a.machine.HugePages))
	}
	for _, r := range inspection.reserved {
		values := a.resources.EnforcedOn(r.Group, r.Compressible, kubeletconfig.ProtectsMemory(c, kernel))
		if err := a.groups.setReserved(r.cgroup, values); err != nil {
			return fmt.Errorf("enforce %s: %w", r.Group, err)
		}
	}
	return a.groups.prepare(a.resources.Enforced())
}

// inspection is what inspect found: the cgroup tree, the layout of groups in it, and the reserved cgroups.
type inspection struct {
	tree     *cgroup.Tree
	layout   qos.Layout
	reserved []reservedGroup
}

// inspect computes allocatable and checks that it can be enforced. The error lists every problem.
func (a *Agent) inspect(ctx context.Context) (inspection, error) {
	c := a.o.Config
	settings, err := kubeletconfig.Allocatable(c)
	if err != nil {
		return inspection{}, err
	}
	tree, err := cgroup.Open("/sys/fs/cgroup")
	if err != nil {
		return inspection{}, err
	}
	driver, err := a.cgroupDriver(ctx)
	if err != nil {
		return inspection{}, err
	}
	var problems []error
	problem := func(err error) bool {
		problems = append(problems, err)
		return err != nil
	}
	a.resources, err = allocatable.Compute(a.machine, settings)
	problem(err)
	problem(tree.Require())
	problem(kubeletconfig.CheckMachine(c, a.machine, tree.Mode() == cgroup.V2))
	notes, err := kubeletconfig.CheckKernel(c, procfs.Default.Sysctl)
	problem(err)
	for _, note := range notes {
		slog.Info("kernel parameter", "note", note)
	}
	if a.numa, err = kubeletconfig.NUMA(c, a.resources); !problem(err) {
		_, err = numa.New(a.machine, a.numa)
		problem(err)
	}
	if driver == qos.Systemd {
		if bus, err := cgroup.DialSystemd(); !problem(err) {
			tree.UseSystemd(bus)
		}
	}
	g := inspection{tree: tree}
	if g.layout, err = qos.NewLayout(driver, c.CgroupRoot); !problem(err) {
		g.reserved, err = findReserved(tree, g.layout, kubeletconfig.Reservations(c), a.o.CreateMissingCgroups)
		problem(err)
	}
	if err := errors.Join(problems...); err != nil {
		return inspection{}, err
	}
	for _, note := range a.resources.Notes {
		slog.Warn("allocatable", "note", note)
	}
	return g, nil
}

// setReserved sets what is reserved for a cgroup as that cgroup's limits. The cgroup belongs to another program, so
// setReserved does not create it.
func (g *groups) setReserved(group string, v qos.Values) error {
	memory, limited := v.Memory.Get()
	v.Memory = unit.Limit[unit.Bytes]{}
	if err := g.tree.Set(group, v); err != nil {
		return err
	}
	slog.Info("reserved cgroup set", "cgroup", group, "shares", v.CPUShares, "pids", v.PIDs)
	if limited {
		return g.limits.lower(group, memory)
	}
	return nil
}

// reservedGroup is a Reservation with the path of its cgroup and the controllers that the cgroup lacks.
type reservedGroup struct {
	kubeletconfig.Reservation
	cgroup  string
	missing []cgroup.Missing
}

// findReserved finds the cgroups that something is reserved for. Unless willCreate is true, the error lists every
// controller that one of them lacks, with its path and the command that creates it.
func findReserved(
	tree *cgroup.Tree, layout qos.Layout, wanted []kubeletconfig.Reservation, willCreate bool,
) ([]reservedGroup, error) {
	var found []reservedGroup
	var problems []error
	for _, r := range wanted {
		path, err := layout.Reserved(r.Cgroup)
		if err != nil {
			problems = append(problems, fmt.Errorf("%s: %w", r.Field, err))
			continue
		}
		missing, err := tree.Missing(path)
		if err != nil {
			problems = append(problems, fmt.Errorf("%s: %w", r.Field, err))
			continue
		}
		if len(missing) > 0 && !willCreate {
			lines := make([]string, len(missing))
			for i, m := range missing {
				lines[i] = fmt.Sprintf("\n  - %s at %s: %s", m.Controller, m.Path, m.Command)
			}
			problems = append(problems,
				fmt.Errorf("%s: %q lacks %d controllers; create them with these commands or with --create-missing-cgroups:%s",
					r.Field, r.Cgroup, len(missing), strings.Join(lines, "")))
		}
		found = append(found, reservedGroup{Reservation: r, cgroup: path, missing: missing})
	}
	if len(problems) > 0 {
		return found, fmt.Errorf("check reserved cgroups: %w", errors.Join(problems...))
	}
	return found, nil
}

// createReserved creates the missing controllers of reserved cgroups.
func createReserved(tree *cgroup.Tree, reserved []reservedGroup) error {
	for _, r := range reserved {
		if len(r.missing) == 0 {
			continue
		}
		if err := tree.Create(r.cgroup); err != nil {
			return fmt.Errorf("%s: %w", r.Field, err)
		}
		slog.Info("reserved cgroup created", "field", r.Field, "cgroup", r.cgroup, "controllers", len(r.missing))
	}
	return nil
}

const (
	// driverTries and driverRest bound the requests for the cgroup driver while the runtime is busy starting (kubelet: 3
	// tries, 2 s apart).
	driverTries = 3
	driverRest  = 2 * time.Second
)

// cgroupDriver asks the runtime for its cgroup driver, since the agent must use the same. If the runtime does not
// implement that call (containerd before 2.0), the configuration decides.
func (a *Agent) cgroupDriver(ctx context.Context) (qos.Driver, error) {
	configured := qos.Driver(a.o.Config.CgroupDriver)
	var answer *runtimeapi.RuntimeConfigResponse
	var err error
	for try := range driverTries {
		if try > 0 {
			select {
			case <-ctx.Done():
				return "", ctx.Err()
			case <-time.After(driverRest):
			}
		}
		ask, cancel := context.WithTimeout(ctx, callMax)
		answer, err = a.runtime.RuntimeConfig(ask, &runtimeapi.RuntimeConfigRequest{})
		cancel()
		if err == nil || status.Code(err) == codes.Unimplemented {
			break
		}
	}
	switch {
	case status.Code(err) == codes.Unimplemented:
		slog.Info("the container runtime does not report its cgroup driver; using the configured one",
			"cgroupDriver", configured)
		return configured, nil
	case err != nil:
		return "", fmt.Errorf("ask container runtime for its cgroup driver: %s: %w", a.o.Endpoint, err)
	case answer.GetLinux() == nil:
		return configured, nil
	}
	driver, err := driverOf(answer.GetLinux().GetCgroupDriver())
	if err != nil {
		return "", fmt.Errorf("ask container runtime for its cgroup driver: %s: %w", a.o.Endpoint, err)
	}
	if driver != configured {
		slog.Info("using the container runtime's cgroup driver, not the configured one", "cgroupDriver", driver,
			"configured", configured)
	}
	return driver, nil
}

func driverOf(d runtimeapi.CgroupDriver) (qos.Driver, error) {
	switch d {
	case runtimeapi.CgroupDriver_SYSTEMD:
		return qos.Systemd, nil
	case runtimeapi.CgroupDriver_CGROUPFS:
		return qos.Cgroupfs, nil
	}
	return "", fmt.Errorf("driver %v: want systemd or cgroupfs", d)
}
