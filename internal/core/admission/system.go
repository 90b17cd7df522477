package admission

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Needs are what a pod asks of the system that it runs on, whatever else is there.
type Needs struct {
	OS           string   // spec.os.name; empty: any
	OSLabel      *string  // label kubernetes.io/os of the pod itself; nil: it has none
	StrictGroups bool     // supplementalGroupsPolicy Strict
	AppArmor     bool     // an AppArmor profile other than Unconfined, of the pod or of a container
	Sysctls      []string // names in the order of the specification
	HostNetwork  bool
	HostIPC      bool
}

// System is what a node has.
type System struct {
	OS           string // as Go and the label kubernetes.io/os name it
	StrictGroups bool   // the container runtime can leave out groups that only the image's /etc/group gives
	AppArmor     bool   // the kernel enforces AppArmor profiles
	Sysctls      Sysctls
}

// Suits reports why a pod cannot run on a system at all; nil: it can. Reasons, texts and their order are upstream's.
func Suits(n Needs, s System) *Rejection {
	for _, name := range n.Sysctls {
		if why := s.Sysctls.objection(name, n.HostNetwork, n.HostIPC); why != "" {
			return &Rejection{Reason: "SysctlForbidden", Message: "forbidden sysctl: " + why}
		}
	}
	switch {
	case n.OSLabel != nil && *n.OSLabel != s.OS:
		return &Rejection{
			Reason:  "PodOSSelectorNodeLabelDoesNotMatch",
			Message: "Failed to admit pod as the `kubernetes.io/os` label doesn't match node label",
		}
	case n.OS != "" && n.OS != s.OS:
		return &Rejection{Reason: "PodOSNotSupported", Message: "Failed to admit pod as the OS field doesn't match node OS"}
	case n.StrictGroups && !s.StrictGroups:
		return &Rejection{
			Reason:  "SupplementalGroupsPolicyNotSupported",
			Message: "SupplementalGroupsPolicy=Strict is not supported in this node",
		}
	case n.AppArmor && !s.AppArmor:
		return &Rejection{Reason: "AppArmor", Message: "Cannot enforce AppArmor: AppArmor is not enabled on the host"}
	}
	return nil
}

// Sysctls are the kernel parameters that pods may set.
type Sysctls struct{ allowed []sysctlPattern }

// sysctlPattern is a parameter, or all parameters whose names begin with it.
type sysctlPattern struct {
	name   string
	prefix bool
	space  string // namespace that the kernel keeps it in: IPC or Net
}

// Parameters that every pod may set, since the kernel keeps them by namespace and they hurt nobody else, with the first
// kernel that does (upstream's pkg/kubelet/sysctl/safe_sysctls.go; ip-sysctl.rst of the kernel).
var safeSysctls = []struct{ name, kernel string }{
	{"kernel.shm_rmid_forced", "0.0"},
	{"net.ipv4.ip_local_port_range", "0.0"},
	{"net.ipv4.tcp_syncookies", "0.0"},
	{"net.ipv4.ping_group_range", "0.0"},
	{"net.ipv4.ip_unprivileged_port_start", "0.0"},
	{"net.ipv4.ip_local_reserved_ports", "3.16"},
	{"net.ipv4.tcp_keepalive_time", "4.5"},
	{"net.ipv4.tcp_fin_timeout", "4.6"},
	{"net.ipv4.tcp_keepalive_intvl", "4.5"},
	{"net.ipv4.tcp_keepalive_probes", "4.5"},
	{"net.ipv4.tcp_rmem", "4.15"},
	{"net.ipv4.tcp_wmem", "4.15"},
}

// AllowSysctls allows the safe parameters that a kernel of this release (as uname -r prints it) has, and those that an
// administrator lists (allowedUnsafeSysctls): names, or beginnings of names with a star after them. It returns an error
// for each entry that is not a pattern or that the kernel does not keep by namespace.
func AllowSysctls(unsafe []string, kernel string) (Sysctls, error) {
	var s Sysctls
	for _, safe := range safeSysctls {
		if atLeast(kernel, safe.kernel) {
			s.allowed = append(s.allowed, sysctlPattern{name: safe.name, space: sysctlSpace(safe.name)})
		}
	}
	for _, text := range unsafe {
		if why := CheckSysctlPattern(text); why != "" {
			return Sysctls{}, fmt.Errorf("allow sysctl %.300q: %s", text, why)
		}
		name, _, prefix := strings.Cut(NormalSysctl(text), "*")
		s.allowed = append(s.allowed, sysctlPattern{name: name, prefix: prefix, space: sysctlSpace(name)})
	}
	return s, nil
}

