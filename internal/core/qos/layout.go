package qos

import (
	"fmt"
	"path"
	"strings"
)

// Driver is the program that makes a node's cgroups, spelled as in a KubeletConfiguration. The container runtime must
// use the same one.
type Driver string

// The drivers.
const (
	Cgroupfs Driver = "cgroupfs" // the agent makes directories
	Systemd  Driver = "systemd"  // systemd makes slices on the agent's request
)

// Layout names the cgroups of a node. With systemd a group is a slice, whose name repeats the names above it, joined by
// "-" (systemd.slice(5)). The group /kubepods/burstable/pod7-8 of a pod is
//
//	/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod7_8.slice
//
// where "-" within a name is replaced by "_", as in the kubelet.
type Layout struct {
	driver Driver
	node   []string // names from the root to the group of all pods
}

// sliceSuffix is the suffix of the name of a slice unit.
const sliceSuffix = ".slice"

// Longest names of groups in bytes. cgroup v2 itself accepts longer names (seen on Linux 6.18), but systemd does not
// make such groups.
const (
	nameMax = 255  // NAME_MAX of Linux (limits.h); UNIT_NAME_MAX of systemd (unit-name.h) is this plus the final NUL
	pathMax = 4095 // PATH_MAX of Linux (limits.h) without the final NUL
)

// longestUID is a pod's UID as the API server makes it (RFC 9562).
const longestUID = "00000000-0000-0000-0000-000000000000"

// NewLayout returns the Layout below cgroupRoot ("" and "/" are the machine's root). It returns an error for a root
// that is so long or so deep that Linux or systemd would not accept the group of a pod below it.
func NewLayout(driver Driver, cgroupRoot string) (Layout, error) {
	if driver != Cgroupfs && driver != Systemd {
		return Layout{}, fmt.Errorf("name cgroups: cgroupDriver: %q: want %s or %s", driver, Cgroupfs, Systemd)
	}
	if driver == Systemd && len(cgroupRoot) > nameMax {
		return Layout{}, fmt.Errorf("name cgroups: cgroupRoot: %.40q...: %d bytes: with the systemd driver at most %d "+
			"(NAME_MAX), since a slice's name repeats the names above it: shorten it", cgroupRoot, len(cgroupRoot), nameMax)
	}
	if err := checkLength(cgroupRoot); err != nil {
		return Layout{}, fmt.Errorf("name cgroups: cgroupRoot: %w", err)
	}
	l := Layout{driver: driver}
	for _, part := range strings.Split(cgroupRoot, "/") {
		switch {
		case part == "":
			continue
		case part == ".." || part == ".":
			return Layout{}, fmt.Errorf("name cgroups: cgroupRoot: %q: must not contain %q", cgroupRoot, part)
		case driver == Systemd && strings.HasSuffix(part, sliceSuffix):
			return Layout{}, fmt.Errorf("name cgroups: cgroupRoot: %q: with the systemd driver every group is a slice: write "+
				"it without %s", cgroupRoot, sliceSuffix)
		case driver == Systemd && strings.Trim(part, unitCharacters) != "":
			return Layout{}, fmt.Errorf("name cgroups: cgroupRoot: %q: with the systemd driver a name may hold letters, "+
				"digits and :_.- only", cgroupRoot)
		}
		l.node = append(l.node, part)
	}
	l.node = append(l.node, "kubepods")
	if err := checkLength(l.Pod(BestEffort, longestUID)); err != nil {
		return Layout{}, fmt.Errorf("name cgroups: cgroupRoot: %.40q: the group of a pod below it: %w", cgroupRoot, err)
	}
	return l, nil
}

// checkLength returns an error if the path of a group, or a name in it, is too long. The error says how long it may be.
func checkLength(group string) error {
	if len(group) > pathMax {
		return fmt.Errorf("%.40q...: a path of %d bytes: at most %d (PATH_MAX): shorten it", group, len(group), pathMax)
	}
	for name := range strings.SplitSeq(group, "/") {
		if len(name) > nameMax {
			return fmt.Errorf("%.40q...: a name of %d bytes: at most %d (NAME_MAX): shorten it", name, len(name), nameMax)
		}
	}
	return nil
}

