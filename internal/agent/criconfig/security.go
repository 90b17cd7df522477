package criconfig

import (
	"fmt"
	"path/filepath"
	"slices"

	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Paths of /proc and /sys that unprivileged containers must not read or write with the default ProcMount: kernel
// memory, keys, timers of others, hardware controls (KEP-4265 and the OCI runtimes' own lists).
var (
	maskedPaths = []string{
		"/proc/acpi", "/proc/asound", "/proc/interrupts", "/proc/kcore", "/proc/keys", "/proc/latency_stats", "/proc/sched_debug",
		"/proc/scsi", "/proc/timer_list", "/proc/timer_stats", "/sys/devices/virtual/powercap", "/sys/firmware",
	}
	readonlyPaths = []string{"/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"}
)

func securityOf(pod *corev1.Pod) *corev1.PodSecurityContext {
	if pod.Spec.SecurityContext != nil {
		return pod.Spec.SecurityContext
	}
	return &corev1.PodSecurityContext{}
}

func namespacesOf(pod *corev1.Pod) *runtimeapi.NamespaceOption {
	o := &runtimeapi.NamespaceOption{Pid: runtimeapi.NamespaceMode_CONTAINER}
	if pod.Spec.HostNetwork {
		o.Network = runtimeapi.NamespaceMode_NODE
	}
	if pod.Spec.HostIPC {
		o.Ipc = runtimeapi.NamespaceMode_NODE
	}
	switch {
	case pod.Spec.HostPID:
		o.Pid = runtimeapi.NamespaceMode_NODE
	case pod.Spec.ShareProcessNamespace != nil && *pod.Spec.ShareProcessNamespace:
		o.Pid = runtimeapi.NamespaceMode_POD
	}
	return o
}

// joinTarget lets an ephemeral container see the processes of the one that it was made to look at.
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
	for _, list := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			if s := list[i].SecurityContext; s != nil && s.Privileged != nil && *s.Privileged {
				return true
			}
		}
	}
	return slices.ContainsFunc(pod.Spec.EphemeralContainers, func(c corev1.EphemeralContainer) bool {
		return c.SecurityContext != nil && truth(c.SecurityContext.Privileged, false)
	})
}

func groupsOf(s *corev1.PodSecurityContext) []int64 {
	groups := append([]int64(nil), s.SupplementalGroups...)
	if s.FSGroup != nil {
		groups = append(groups, *s.FSGroup)
	}
	return groups
}

func groupsPolicy(s *corev1.PodSecurityContext) runtimeapi.SupplementalGroupsPolicy {
	if s.SupplementalGroupsPolicy != nil && *s.SupplementalGroupsPolicy == corev1.SupplementalGroupsPolicyStrict {
		return runtimeapi.SupplementalGroupsPolicy_Strict
	}
	return runtimeapi.SupplementalGroupsPolicy_Merge
}

func (n Node) sandboxSecurity(pod *corev1.Pod) *runtimeapi.LinuxSandboxSecurityContext {
	s := securityOf(pod)
	out := &runtimeapi.LinuxSandboxSecurityContext{
		NamespaceOptions:         namespacesOf(pod),
		Privileged:               anyPrivileged(pod),
		Seccomp:                  n.seccompOf(s.SeccompProfile),
		SelinuxOptions:           selinuxOf(s.SELinuxOptions),
		SupplementalGroups:       groupsOf(s),
		SupplementalGroupsPolicy: groupsPolicy(s),
	}
	if s.RunAsUser != nil {
		out.RunAsUser = &runtimeapi.Int64Value{Value: *s.RunAsUser}
	}
	if s.RunAsGroup != nil && s.RunAsUser != nil { // CRI refuses a group without a user
		out.RunAsGroup = &runtimeapi.Int64Value{Value: *s.RunAsGroup}
	}
	return out
}

