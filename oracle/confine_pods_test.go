package oracle

import (
	"fmt"
	"math/rand/v2"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// leaning is the Pod Security level for which a random pod is generated. Most of its fields are allowed at that level,
// some are not.
type leaning int

const (
	anything leaning = iota
	baseline
	restricted
)

// tenant generates pods with many fields that matter to confinement.
type tenant struct {
	random
	lean leaning
	wild bool // some of its fields ignore the level
}

func newTenant(seed uint64, n int) tenant {
	t := tenant{random: random{rand.New(rand.NewPCG(seed, uint64(n)))}, lean: leaning(n % 3)}
	t.wild = t.lean == anything || t.chance(4)
	return t
}

// strays reports whether a field is generated without regard to the level.
func (t tenant) strays() bool { return t.lean == anything || t.wild && t.chance(8) }

// seldom has a chance of one in n, and a far smaller one if the level forbids it.
func (t tenant) seldom(n int) bool {
	if t.lean == restricted {
		n *= 4
	}
	return t.chance(n)
}

// maybe returns nil in one of n cases.
func maybe[T any](t tenant, n int, value T) *T {
	if t.chance(n) {
		return nil
	}
	return &value
}

func (t tenant) pod() *corev1.Pod {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Namespace: t.of("ns", "shop"), Name: "web", UID: "4f1c9e2a-0000-4000-8000-000000000001",
		Labels: map[string]string{"app": "web"}, Annotations: map[string]string{},
	}}
	s := &pod.Spec
	s.RestartPolicy = corev1.RestartPolicyAlways
	if !t.seldom(6) {
		s.SecurityContext = t.podSecurity()
	}
	s.HostUsers = maybe(t, 2, !t.chance(3))
	s.ShareProcessNamespace = maybe(t, 2, t.chance(2))
	s.TerminationGracePeriodSeconds = maybe(t, 8, t.Int64N(90))
	if t.strays() {
		s.HostNetwork = t.chance(4)
		s.HostPID = t.chance(4)
		s.HostIPC = t.chance(4)
	}
	if t.chance(8) {
		s.OS = &corev1.PodOS{Name: corev1.OSName(t.of("linux", "linux", "windows"))}
	}
	always := corev1.ContainerRestartPolicyAlways
	for t.chance(3) {
		c := t.boxed(fmt.Sprint("i", len(s.InitContainers)))
		if t.chance(2) {
			c.RestartPolicy = &always
		}
		s.InitContainers = append(s.InitContainers, c)
	}
	for range 1 + t.IntN(2) {
		s.Containers = append(s.Containers, t.boxed(fmt.Sprint("c", len(s.Containers))))
	}
	for t.chance(4) {
		c := t.boxed(fmt.Sprint("e", len(s.EphemeralContainers)))
		c.Ports, c.Lifecycle = nil, nil
		s.EphemeralContainers = append(s.EphemeralContainers, corev1.EphemeralContainer{
			EphemeralContainerCommon: corev1.EphemeralContainerCommon(c), TargetContainerName: t.of("", "c0"),
		})
	}
	for t.chance(6) {
		key := corev1.DeprecatedAppArmorBetaContainerAnnotationKeyPrefix + t.of("c0", "c1", "i0", "e0")
		pod.Annotations[key] = t.of("runtime/default", "localhost/tight", "", "runtime/default")
		if t.strays() {
			pod.Annotations[key] = t.of("unconfined", "what", "localhost/")
		}
	}
	if t.chance(8) {
		pod.Annotations["seccomp.security.alpha.kubernetes.io/pod"] = t.of("unconfined", "runtime/default")
	}
	return pod
}

