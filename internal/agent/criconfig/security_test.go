package criconfig

import (
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

var testNode = Node{SeccompDir: "/var/lib/x/seccomp", LogDir: "/var/log/pods"}

func testPod() *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "web", UID: "uid-1"},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "zeta", Image: "z:1"}}},
	}
}

func ptr[T any](v T) *T { return &v }

func TestRunAs(t *testing.T) {
	root, app := Image{UID: ptr(int64(0))}, Image{UID: ptr(int64(1000))}
	named := Image{Username: "app"}
	silent := Image{}
	wraps := Image{UID: ptr(int64(1 << 32))}
	for _, c := range []struct {
		name       string
		pod, ctr   *int64
		group      *int64
		nonRoot    bool
		image      Image
		user, want string // user as given to the runtime; part of the error
	}{
		{"the image's user", nil, nil, nil, false, app, "1000", ""},
		{"the image's named user", nil, nil, nil, false, named, "app", ""},
		{"an image that names none", nil, nil, nil, false, silent, "0", ""},
		{"a group needs a user", nil, nil, ptr(int64(5)), false, silent, "0:5", ""},
		{"the pod's user", ptr(int64(7)), nil, nil, false, app, "7", ""},
		{"the container's user wins", ptr(int64(7)), ptr(int64(8)), nil, false, app, "8", ""},
		{"non-root, image's number", nil, nil, nil, true, app, "1000", ""},
		{"non-root, image is root", nil, nil, nil, true, root, "",
			"container has runAsNonRoot and image will run as root (pod: \"web_ns(uid-1)\", container: zeta)"},
		{"non-root, image names none", nil, nil, nil, true, silent, "", "image will run as root"},
		{"non-root, image's name", nil, nil, nil, true, named, "", "non-numeric user (app), cannot verify user is non-root"},
		{"non-root, asked for root", ptr(int64(0)), nil, nil, true, app, "", "container's runAsUser breaks non-root policy"},
		{"non-root, a number that the kernel takes for 0", nil, nil, nil, true, wraps, "",
			"image has an invalid user id (4294967296)"},
		{"non-root, asked for a user of an unnamed image", nil, ptr(int64(9)), nil, true, silent, "9", ""},
	} {
		n, pod := testNode, testPod()
		pod.Spec.SecurityContext = &corev1.PodSecurityContext{RunAsUser: c.pod, RunAsGroup: c.group, RunAsNonRoot: &c.nonRoot}
		ctr := &pod.Spec.Containers[0]
		ctr.SecurityContext = &corev1.SecurityContext{RunAsUser: c.ctr}
		got, err := n.containerSecurity(pod, ctr, ContainerFacts{Image: c.image})
		if c.want != "" {
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%s: got error %v, want %q", c.name, err, c.want)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		user := got.RunAsUsername
		if got.RunAsUser != nil {
			user = strings.TrimPrefix(got.RunAsUser.String(), "value:")
			if user == "" {
				user = "0"
			}
		}
		if got.RunAsGroup != nil {
			user += ":" + strings.TrimPrefix(got.RunAsGroup.String(), "value:")
		}
		if user != c.user {
			t.Errorf("%s: runs as %q, want %q", c.name, user, c.user)
		}
	}
}

func TestContainerSecurity(t *testing.T) {
	n, pod := testNode, testPod()
	n.SeccompDefault = true
	plain, err := n.containerSecurity(pod, &pod.Spec.Containers[0], ContainerFacts{})
	if err != nil {
		t.Fatal(err)
	}
	if plain.Privileged || plain.NoNewPrivs || len(plain.MaskedPaths) == 0 || len(plain.ReadonlyPaths) == 0 ||
		plain.Seccomp.ProfileType != runtimeapi.SecurityProfile_RuntimeDefault {
		t.Errorf("a plain container got %+v", plain)
	}
	ctr := &pod.Spec.Containers[0]
	ctr.SecurityContext = &corev1.SecurityContext{
		Privileged: ptr(true), AllowPrivilegeEscalation: ptr(true), ReadOnlyRootFilesystem: ptr(true),
		Capabilities: &corev1.Capabilities{Add: []corev1.Capability{"NET_ADMIN"}, Drop: []corev1.Capability{"ALL"}},
	}
	pod.Spec.SecurityContext = &corev1.PodSecurityContext{SupplementalGroups: []int64{1}, FSGroup: ptr(int64(2))}
	got, err := n.containerSecurity(pod, ctr, ContainerFacts{})
	if err != nil {
		t.Fatal(err)
	}
	if !got.Privileged || !got.ReadonlyRootfs {
		t.Errorf("a privileged container got %+v", got)
	}
	if len(got.SupplementalGroups) != 2 || got.Capabilities.AddCapabilities[0] != "NET_ADMIN" ||
		got.Capabilities.DropCapabilities[0] != "ALL" {
		t.Errorf("groups and capabilities: %+v", got)
	}
	ctr.SecurityContext = &corev1.SecurityContext{AllowPrivilegeEscalation: ptr(false)}
	if got, err := n.containerSecurity(pod, ctr, ContainerFacts{}); err != nil || !got.NoNewPrivs {
		t.Errorf("allowPrivilegeEscalation false gave %+v, %v", got, err)
	}
}

// TestSeccomp: a profile whose path is not safe is an error; it is neither "unconfined" nor another profile.
func TestSeccomp(t *testing.T) {
	local := func(name string) *corev1.SeccompProfile {
		return &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeLocalhost, LocalhostProfile: &name}
	}
	for _, c := range []struct {
		profile  *corev1.SeccompProfile
		want     runtimeapi.SecurityProfile_ProfileType
		ref, err string
	}{
		{nil, runtimeapi.SecurityProfile_Unconfined, "", ""},
		{&corev1.SeccompProfile{Type: corev1.SeccompProfileTypeUnconfined}, runtimeapi.SecurityProfile_Unconfined, "", ""},
		{&corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault}, runtimeapi.SecurityProfile_RuntimeDefault, "",
			""},
		{local("a/b.json"), runtimeapi.SecurityProfile_Localhost, "/var/lib/x/seccomp/a/b.json", ""},
		{local("../../etc/passwd"), 0, "", "want a path below"},
		{local("/etc/passwd"), 0, "", "want a path below"},
		{local(""), 0, "", "localhostProfile must be set"},
		{&corev1.SeccompProfile{Type: corev1.SeccompProfileTypeLocalhost}, 0, "", "localhostProfile must be set"},
		{&corev1.SeccompProfile{Type: "Other"}, 0, "", "unknown seccomp profile type"},
	} {
		got, err := testNode.seccompOf(c.profile)
		switch {
		case c.err != "":
			if err == nil || !strings.Contains(err.Error(), c.err) {
				t.Errorf("%v: got %v, %v, want an error with %q", c.profile, got, err, c.err)
			}
		case err != nil || got.ProfileType != c.want || got.LocalhostRef != c.ref:
			t.Errorf("%v: got %v, %v", c.profile, got, err)
		}
	}
	pod := testPod()
	pod.Spec.SecurityContext = &corev1.PodSecurityContext{SeccompProfile: local("../up.json")}
	if got, err := testNode.Container(pod, &pod.Spec.Containers[0], ContainerFacts{}); err == nil {
		t.Errorf("a container whose profile cannot be named got %v", got)
	}
}

