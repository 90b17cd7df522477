package criconfig

import (
	"errors"
	"fmt"
	"math"
	"path/filepath"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/plimsoll-dev/plimsoll/internal/kube/translate"
)

// Paths of /proc and /sys that a container must not see, or must not write, unless it is privileged: kernel memory,
// keys, other programs' timers, hardware controls (KEP-4265; the lists of Kubernetes 1.36 and of the OCI runtimes). The
// runtime ignores the lists for privileged containers. Node.MaskedPaths adds those that only some machines have.
var (
	maskedPaths = []string{
		"/proc/asound", "/proc/acpi", "/proc/interrupts", "/proc/kcore", "/proc/keys", "/proc/latency_stats",
		"/proc/timer_list", "/proc/timer_stats", "/proc/sched_debug", "/proc/scsi",
		"/sys/firmware", "/sys/devices/virtual/powercap",
	}
	readonlyPaths = []string{"/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"}
)

// errHostUsers refuses a pod that would otherwise run as the host's users and, by procMount Unmasked, with the host's
// /proc. Pod Security relaxes its rules for pods that ask for a user namespace.
var errHostUsers = errors.New("pod has hostUsers: false and got no user namespace: it would run as the host's users")

func securityOf(pod *corev1.Pod) *corev1.PodSecurityContext {
	if pod.Spec.SecurityContext != nil {
		return pod.Spec.SecurityContext
	}
	return &corev1.PodSecurityContext{}
}

// namespacesOf returns which namespaces the pod shares with the host, and its containers with each other. users is its
// user namespace; a pod that asks for one and has none, or shares with the host what such a pod must not, is an error.
// (The API server refuses the latter.)
func namespacesOf(pod *corev1.Pod, users *runtimeapi.UserNamespace) (*runtimeapi.NamespaceOption, error) {
	if !isTrue(pod.Spec.HostUsers, true) {
		switch {
		case users.GetMode() != runtimeapi.NamespaceMode_POD || len(users.GetUids()) == 0 || len(users.GetGids()) == 0:
			return nil, errHostUsers
		case pod.Spec.HostNetwork || pod.Spec.HostPID || pod.Spec.HostIPC:
			return nil, errors.New("pod has hostUsers: false: hostNetwork, hostPID and hostIPC must not be true")
		}
	}
	o := &runtimeapi.NamespaceOption{Pid: runtimeapi.NamespaceMode_CONTAINER, UsernsOptions: users}
	if pod.Spec.HostNetwork {
		o.Network = runtimeapi.NamespaceMode_NODE
	}
	if pod.Spec.HostIPC {
		o.Ipc = runtimeapi.NamespaceMode_NODE
	}
	switch {
	case pod.Spec.HostPID:
		o.Pid = runtimeapi.NamespaceMode_NODE
	case isTrue(pod.Spec.ShareProcessNamespace, false):
		o.Pid = runtimeapi.NamespaceMode_POD
	}
	return o, nil
}

// joinTarget puts an ephemeral container into the PID namespace of its target container.
func joinTarget(o *runtimeapi.NamespaceOption, pod *corev1.Pod, name string, running map[string]string) error {
	i := slices.IndexFunc(pod.Spec.EphemeralContainers, func(c corev1.EphemeralContainer) bool { return c.Name == name })
	if i < 0 || pod.Spec.EphemeralContainers[i].TargetContainerName == "" || o.Pid != runtimeapi.NamespaceMode_CONTAINER {
		return nil
	}
	target := pod.Spec.EphemeralContainers[i].TargetContainerName
	id, ok := running[target]
	if !ok {
		return fmt.Errorf("unable to find target container %s", target)
	}
	o.Pid = runtimeapi.NamespaceMode_TARGET
	o.TargetId = id
	return nil
}

func anyPrivileged(pod *corev1.Pod) bool {
	privileged := func(s *corev1.SecurityContext) bool { return s != nil && isTrue(s.Privileged, false) }
	for _, list := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		if slices.ContainsFunc(list, func(c corev1.Container) bool { return privileged(c.SecurityContext) }) {
			return true
		}
	}
	return slices.ContainsFunc(pod.Spec.EphemeralContainers, func(c corev1.EphemeralContainer) bool {
		return privileged(c.SecurityContext)
	})
}