func (t tenant) podSecurity() *corev1.PodSecurityContext {
	s := &corev1.PodSecurityContext{
		SELinuxOptions: t.selinux(), WindowsOptions: t.windows(),
		RunAsUser: t.user(), RunAsGroup: maybe(t, 2, t.id()), RunAsNonRoot: t.nonRoot(),
		FSGroup: maybe(t, 2, t.id()), SeccompProfile: t.seccomp(), AppArmorProfile: t.apparmor(),
	}
	for t.chance(2) {
		s.SupplementalGroups = append(s.SupplementalGroups, t.id())
	}
	if t.chance(3) {
		policy := corev1.SupplementalGroupsPolicy(t.of("Merge", "Strict", "Strict", "Odd"))
		s.SupplementalGroupsPolicy = &policy
	}
	for t.chance(4) {
		name := t.of("kernel.shm_rmid_forced", "net.ipv4.ip_local_port_range", "net.ipv4.tcp_syncookies",
			"net.ipv4.ping_group_range",
			"net.ipv4.ip_unprivileged_port_start", "net.ipv4.tcp_keepalive_time")
		if t.strays() {
			name = t.of("kernel.msgmax", "net/ipv4/conf/eno2.100/rp_filter", "net.ipv4.conf.eno2/100.rp_filter",
				"kernel/shm_rmid_forced")
		}
		s.Sysctls = append(s.Sysctls, corev1.Sysctl{Name: name, Value: t.of("0", "1", "0 65535")})
	}
	return s
}

func (t tenant) boxed(name string) corev1.Container {
	c := corev1.Container{
		Name: name, Image: t.of("a", "b:1"), ImagePullPolicy: corev1.PullIfNotPresent, WorkingDir: t.of("", "/srv"),
		TerminationMessagePath: t.of("/dev/termination-log",
			"/x"), TerminationMessagePolicy: corev1.TerminationMessageReadFile,
		Stdin: t.chance(4), StdinOnce: t.chance(4), TTY: t.chance(4),
	}
	if t.chance(2) {
		c.Command = []string{"/bin/$(WHO)", "$$(X)", t.of("", "$(MISSING)")}
	}
	if t.chance(2) {
		c.Args = []string{t.of("$(WHO)", "plain")}
	}
	if !t.seldom(5) {
		c.SecurityContext = t.security()
	}
	if t.chance(4) {
		p := corev1.ContainerPort{ContainerPort: 80, Protocol: corev1.Protocol(t.of("TCP", "UDP", "SCTP"))}
		if t.strays() {
			p.HostPort = int32(t.IntN(3)) * 8080
			p.HostIP = t.of("", "127.0.0.1")
		}
		c.Ports = append(c.Ports, p)
	}
	if t.chance(5) {
		signal := corev1.Signal(t.of("SIGUSR1", "SIGTERM", "SIGRTMIN", "SIGRTMIN+3", "SIGRTMAX-14"))
		c.Lifecycle = &corev1.Lifecycle{StopSignal: &signal}
	}
	return c
}

func (t tenant) security() *corev1.SecurityContext {
	s := &corev1.SecurityContext{
		SELinuxOptions: t.selinux(), WindowsOptions: t.windows(), RunAsUser: t.user(), RunAsGroup: maybe(t, 2, t.id()),
		RunAsNonRoot: t.nonRoot(), ReadOnlyRootFilesystem: maybe(t, 2,
			t.chance(2)), SeccompProfile: t.seccomp(), AppArmorProfile: t.apparmor(),
		Capabilities: t.capabilities(), AllowPrivilegeEscalation: maybe(t, 4, false), ProcMount: maybe(t, 3,
			corev1.DefaultProcMount),
	}
	switch {
	case t.lean == baseline && t.chance(3):
		s.AllowPrivilegeEscalation = maybe(t, 2, true)
	case t.lean == restricted:
		s.AllowPrivilegeEscalation = maybe(t, 16, false)
	}
	if t.chance(4) { // allowed with hostUsers: false
		s.ProcMount = new(corev1.ProcMountType)
		*s.ProcMount = corev1.UnmaskedProcMount
	}
	if t.strays() {
		s.Privileged = maybe(t, 2, t.chance(2))
		s.AllowPrivilegeEscalation = maybe(t, 3, t.chance(2))
	}
	return s
}