// TestSandboxSeccomp: the pod's profile applies to its containers; the sandbox's process always has the runtime's
// default profile.
func TestSandboxSeccomp(t *testing.T) {
	pod := testPod()
	for _, profile := range []*corev1.SeccompProfile{nil, {Type: corev1.SeccompProfileTypeUnconfined}} {
		pod.Spec.SecurityContext = &corev1.PodSecurityContext{SeccompProfile: profile}
		config, err := testNode.Sandbox(pod, SandboxFacts{})
		if err != nil || config.Linux.SecurityContext.Seccomp.ProfileType != runtimeapi.SecurityProfile_RuntimeDefault {
			t.Errorf("profile %v: got %v, %v", profile, config, err)
		}
	}
}

// usersOf is a user namespace of a pod, whose root is the host's user of that number.
func usersOf(first uint32) *runtimeapi.UserNamespace {
	ids := []*runtimeapi.IDMapping{{HostId: first, Length: 65536}}
	return &runtimeapi.UserNamespace{Mode: runtimeapi.NamespaceMode_POD, Uids: ids, Gids: ids}
}

// TestUserNamespace: with hostUsers false, sandbox and containers have the pod's user namespace, and all mounts show
// files with its ids. Nothing of such a pod is created without one, or with the host's other namespaces.
func TestUserNamespace(t *testing.T) {
	pod, users := testPod(), usersOf(131072)
	mounts := func() []*runtimeapi.Mount {
		return []*runtimeapi.Mount{{ContainerPath: "/data"}, {ContainerPath: "/etc/hosts"}, {ContainerPath: "/dev/log"}}
	}
	none := &runtimeapi.UserNamespace{Mode: runtimeapi.NamespaceMode_POD}
	hosts := &runtimeapi.UserNamespace{Mode: runtimeapi.NamespaceMode_NODE}
	for _, c := range []struct {
		hostUsers *bool
		users     *runtimeapi.UserNamespace
		change    func(*corev1.PodSpec)
		want      string // part of the error
	}{
		{hostUsers: nil},
		{hostUsers: ptr(true)},
		{hostUsers: ptr(false), users: users},
		{hostUsers: ptr(false), want: "got no user namespace"},
		{hostUsers: ptr(false), users: hosts, want: "got no user namespace"},
		{hostUsers: ptr(false), users: none, want: "got no user namespace"},
		{ptr(false), users, func(s *corev1.PodSpec) { s.HostNetwork = true }, "must not be true"},
		{ptr(false), users, func(s *corev1.PodSpec) { s.HostPID = true }, "must not be true"},
		{ptr(false), users, func(s *corev1.PodSpec) { s.HostIPC = true }, "must not be true"},
	} {
		p := pod.DeepCopy()
		p.Spec.HostUsers = c.hostUsers
		if c.change != nil {
			c.change(&p.Spec)
		}
		sandbox, err := testNode.Sandbox(p, SandboxFacts{Users: c.users})
		facts := ContainerFacts{Users: c.users, Mounts: mounts()}
		container, err2 := testNode.Container(p, &p.Spec.Containers[0], facts)
		for _, err := range []error{err, err2} {
			if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
				t.Errorf("%+v: %v, want %q", c, err, c.want)
			}
		}
		if err != nil || err2 != nil {
			continue
		}
		for _, o := range []*runtimeapi.NamespaceOption{
			sandbox.Linux.SecurityContext.NamespaceOptions, container.Linux.SecurityContext.NamespaceOptions,
		} {
			if o.UsernsOptions != c.users {
				t.Errorf("%+v: has users %v", c, o.UsernsOptions)
			}
		}
		for _, m := range container.Mounts {
			if len(m.UidMappings) != len(c.users.GetUids()) || len(m.GidMappings) != len(c.users.GetGids()) {
				t.Errorf("%+v: mount %v", c, m)
			}
			for _, ids := range append(m.UidMappings, m.GidMappings...) {
				if ids.HostId != 131072 || ids.ContainerId != 0 || ids.Length != 65536 {
					t.Errorf("%+v: mount %v", c, m)
				}
			}
		}
	}
}