func groupsOf(s *corev1.PodSecurityContext) []int64 {
	var groups []int64
	if s.FSGroup != nil {
		groups = append(groups, *s.FSGroup)
	}
	return append(groups, s.SupplementalGroups...)
}

// groupsPolicy returns whether the groups of the image's /etc/group count too. An unknown value is an error, since the
// runtime would add those groups.
func groupsPolicy(s *corev1.PodSecurityContext) (runtimeapi.SupplementalGroupsPolicy, error) {
	if s.SupplementalGroupsPolicy == nil {
		return runtimeapi.SupplementalGroupsPolicy_Merge, nil
	}
	policy, ok := runtimeapi.SupplementalGroupsPolicy_value[string(*s.SupplementalGroupsPolicy)]
	if !ok {
		return 0, fmt.Errorf("unsupported supplementalGroupsPolicy: %s", *s.SupplementalGroupsPolicy)
	}
	return runtimeapi.SupplementalGroupsPolicy(policy), nil
}

// sandboxSecurity confines the sandbox's own process, which only waits. It has the runtime's seccomp profile, whatever
// the pod asks for, so that a narrow profile of the pod need not allow what that process does
// (kubernetes/kubernetes#84623).
func (n Node) sandboxSecurity(
	pod *corev1.Pod, users *runtimeapi.UserNamespace,
) (*runtimeapi.LinuxSandboxSecurityContext, error) {
	s := securityOf(pod)
	namespaces, err := namespacesOf(pod, users)
	if err != nil {
		return nil, err
	}
	policy, err := groupsPolicy(s)
	if err != nil {
		return nil, err
	}
	out := &runtimeapi.LinuxSandboxSecurityContext{
		NamespaceOptions:         namespaces,
		Privileged:               anyPrivileged(pod),
		Seccomp:                  profileOf(runtimeapi.SecurityProfile_RuntimeDefault),
		SelinuxOptions:           selinuxOf(s.SELinuxOptions),
		SupplementalGroups:       groupsOf(s),
		SupplementalGroupsPolicy: policy,
	}
	if s.RunAsUser != nil {
		out.RunAsUser = &runtimeapi.Int64Value{Value: *s.RunAsUser}
	}
	if s.RunAsGroup != nil && s.RunAsUser != nil { // CRI refuses a group without a user
		out.RunAsGroup = &runtimeapi.Int64Value{Value: *s.RunAsGroup}
	}
	return out, nil
}

// containerSecurity merges the pod's and the container's security context; the container's takes precedence. If a part
// of it cannot be done, that is an error: the container must not start with less.
func (n Node) containerSecurity(
	pod *corev1.Pod, c *corev1.Container, f ContainerFacts,
) (*runtimeapi.LinuxContainerSecurityContext, error) {
	ps, cs := securityOf(pod), c.SecurityContext
	if cs == nil {
		cs = &corev1.SecurityContext{}
	}
	user := either(cs.RunAsUser, ps.RunAsUser)
	if isTrue(either(cs.RunAsNonRoot, ps.RunAsNonRoot), false) {
		if err := nonRoot(user, f.Image); err != nil {
			return nil, fmt.Errorf("%w (pod: %q, container: %s)", err, translate.NameForMessages(pod), c.Name)
		}
	}
	seccomp, err := n.seccompOf(either(cs.SeccompProfile, ps.SeccompProfile))
	if err != nil {
		return nil, err
	}
	apparmor, deprecated, err := apparmorOf(apparmorProfile(pod, c.Name, cs))
	if err != nil {
		return nil, err
	}
	namespaces, err := namespacesOf(pod, f.Users)
	if err != nil {
		return nil, err
	}
	policy, err := groupsPolicy(ps)
	if err != nil {
		return nil, err
	}
	out := &runtimeapi.LinuxContainerSecurityContext{
		Privileged:               isTrue(cs.Privileged, false),
		ReadonlyRootfs:           isTrue(cs.ReadOnlyRootFilesystem, false),
		NoNewPrivs:               !isTrue(cs.AllowPrivilegeEscalation, true),
		Capabilities:             capabilitiesOf(cs.Capabilities),
		NamespaceOptions:         namespaces,
		SupplementalGroups:       groupsOf(ps),
		SupplementalGroupsPolicy: policy,
		SelinuxOptions:           selinuxOf(either(cs.SELinuxOptions, ps.SELinuxOptions)),
		Seccomp:                  seccomp,
		Apparmor:                 apparmor,
		//lint:ignore SA1019 runtimes that do not know Apparmor read it
		ApparmorProfile: deprecated,
		MaskedPaths:     slices.Concat(maskedPaths, n.MaskedPaths),
		ReadonlyPaths:   readonlyPaths,
	}
	// Only with users of its own: the host's root could use what is in these paths. (The API server refuses it.)
	if namespaces.UsernsOptions != nil && cs.ProcMount != nil && *cs.ProcMount == corev1.UnmaskedProcMount {
		out.MaskedPaths, out.ReadonlyPaths = nil, nil
	}
	runAs(out, user, either(cs.RunAsGroup, ps.RunAsGroup), f.Image)
	return out, nil
}