// containerSecurity merges the pod's and the container's wishes; the container's win.
func (n Node) containerSecurity(pod *corev1.Pod, c *corev1.Container, image Image) (*runtimeapi.LinuxContainerSecurityContext, error) {
	ps, cs := securityOf(pod), c.SecurityContext
	if cs == nil {
		cs = &corev1.SecurityContext{}
	}
	privileged := truth(cs.Privileged, false)
	out := &runtimeapi.LinuxContainerSecurityContext{
		Privileged:               privileged,
		ReadonlyRootfs:           truth(cs.ReadOnlyRootFilesystem, false),
		NoNewPrivs:               !truth(cs.AllowPrivilegeEscalation, true),
		NamespaceOptions:         namespacesOf(pod),
		SupplementalGroups:       groupsOf(ps),
		SupplementalGroupsPolicy: groupsPolicy(ps),
		SelinuxOptions:           selinuxOf(either(cs.SELinuxOptions, ps.SELinuxOptions)),
		Seccomp:                  n.seccompOf(either(cs.SeccompProfile, ps.SeccompProfile)),
		Apparmor:                 apparmorOf(either(cs.AppArmorProfile, ps.AppArmorProfile)),
	}
	if privileged {
		out.Seccomp = &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_Unconfined}
	} else if cs.ProcMount == nil || *cs.ProcMount == corev1.DefaultProcMount {
		out.MaskedPaths, out.ReadonlyPaths = maskedPaths, readonlyPaths
	}
	if cs.Capabilities != nil {
		out.Capabilities = &runtimeapi.Capability{}
		for _, k := range cs.Capabilities.Add {
			out.Capabilities.AddCapabilities = append(out.Capabilities.AddCapabilities, string(k))
		}
		for _, k := range cs.Capabilities.Drop {
			out.Capabilities.DropCapabilities = append(out.Capabilities.DropCapabilities, string(k))
		}
	}
	runAs(out, either(cs.RunAsUser, ps.RunAsUser), either(cs.RunAsGroup, ps.RunAsGroup), image)
	if truth(either(cs.RunAsNonRoot, ps.RunAsNonRoot), false) {
		if err := nonRoot(out, either(cs.RunAsUser, ps.RunAsUser) != nil); err != nil {
			return nil, fmt.Errorf("%w (pod: %q, container: %s)", err, fmt.Sprintf("%s_%s(%s)", pod.Name, pod.Namespace, pod.UID), c.Name)
		}
	}
	return out, nil
}

// runAs sets the user and group to run as: what was asked for, else what the image says.
func runAs(out *runtimeapi.LinuxContainerSecurityContext, user, group *int64, image Image) {
	switch {
	case user != nil:
		out.RunAsUser = &runtimeapi.Int64Value{Value: *user}
	case image.UID != nil:
		out.RunAsUser = &runtimeapi.Int64Value{Value: *image.UID}
	case image.Username != "":
		out.RunAsUsername = image.Username
	}
	if group != nil {
		if out.RunAsUser == nil && out.RunAsUsername == "" {
			// CRI refuses a group without a user; an image that names none runs as root.
			out.RunAsUser = &runtimeapi.Int64Value{}
		}
		out.RunAsGroup = &runtimeapi.Int64Value{Value: *group}
	}
}

// nonRoot enforces runAsNonRoot, with upstream's texts. asked says that the user is not the image's.
func nonRoot(out *runtimeapi.LinuxContainerSecurityContext, asked bool) error {
	switch {
	case out.RunAsUser != nil && out.RunAsUser.Value != 0:
		return nil
	case asked:
		return fmt.Errorf("container's runAsUser breaks non-root policy")
	case out.RunAsUsername != "":
		return fmt.Errorf("container has runAsNonRoot and image has non-numeric user (%s), cannot verify user is non-root", out.RunAsUsername)
	}
	return fmt.Errorf("container has runAsNonRoot and image will run as root")
}

// seccompOf translates a profile; Localhost profiles live below SeccompDir.
func (n Node) seccompOf(profile *corev1.SeccompProfile) *runtimeapi.SecurityProfile {
	def := &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_RuntimeDefault}
	open := &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_Unconfined}
	if profile == nil {
		if n.SeccompDefault {
			return def
		}
		return open
	}
	switch profile.Type {
	case corev1.SeccompProfileTypeUnconfined:
		return open
	case corev1.SeccompProfileTypeLocalhost:
		if profile.LocalhostProfile != nil && filepath.IsLocal(*profile.LocalhostProfile) {
			return &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_Localhost, LocalhostRef: filepath.Join(n.SeccompDir, *profile.LocalhostProfile)}
		}
	}
	return def // also for a profile that cannot be named safely: it must not become "unconfined"
}

func apparmorOf(p *corev1.AppArmorProfile) *runtimeapi.SecurityProfile {
	if p == nil {
		return nil
	}
	switch p.Type {
	case corev1.AppArmorProfileTypeRuntimeDefault:
		return &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_RuntimeDefault}
	case corev1.AppArmorProfileTypeLocalhost:
		ref := ""
		if p.LocalhostProfile != nil {
			ref = *p.LocalhostProfile
		}
		return &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_Localhost, LocalhostRef: ref}
	}
	return &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_Unconfined}
}

func selinuxOf(o *corev1.SELinuxOptions) *runtimeapi.SELinuxOption {
	if o == nil {
		return nil
	}
	return &runtimeapi.SELinuxOption{User: o.User, Role: o.Role, Type: o.Type, Level: o.Level}
}

// either returns the first that is set.
func either[T any](a, b *T) *T {
	if a != nil {
		return a
	}
	return b
}

func truth(b *bool, absent bool) bool {
	if b == nil {
		return absent
	}
	return *b
}