// sysctlMax is the longest name of a parameter, in bytes (upstream's SysctlMaxLength).
const sysctlMax = 253

// sysctlPatterns are parts of lower-case letters, digits, - and _ between dots or slashes; the last part may end in a
// star (upstream's SysctlContainSlashPatternFmt).
var sysctlPatterns = regexp.MustCompile(`^([a-z0-9]([-_a-z0-9]*[a-z0-9])?[./])*([a-z0-9][-_a-z0-9]*)?[a-z0-9*]$`)

// CheckSysctlPattern says what is wrong with an entry of allowedUnsafeSysctls; empty: nothing.
func CheckSysctlPattern(text string) string {
	switch name, _, _ := strings.Cut(NormalSysctl(text), "*"); {
	case len(text) > sysctlMax:
		return fmt.Sprintf("want at most %d characters", sysctlMax)
	case !sysctlPatterns.MatchString(text):
		return "want parts of lower-case letters, digits, - and _ between dots or slashes, and at most one star, at the end"
	case sysctlSpace(name) == "":
		return "is not known to be namespaced: setting it would change the whole node"
	}
	return ""
}

// NormalSysctl is a parameter's name with dots between its parts. As sysctl(8) has it, what separates first separates
// throughout, and the other of dot and slash belongs to names: net/ipv4/conf/eth0.1/rp_filter is
// net.ipv4.conf.eth0/1.rp_filter.
func NormalSysctl(name string) string {
	if i := strings.IndexAny(name, "./"); i < 0 || name[i] == '.' {
		return name
	}
	return strings.NewReplacer(".", "/", "/", ".").Replace(name)
}

// Namespaces of the kernel that keep parameters, as upstream's texts name them.
const (
	spaceIPC = "IPC"
	spaceNet = "Net"
)

// ipcSysctls are the parameters of namespaces(7)' IPC namespace below kernel, and the beginnings that upstream accepts
// for them.
var ipcSysctls = []string{
	"kernel.sem", "kernel.shmall", "kernel.shmmax", "kernel.shmmni", "kernel.shm_rmid_forced", "kernel.shm",
	"kernel.msgmax", "kernel.msgmnb", "kernel.msgmni", "kernel.msg",
}

// sysctlSpace is the namespace that keeps a parameter; empty: none is known to.
func sysctlSpace(name string) string {
	switch {
	case slices.Contains(ipcSysctls, name), strings.HasPrefix(name, "fs.mqueue."):
		return spaceIPC
	case strings.HasPrefix(name, "net."):
		return spaceNet
	}
	return ""
}

// objection says why a pod may not set a parameter, in upstream's words; empty: it may.
func (s Sysctls) objection(name string, hostNetwork, hostIPC bool) string {
	name = NormalSysctl(name)
	fits := func(p sysctlPattern) bool { return p.name == name || p.prefix && strings.HasPrefix(name, p.name) }
	i := slices.IndexFunc(s.allowed, fits)
	if i < 0 {
		return strconv.Quote(name) + " not allowlisted"
	}
	if space := s.allowed[i].space; space == spaceNet && hostNetwork || space == spaceIPC && hostIPC {
		return fmt.Sprintf("%q not allowed with host %s enabled", name, space)
	}
	return ""
}

// atLeast compares a kernel's release (6.1.0-18-amd64) with major.minor. A release that cannot be read is older than
// any.
func atLeast(release, want string) bool {
	var have, least [2]int
	if _, err := fmt.Sscanf(want, "%d.%d", &least[0], &least[1]); err != nil {
		return false
	}
	if least == [2]int{} {
		return true
	}
	if _, err := fmt.Sscanf(release, "%d.%d", &have[0], &have[1]); err != nil {
		return false
	}
	return slices.Compare(have[:], least[:]) >= 0
}