func capabilitiesOf(c *corev1.Capabilities) *runtimeapi.Capability {
	if c == nil {
		return nil
	}
	return &runtimeapi.Capability{AddCapabilities: words(c.Add), DropCapabilities: words(c.Drop)}
}

func words(capabilities []corev1.Capability) []string {
	out := make([]string, len(capabilities))
	for i, c := range capabilities {
		out[i] = string(c)
	}
	return out
}

// runAs sets the user and group: the requested ones, else the image's, else root. (Leaving out the user would have the
// same effect, but the CRI refuses a group without a user.)
func runAs(out *runtimeapi.LinuxContainerSecurityContext, user, group *int64, image Image) {
	switch {
	case user != nil:
		out.RunAsUser = &runtimeapi.Int64Value{Value: *user}
	case image.UID != nil:
		out.RunAsUser = &runtimeapi.Int64Value{Value: *image.UID}
	case image.Username != "":
		out.RunAsUsername = image.Username
	default:
		out.RunAsUser = &runtimeapi.Int64Value{}
	}
	if group != nil {
		out.RunAsGroup = &runtimeapi.Int64Value{Value: *group}
	}
}

// nonRoot enforces runAsNonRoot, with the kubelet's texts. user is the requested one; nil: the image's is used. A
// number above the kernel's range could become 0.
func nonRoot(user *int64, image Image) error {
	switch {
	case user != nil && *user == 0:
		return errors.New("container's runAsUser breaks non-root policy")
	case user != nil:
		return nil
	case image.UID == nil && image.Username != "":
		return fmt.Errorf("container has runAsNonRoot and image has non-numeric user (%s), cannot verify user is non-root",
			image.Username)
	case image.UID == nil || *image.UID == 0:
		return errors.New("container has runAsNonRoot and image will run as root")
	case *image.UID < 0 || *image.UID > math.MaxInt32:
		return fmt.Errorf("container has runAsNonRoot and image has an invalid user id (%d). (Must be 1-(%d)): "+
			"must be between 0 and %d, inclusive",
			*image.UID, math.MaxInt32, math.MaxInt32)
	}
	return nil
}

func profileOf(t runtimeapi.SecurityProfile_ProfileType) *runtimeapi.SecurityProfile {
	return &runtimeapi.SecurityProfile{ProfileType: t}
}