// TestMountedImages: the images that a container mounts are recorded with it, for those who remove unused images.
func TestMountedImages(t *testing.T) {
	pod := testPod()
	for want, mounts := range map[string][]*runtimeapi.Mount{
		"": {{HostPath: "/srv"}},
		"a,b": {
			{Image: &runtimeapi.ImageSpec{Image: "a"}}, {HostPath: "/srv"}, {Image: &runtimeapi.ImageSpec{Image: "b"}},
		},
	} {
		got, err := testNode.Container(pod, &pod.Spec.Containers[0], ContainerFacts{Mounts: mounts})
		if text, ok := got.GetAnnotations()[AnnotationMountedImages]; err != nil || text != want || ok != (want != "") {
			t.Errorf("%v: %q (%v), want %q", mounts, text, err, want)
		}
	}
}

// TestProcMount: procMount Unmasked shows all of /proc and /sys to pods with users of their own, and to no other.
func TestProcMount(t *testing.T) {
	node := testNode
	node.MaskedPaths = []string{"/sys/devices/system/cpu/cpu0/thermal_throttle"}
	for _, c := range []struct {
		procMount *corev1.ProcMountType
		users     *runtimeapi.UserNamespace
		masked    bool
	}{
		{nil, nil, true},
		{nil, usersOf(65536), true},
		{ptr(corev1.DefaultProcMount), usersOf(65536), true},
		{ptr(corev1.UnmaskedProcMount), nil, true},
		{ptr(corev1.UnmaskedProcMount), usersOf(65536), false},
	} {
		pod := testPod()
		pod.Spec.HostUsers = ptr(c.users == nil)
		pod.Spec.Containers[0].SecurityContext = &corev1.SecurityContext{ProcMount: c.procMount}
		got, err := node.Container(pod, &pod.Spec.Containers[0], ContainerFacts{Users: c.users})
		if err != nil {
			t.Fatal(err)
		}
		s := got.Linux.SecurityContext
		for _, path := range []string{"/proc/kcore", "/proc/keys", "/sys/firmware", node.MaskedPaths[0]} {
			if slices.Contains(s.MaskedPaths, path) != c.masked {
				t.Errorf("%+v: masked %v", c, s.MaskedPaths)
			}
		}
		if slices.Contains(s.ReadonlyPaths, "/proc/sys") != c.masked {
			t.Errorf("%+v: read-only %v", c, s.ReadonlyPaths)
		}
	}
}

