package criconfig

import (
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
	named, silent := Image{Username: "app"}, Image{}
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
		{"an image that names none", nil, nil, nil, false, silent, "", ""},
		{"a group needs a user", nil, nil, ptr(int64(5)), false, silent, "0:5", ""},
		{"the pod's user", ptr(int64(7)), nil, nil, false, app, "7", ""},
		{"the container's user wins", ptr(int64(7)), ptr(int64(8)), nil, false, app, "8", ""},
		{"non-root, image's number", nil, nil, nil, true, app, "1000", ""},
		{"non-root, image is root", nil, nil, nil, true, root, "", "container has runAsNonRoot and image will run as root (pod: \"web_ns(uid-1)\", container: zeta)"},
		{"non-root, image names none", nil, nil, nil, true, silent, "", "image will run as root"},
		{"non-root, image's name", nil, nil, nil, true, named, "", "non-numeric user (app), cannot verify user is non-root"},
		{"non-root, asked for root", ptr(int64(0)), nil, nil, true, app, "", "container's runAsUser breaks non-root policy"},
		{"non-root, asked for a user of an unnamed image", nil, ptr(int64(9)), nil, true, silent, "9", ""},
	} {
		n, pod := testNode, testPod()
		pod.Spec.SecurityContext = &corev1.PodSecurityContext{RunAsUser: c.pod, RunAsGroup: c.group, RunAsNonRoot: &c.nonRoot}
		ctr := &pod.Spec.Containers[0]
		ctr.SecurityContext = &corev1.SecurityContext{RunAsUser: c.ctr}
		got, err := n.containerSecurity(pod, ctr, c.image)
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
	plain, err := n.containerSecurity(pod, &pod.Spec.Containers[0], Image{})
	if err != nil {
		t.Fatal(err)
	}
	if plain.Privileged || plain.NoNewPrivs || len(plain.MaskedPaths) == 0 || len(plain.ReadonlyPaths) == 0 || plain.Seccomp.ProfileType != runtimeapi.SecurityProfile_RuntimeDefault {
		t.Errorf("a plain container got %+v", plain)
	}
	ctr := &pod.Spec.Containers[0]
	ctr.SecurityContext = &corev1.SecurityContext{
		Privileged: ptr(true), AllowPrivilegeEscalation: ptr(true), ReadOnlyRootFilesystem: ptr(true),
		Capabilities: &corev1.Capabilities{Add: []corev1.Capability{"NET_ADMIN"}, Drop: []corev1.Capability{"ALL"}},
	}
	pod.Spec.SecurityContext = &corev1.PodSecurityContext{SupplementalGroups: []int64{1}, FSGroup: ptr(int64(2))}
	got, err := n.containerSecurity(pod, ctr, Image{})
	if err != nil {
		t.Fatal(err)
	}
	if !got.Privileged || !got.ReadonlyRootfs || got.MaskedPaths != nil || got.Seccomp.ProfileType != runtimeapi.SecurityProfile_Unconfined {
		t.Errorf("a privileged container got %+v", got)
	}
	if len(got.SupplementalGroups) != 2 || got.Capabilities.AddCapabilities[0] != "NET_ADMIN" || got.Capabilities.DropCapabilities[0] != "ALL" {
		t.Errorf("groups and capabilities: %+v", got)
	}
	ctr.SecurityContext = &corev1.SecurityContext{AllowPrivilegeEscalation: ptr(false)}
	if got, err := n.containerSecurity(pod, ctr, Image{}); err != nil || !got.NoNewPrivs {
		t.Errorf("allowPrivilegeEscalation false gave %+v, %v", got, err)
	}
}

// TestSeccompNeverOpensByMistake: a profile that can not be named safely must not become "unconfined".
func TestSeccompNeverOpensByMistake(t *testing.T) {
	n := testNode
	local := func(name string) *corev1.SeccompProfile {
		return &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeLocalhost, LocalhostProfile: &name}
	}
	for _, c := range []struct {
		profile *corev1.SeccompProfile
		want    runtimeapi.SecurityProfile_ProfileType
		ref     string
	}{
		{nil, runtimeapi.SecurityProfile_Unconfined, ""},
		{&corev1.SeccompProfile{Type: corev1.SeccompProfileTypeUnconfined}, runtimeapi.SecurityProfile_Unconfined, ""},
		{&corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault}, runtimeapi.SecurityProfile_RuntimeDefault, ""},
		{local("a/b.json"), runtimeapi.SecurityProfile_Localhost, "/var/lib/x/seccomp/a/b.json"},
		{local("../../etc/passwd"), runtimeapi.SecurityProfile_RuntimeDefault, ""},
		{local("/etc/passwd"), runtimeapi.SecurityProfile_RuntimeDefault, ""},
		{&corev1.SeccompProfile{Type: corev1.SeccompProfileTypeLocalhost}, runtimeapi.SecurityProfile_RuntimeDefault, ""},
		{&corev1.SeccompProfile{Type: "Other"}, runtimeapi.SecurityProfile_RuntimeDefault, ""},
	} {
		if got := n.seccompOf(c.profile); got.ProfileType != c.want || got.LocalhostRef != c.ref {
			t.Errorf("%v: got %v", c.profile, got)
		}
	}
}

func TestJoinTarget(t *testing.T) {
	pod := &corev1.Pod{Spec: corev1.PodSpec{EphemeralContainers: []corev1.EphemeralContainer{
		{EphemeralContainerCommon: corev1.EphemeralContainerCommon{Name: "look"}, TargetContainerName: "c"}, {EphemeralContainerCommon: corev1.EphemeralContainerCommon{Name: "beside"}},
	}}}
	running := map[string]string{"c": "id1", "d": "id2"}
	own := namespacesOf(pod)
	for _, name := range []string{"c", "beside"} {
		if err := joinTarget(own, pod, name, running); err != nil || own.Pid != runtimeapi.NamespaceMode_CONTAINER {
			t.Errorf("%s: %v, %v", name, own, err)
		}
	}
	if err := joinTarget(own, pod, "look", running); err != nil || own.Pid != runtimeapi.NamespaceMode_TARGET || own.TargetId != "id1" {
		t.Errorf("look: %v, %v", own, err)
	}
	if err := joinTarget(namespacesOf(pod), pod, "look", nil); err == nil || err.Error() != "unable to find target container c" {
		t.Errorf("without its target: %v", err)
	}
	shared := true
	pod.Spec.ShareProcessNamespace = &shared
	all := namespacesOf(pod)
	if err := joinTarget(all, pod, "look", nil); err != nil || all.Pid != runtimeapi.NamespaceMode_POD {
		t.Errorf("a pod whose containers see each other anyway: %v, %v", all, err)
	}
}