// seccompOf translates a profile. Localhost profiles are below SeccompDir; a path that is not below it is an error.
func (n Node) seccompOf(profile *corev1.SeccompProfile) (*runtimeapi.SecurityProfile, error) {
	if profile == nil {
		if n.SeccompDefault {
			return profileOf(runtimeapi.SecurityProfile_RuntimeDefault), nil
		}
		return profileOf(runtimeapi.SecurityProfile_Unconfined), nil
	}
	switch profile.Type {
	case corev1.SeccompProfileTypeUnconfined:
		return profileOf(runtimeapi.SecurityProfile_Unconfined), nil
	case corev1.SeccompProfileTypeRuntimeDefault:
		return profileOf(runtimeapi.SecurityProfile_RuntimeDefault), nil
	case corev1.SeccompProfileTypeLocalhost:
		if profile.LocalhostProfile == nil || *profile.LocalhostProfile == "" {
			//lint:ignore ST1005 upstream's text
			return nil, errors.New("localhostProfile must be set if seccompProfile type is Localhost.")
		}
		if !filepath.IsLocal(*profile.LocalhostProfile) {
			return nil, fmt.Errorf("seccomp localhostProfile %q: want a path below the directory of profiles",
				*profile.LocalhostProfile)
		}
		out := profileOf(runtimeapi.SecurityProfile_Localhost)
		out.LocalhostRef = filepath.Join(n.SeccompDir, *profile.LocalhostProfile)
		return out, nil
	}
	return nil, fmt.Errorf("unknown seccomp profile type: %q", profile.Type)
}

// apparmorProfile returns the container's own profile, else that of the deprecated annotation (static pods may have it;
// the API server turns it into the field), else the pod's.
func apparmorProfile(pod *corev1.Pod, container string, s *corev1.SecurityContext) *corev1.AppArmorProfile {
	if s.AppArmorProfile != nil {
		return s.AppArmorProfile
	}
	switch text := pod.Annotations[corev1.DeprecatedAppArmorBetaContainerAnnotationKeyPrefix+container]; {
	case text == corev1.DeprecatedAppArmorBetaProfileRuntimeDefault:
		return &corev1.AppArmorProfile{Type: corev1.AppArmorProfileTypeRuntimeDefault}
	case text == corev1.DeprecatedAppArmorBetaProfileNameUnconfined:
		return &corev1.AppArmorProfile{Type: corev1.AppArmorProfileTypeUnconfined}
	case strings.HasPrefix(text, corev1.DeprecatedAppArmorBetaProfileNamePrefix):
		name := strings.TrimPrefix(text, corev1.DeprecatedAppArmorBetaProfileNamePrefix)
		return &corev1.AppArmorProfile{Type: corev1.AppArmorProfileTypeLocalhost, LocalhostProfile: &name}
	}
	return securityOf(pod).AppArmorProfile
}

// apparmorOf translates a profile, for the CRI's field and for its deprecated field.
func apparmorOf(p *corev1.AppArmorProfile) (profile *runtimeapi.SecurityProfile, deprecated string, err error) {
	if p == nil {
		return nil, "", nil
	}
	switch p.Type {
	case corev1.AppArmorProfileTypeRuntimeDefault:
		return profileOf(runtimeapi.SecurityProfile_RuntimeDefault), corev1.DeprecatedAppArmorBetaProfileRuntimeDefault, nil
	case corev1.AppArmorProfileTypeUnconfined:
		return profileOf(runtimeapi.SecurityProfile_Unconfined), corev1.DeprecatedAppArmorBetaProfileNameUnconfined, nil
	case corev1.AppArmorProfileTypeLocalhost:
		if p.LocalhostProfile == nil || *p.LocalhostProfile == "" {
			return nil, "", errors.New("missing localhost apparmor profile name")
		}
		out := profileOf(runtimeapi.SecurityProfile_Localhost)
		out.LocalhostRef = *p.LocalhostProfile
		return out, corev1.DeprecatedAppArmorBetaProfileNamePrefix + *p.LocalhostProfile, nil
	}
	return nil, "", fmt.Errorf("unknown apparmor profile type: %q", p.Type)
}

func selinuxOf(o *corev1.SELinuxOptions) *runtimeapi.SELinuxOption {
	if o == nil {
		return nil
	}
	return &runtimeapi.SELinuxOption{User: o.User, Role: o.Role, Type: o.Type, Level: o.Level}
}

// either returns the first argument that is set.
func either[T any](a, b *T) *T {
	if a != nil {
		return a
	}
	return b
}

func isTrue(b *bool, absent bool) bool {
	if b == nil {
		return absent
	}
	return *b
}