func TestAppArmor(t *testing.T) {
	local := func(name string) *corev1.AppArmorProfile {
		return &corev1.AppArmorProfile{Type: corev1.AppArmorProfileTypeLocalhost, LocalhostProfile: &name}
	}
	open := &corev1.AppArmorProfile{Type: corev1.AppArmorProfileTypeUnconfined}
	for _, c := range []struct {
		name       string
		pod, ctr   *corev1.AppArmorProfile
		annotation string
		want, err  string
	}{
		{"none", nil, nil, "", "", ""},
		{"the pod's", local("a"), nil, "", "localhost/a", ""},
		{"the container's wins", local("a"), open, "localhost/b", "unconfined", ""},
		{"the annotation wins over the pod's", open, nil, "localhost/b", "localhost/b", ""},
		{"an annotation that says nothing", local("a"), nil, "what", "localhost/a", ""},
		{"a profile without a name", nil, local(""), "", "", "missing localhost apparmor profile name"},
		{"an unknown type", nil, &corev1.AppArmorProfile{Type: "Other"}, "", "", "unknown apparmor profile type"},
	} {
		pod := testPod()
		pod.Spec.SecurityContext = &corev1.PodSecurityContext{AppArmorProfile: c.pod}
		pod.Spec.Containers[0].SecurityContext = &corev1.SecurityContext{AppArmorProfile: c.ctr}
		pod.Annotations = map[string]string{corev1.DeprecatedAppArmorBetaContainerAnnotationKeyPrefix + "zeta": c.annotation}
		got, err := testNode.containerSecurity(pod, &pod.Spec.Containers[0], ContainerFacts{})
		switch {
		case c.err != "":
			if err == nil || !strings.Contains(err.Error(), c.err) {
				t.Errorf("%s: got %v, %v, want an error with %q", c.name, got, err, c.err)
			}
		//lint:ignore SA1019 runtimes that do not know Apparmor read it
		case err != nil || got.ApparmorProfile != c.want || (got.Apparmor == nil) != (c.want == ""):
			t.Errorf("%s: got %v, %v, want %q", c.name, got, err, c.want)
		}
	}
}

func TestStopSignal(t *testing.T) {
	for name, want := range map[corev1.Signal]runtimeapi.Signal{
		"SIGTERM": runtimeapi.Signal_SIGTERM, "SIGRTMIN": runtimeapi.Signal_SIGRTMIN,
		"SIGRTMIN+15": runtimeapi.Signal_SIGRTMINPLUS15,
		"SIGRTMAX-1":  runtimeapi.Signal_SIGRTMAXMINUS1, "SIGWHAT": runtimeapi.Signal_RUNTIME_DEFAULT,
	} {
		c := &corev1.Container{Lifecycle: &corev1.Lifecycle{StopSignal: &name}}
		if got := stopSignal(c); got != want {
			t.Errorf("%s: got %v", name, got)
		}
	}
}

func TestJoinTarget(t *testing.T) {
	pod := &corev1.Pod{Spec: corev1.PodSpec{EphemeralContainers: []corev1.EphemeralContainer{
		{EphemeralContainerCommon: corev1.EphemeralContainerCommon{Name: "look"},
			TargetContainerName: "c"}, {EphemeralContainerCommon: corev1.EphemeralContainerCommon{Name: "beside"}},
	}}}
	running := map[string]string{"c": "id1", "d": "id2"}
	own, err := namespacesOf(pod, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"c", "beside"} {
		if err := joinTarget(own, pod, name, running); err != nil || own.Pid != runtimeapi.NamespaceMode_CONTAINER {
			t.Errorf("%s: %v, %v", name, own, err)
		}
	}
	if err := joinTarget(own, pod, "look", running); err != nil || own.Pid != runtimeapi.NamespaceMode_TARGET ||
		own.TargetId != "id1" {
		t.Errorf("look: %v, %v", own, err)
	}
	alone, _ := namespacesOf(pod, nil)
	if err := joinTarget(alone, pod, "look", nil); err == nil || err.Error() != "unable to find target container c" {
		t.Errorf("without its target: %v", err)
	}
	shared := true
	pod.Spec.ShareProcessNamespace = &shared
	all, _ := namespacesOf(pod, nil)
	if err := joinTarget(all, pod, "look", nil); err != nil || all.Pid != runtimeapi.NamespaceMode_POD {
		t.Errorf("a pod whose containers see each other anyway: %v, %v", all, err)
	}
}