func (t tenant) selinux() *corev1.SELinuxOptions {
	if !t.chance(4) {
		return nil
	}
	o := &corev1.SELinuxOptions{Type: t.of("", "container_t", "container_init_t", "container_kvm_t", "container_engine_t"),
		Level: t.of("", "s0:c1,c2")}
	if t.strays() {
		o.User = t.of("", "root")
		o.Role = t.of("", "sysadm_r")
		o.Type = t.of("", "spc_t")
	}
	return o
}

func (t tenant) windows() *corev1.WindowsSecurityContextOptions {
	if !t.chance(10) {
		return nil
	}
	name := "ContainerAdministrator"
	return &corev1.WindowsSecurityContextOptions{RunAsUserName: &name, HostProcess: maybe(t, 2, t.strays())}
}

func (t tenant) id() int64 { return []int64{0, 1, 1000, 65534, 1<<31 - 1}[t.IntN(5)] }

func (t tenant) user() *int64 {
	id := t.id()
	if t.lean == restricted && id == 0 && !t.strays() {
		id = 1000
	}
	return maybe(t, 2, id)
}

func (t tenant) nonRoot() *bool {
	if t.lean == restricted && !t.strays() {
		return maybe(t, 5, true)
	}
	return maybe(t, 2, t.chance(2))
}

func (t tenant) seccomp() *corev1.SeccompProfile {
	local := []*string{new(string), nil, new(string), new(string)}
	*local[0] = "p/tight.json"
	*local[2] = "../../../etc/passwd"
	*local[3] = ""
	p := &corev1.SeccompProfile{Type: corev1.SeccompProfileType(t.of("RuntimeDefault", "RuntimeDefault", "Localhost"))}
	if t.strays() {
		p.Type = corev1.SeccompProfileType(t.of("Unconfined", "Localhost", "Odd"))
	}
	if p.Type == corev1.SeccompProfileTypeLocalhost {
		p.LocalhostProfile = local[max(0, t.IntN(8)-4)]
	}
	if t.lean == restricted {
		return maybe(t, 5, *p)
	}
	return maybe(t, 2, *p)
}

func (t tenant) apparmor() *corev1.AppArmorProfile {
	if !t.chance(4) {
		return nil
	}
	p := &corev1.AppArmorProfile{Type: corev1.AppArmorProfileType(t.of("RuntimeDefault", "Localhost"))}
	if t.strays() {
		p.Type = corev1.AppArmorProfileType(t.of("Unconfined", "Localhost", "Odd"))
	}
	if p.Type == corev1.AppArmorProfileTypeLocalhost {
		p.LocalhostProfile = maybe(t, 8, t.of("tight", "tight", "tight", ""))
	}
	return p
}

func (t tenant) capabilities() *corev1.Capabilities {
	c := &corev1.Capabilities{}
	names := []string{"NET_BIND_SERVICE"}
	if t.lean == baseline {
		names = []string{"NET_BIND_SERVICE", "CHOWN", "KILL", "SETUID", "SYS_CHROOT"}
	}
	if t.strays() {
		names = []string{"SYS_ADMIN", "NET_ADMIN", "ALL", "CAP_SYS_PTRACE"}
	}
	for t.chance(3) {
		c.Add = append(c.Add, corev1.Capability(t.of(names...)))
	}
	if t.lean == restricted && !t.strays() || t.chance(2) {
		c.Drop = append(c.Drop, "ALL")
	} else if t.chance(2) {
		c.Drop = append(c.Drop, corev1.Capability(t.of("NET_RAW", "MKNOD", "KILL")))
	}
	if t.lean == restricted {
		return c
	}
	return maybe(t, 2, *c)
}

// image is what the runtime reports about an image: its user by number (also an invalid one), by name, or not at all.
func (t tenant) image() *runtimeapi.Image {
	image := &runtimeapi.Image{Id: "sha256:0f"}
	switch t.IntN(4) {
	case 0:
		image.Uid = &runtimeapi.Int64Value{Value: []int64{0, 1000, 65534, 1 << 31, 1 << 32, -1}[t.IntN(6)]}
	case 1:
		image.Username = t.of("app", "root", "1000")
	case 2:
		image.Uid = &runtimeapi.Int64Value{Value: 1000}
		image.Username = "app"
	}
	return image
}
