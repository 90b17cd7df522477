package pods

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func ptr[T any](v T) *T { return &v }

func TestRunAs(t *testing.T) {
	root, app := imageRef{uid: ptr(int64(0))}, imageRef{uid: ptr(int64(1000))}
	named, silent := imageRef{username: "app"}, imageRef{}
	for _, c := range []struct {
		name       string
		pod, ctr   *int64
		group      *int64
		nonRoot    bool
		image      imageRef
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
		r, pod := testRunner(), testPod()
		pod.Spec.SecurityContext = &corev1.PodSecurityContext{RunAsUser: c.pod, RunAsGroup: c.group, RunAsNonRoot: &c.nonRoot}
		ctr := &pod.Spec.Containers[0]
		ctr.SecurityContext = &corev1.SecurityContext{RunAsUser: c.ctr}
		got, err := r.containerSecurity(pod, ctr, c.image)
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
	r, pod := testRunner(), testPod()
	r.SeccompAll = true
	plain, err := r.containerSecurity(pod, &pod.Spec.Containers[0], imageRef{})
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
	got, err := r.containerSecurity(pod, ctr, imageRef{})
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
	if got, err := r.containerSecurity(pod, ctr, imageRef{}); err != nil || !got.NoNewPrivs {
		t.Errorf("allowPrivilegeEscalation false gave %+v, %v", got, err)
	}
}

// TestSeccompNeverOpensByMistake: a profile that can not be named safely must not become "unconfined".
func TestSeccompNeverOpensByMistake(t *testing.T) {
	r := testRunner()
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
		if got := r.seccompOf(c.profile); got.ProfileType != c.want || got.LocalhostRef != c.ref {
			t.Errorf("%v: got %v", c.profile, got)
		}
	}
}