// unitCharacters are the characters of a unit's name (systemd.unit(5)), except "\" and "@", which have a special
// meaning.
const unitCharacters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789:_.-"

// Driver returns the driver.
func (l Layout) Driver() Driver { return l.driver }

// Above returns the parent of the node's group.
func (l Layout) Above() string { return l.path(l.node[:len(l.node)-1]...) }

// Node returns the group of all pods.
func (l Layout) Node() string { return l.path(l.node...) }

// Tier returns the group of the pods of a QoS class.
func (l Layout) Tier(c Class) string { return l.path(l.tier(c)...) }

// IsPods reports whether group is the node's group or that of a QoS class.
func (l Layout) IsPods(group string) bool {
	return group == l.Node() || group == l.Tier(Burstable) || group == l.Tier(BestEffort)
}

// Pod returns the group of one pod. It is the cgroup_parent that is passed to the runtime.
func (l Layout) Pod(c Class, uid string) string {
	return l.path(append(l.tier(c), podPrefix+uid)...)
}

// Container returns the group of a container in its pod's group. With systemd the runtime makes a scope for it, with a
// prefix that depends on the runtime. runtime is its name in the container ids of the API: containerd, cri-o.
func (l Layout) Container(pod, runtime, id string) string {
	if l.driver != Systemd {
		return path.Join(pod, id)
	}
	prefix := "cri-" + runtime
	if runtime == "cri-o" {
		prefix = "crio"
	}
	return path.Join(pod, prefix+"-"+id+".scope")
}

func (l Layout) tier(c Class) []string {
	names := append([]string{}, l.node...)
	if c != Guaranteed {
		names = append(names, strings.ToLower(string(c)))
	}
	return names
}

const podPrefix = "pod"

// UID returns the UID of the pod whose group has the given last path element, and whether it is the group of a pod.
func (l Layout) UID(group string) (string, bool) {
	if l.driver == Systemd {
		slice, ok := strings.CutSuffix(group, sliceSuffix)
		if !ok {
			return "", false
		}
		group = strings.ReplaceAll(slice[strings.LastIndexByte(slice, '-')+1:], "_", "-")
	}
	return strings.CutPrefix(group, podPrefix)
}

func (l Layout) path(names ...string) string {
	if l.driver != Systemd {
		return "/" + path.Join(names...)
	}
	slice := make([]string, len(names))
	for i, name := range names {
		slice[i] = strings.ReplaceAll(name, "-", "_")
	}
	return slicePath(slice)
}

// slicePath returns the path of the slice with the given parts, for a-b-c /a.slice/a-b.slice/a-b-c.slice.
func slicePath(parts []string) string {
	if len(parts) == 0 {
		return "/"
	}
	var out strings.Builder
	for i := range parts {
		out.WriteString("/" + strings.Join(parts[:i+1], "-") + sliceSuffix)
	}
	return out.String()
}

// Reserved returns the path of a group that the configuration names for the system's or for Kubernetes' daemons. With
// cgroupfs the name is a path. With systemd it is a unit, and only its last element counts: the path of a slice, with
// or without its suffix, follows from its name; any other unit is at the path given. It returns an error for a name or
// a path that is longer than Linux or systemd accepts.
func (l Layout) Reserved(name string) (string, error) {
	if err := checkLength(name); err != nil {
		return "", fmt.Errorf("name cgroups: reserved group %w", err)
	}
	clean := path.Clean("/" + name)
	if clean == "/" {
		return "", fmt.Errorf("name cgroups: reserved group %q: the machine's root cannot be reserved", name)
	}
	if l.driver != Systemd {
		return clean, nil
	}
	base := path.Base(clean)
	for _, suffix := range []string{".service", ".scope"} {
		if strings.HasSuffix(base, suffix) {
			return clean, nil
		}
	}
	base = strings.TrimSuffix(base, sliceSuffix)
	parts := strings.Split(base, "-")
	for _, part := range parts {
		if part == "" || strings.Trim(part, unitCharacters) != "" {
			return "", fmt.Errorf("name cgroups: reserved group %q: %q is no name of a slice", name, base+sliceSuffix)
		}
	}
	group := slicePath(parts)
	if err := checkLength(group); err != nil {
		return "", fmt.Errorf("name cgroups: reserved group %.40q: its slices: %w", name, err)
	}
	return group, nil
}
