package qos

import (
	"fmt"
	"path"
	"strings"
)

// Layout names the cgroups of a node.
type Layout struct {
	node string // absolute path of the node's group below each controller's mount
}

// NewLayout returns the names below cgroupRoot ("" and "/" are the machine's root) for a cgroup driver as the
// KubeletConfiguration spells it.
func NewLayout(driver, cgroupRoot string) (Layout, error) {
	switch driver {
	case "cgroupfs":
	case "systemd":
		return Layout{}, fmt.Errorf("name cgroups: cgroupDriver: %q: not supported yet; set cgroupDriver: cgroupfs here and SystemdCgroup = false in the runtime", driver)
	default:
		return Layout{}, fmt.Errorf("name cgroups: cgroupDriver: %q: want cgroupfs or systemd", driver)
	}
	for _, part := range strings.Split(cgroupRoot, "/") {
		if part == ".." || part == "." {
			return Layout{}, fmt.Errorf("name cgroups: cgroupRoot: %q: must not contain %q", cgroupRoot, part)
		}
	}
	return Layout{node: path.Join("/", cgroupRoot, "kubepods")}, nil
}

// Node returns the group of all pods.
func (l Layout) Node() string { return l.node }

// Tier returns the group of the pods of a class.
func (l Layout) Tier(c Class) string {
	if c == Guaranteed {
		return l.node
	}
	return path.Join(l.node, strings.ToLower(string(c)))
}

// Pod returns the group of one pod. It is the cgroup_parent that the runtime is given.
func (l Layout) Pod(c Class, uid string) string { return path.Join(l.Tier(c), podPrefix+uid) }

const podPrefix = "pod"

// UID returns the uid of the pod whose group has the given last path element, and whether it is a pod's at all.
func (l Layout) UID(group string) (string, bool) { return strings.CutPrefix(group, podPrefix) }
