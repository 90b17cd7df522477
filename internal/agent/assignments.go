package agent

import (
	"context"
	"errors"
	"fmt"
	"path"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/plimsoll-dev/plimsoll/internal/agent/handover"
	"github.com/plimsoll-dev/plimsoll/internal/agent/numa"
	"github.com/plimsoll-dev/plimsoll/internal/agent/remains"
	"github.com/plimsoll-dev/plimsoll/internal/core/qos"
	"github.com/plimsoll-dev/plimsoll/internal/kube/kubeletconfig"
)

// prepareAssignments prepares the assignment of CPUs, memory and devices to containers, and recovers the assignments of
// running containers.
func (a *Agent) prepareAssignments(ctx context.Context) error {
	if a.groups.unmanaged && a.numa.CPU.Static {
		return errors.New("read kubelet configuration: cpuManagerPolicy: static: needs cgroupsPerQOS: true: " +
			"the CPUs that containers share are set on the cgroups of their pods")
	}
	var err error
	a.assignments, err = numa.New(numa.Options{
		Node:    a.o.NodeName,
		Machine: a.machine,
		Config:  a.numa,
		Cgroups: a.groups.tree,
		Metrics: a.metrics,
		Quota:   kubeletconfig.KeepsQuota(a.o.Config),
		Prefers: a.plugins.preferred,
		Decided: a.assigned,
		Changed: a.assignmentsChanged,
	})
	if err != nil {
		return err
	}
	a.groups.assignments = a.assignments
	left, err := remains.Read(ctx, a.runtime)
	if err != nil {
		return fmt.Errorf("recover the CPUs, memory and devices assigned to pods: %w", err)
	}
	byKubelet, err := a.assignedByKubelet(left)
	if err != nil {
		return err
	}
	booted, err := bootTime()
	if err != nil {
		return err
	}
	found := make([]numa.Remains, 0, len(left))
	for _, r := range left {
		group := a.groups.groupLeft(r.UID)
		out := numa.Remains{
			Pod:     string(r.UID),
			Group:   group,
			Note:    r.Note,
			Ready:   r.Ready,
			Booted:  time.Unix(0, r.Created).Before(booted),
			Created: r.Created,
			Running: map[string]string{},
		}
		for name, id := range r.Running {
			out.Running[name] = a.groups.inner(group, id)
		}
		if out.Note == "" { // a kubelet created its newest container
			out.Note = numa.NoteOf(byKubelet.Assignment(out.Pod, r.Running))
		}
		found = append(found, out)
	}
	a.assignments.Recover(found)
	a.plugins.assignments = a.assignments
	a.plugins.recoverDevices(left, byKubelet)
	return nil
}

// assignedByKubelet reads what a kubelet assigned to containers. A damaged checkpoint is an error only if it is needed:
// if a kubelet started one of the containers that run.
func (a *Agent) assignedByKubelet(left []remains.Pod) (handover.Found, error) {
	found := handover.Read(a.handoverDirs())
	damage := found.Damage()
	if damage == nil {
		return found, nil
	}
	for _, r := range left {
		if r.FromKubelet != "" {
			const text = "%w (needed for container %s of pod %s, which a kubelet started)"
			return found, fmt.Errorf(text, damage, r.FromKubelet, r.UID)
		}
	}
	return found, found.SetAside()
}

func (a *Agent) handoverDirs() handover.Dirs {
	return handover.Dirs{Root: a.o.RootDir, Plugins: a.o.DevicePluginsDir}
}

// assignmentsChanged has the kubelet's checkpoints written.
func (a *Agent) assignmentsChanged() {
	select {
	case a.changes <- struct{}{}:
	default: // the checkpoints are about to be written already
	}
}

// keepHandover keeps the kubelet's checkpoints until ctx ends.
func (a *Agent) keepHandover(ctx context.Context) error {
	keeper := handover.Keeper{Dirs: a.handoverDirs(), Source: handover.Source{
		Machine: a.machine,
		Config:  a.numa,
		State:   a.assignments.State,
		Devices: a.plugins.Checkpoint,
		Pods:    func() ([]*corev1.Pod, bool) { return a.pods.List(), a.pods.Synced() },
		Version: a.pods.Version,
		Changed: a.changes,
	}}
	return keeper.Run(ctx)
}

// bootTime returns when this machine booted, to the second.
func bootTime() (time.Time, error) {
	var info unix.Sysinfo_t
	if err := unix.Sysinfo(&info); err != nil {
		return time.Time{}, fmt.Errorf("read uptime: sysinfo: %w", err)
	}
	return time.Now().Add(-time.Duration(info.Uptime) * time.Second), nil
}

// groupLeft returns the existing cgroup of a pod, in whichever QoS tier; empty if there is none.
func (g *groups) groupLeft(uid types.UID) string {
	if g.unmanaged {
		return ""
	}
	for _, class := range []qos.Class{qos.Guaranteed, qos.Burstable, qos.BestEffort} {
		if group := g.layout.Pod(class, string(uid)); g.tree.Exists(group) {
			return group
		}
	}
	return ""
}

// inner returns the cgroup of a container below its pod's cgroup; empty if there is none.
func (g *groups) inner(group, id string) string {
	if group == "" {
		return ""
	}
	names, err := g.tree.Children(group)
	if err != nil {
		return ""
	}
	for _, name := range names {
		if strings.Contains(name, id) {
			return path.Join(group, name)
		}
	}
	return ""
}

// nodeOwner returns an owner reference to the Node, so that objects about the node are deleted with it; nil until the
// Node is known.
func (a *Agent) nodeOwner() *metav1.OwnerReference {
	n := a.node.Node()
	if n == nil || n.UID == "" {
		return nil
	}
	return &metav1.OwnerReference{APIVersion: corev1.SchemeGroupVersion.String(), Kind: "Node", Name: n.Name, UID: n.UID}
}
