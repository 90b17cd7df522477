package podfields

import (
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// TestHolds checks the holds that depend on values.
func TestHolds(t *testing.T) {
	yes := true
	no := false
	out := "../../etc/profile"
	in := "profiles/a.json"
	seccomp := func(kind corev1.SeccompProfileType, path *string) *corev1.SecurityContext {
		return &corev1.SecurityContext{SeccompProfile: &corev1.SeccompProfile{Type: kind, LocalhostProfile: path}}
	}
	medium := func(m corev1.StorageMedium) corev1.PodSpec {
		return corev1.PodSpec{Volumes: []corev1.Volume{{Name: "v",
			VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{Medium: m}}}}}
	}
	container := func(c *corev1.SecurityContext) corev1.PodSpec {
		return corev1.PodSpec{InitContainers: []corev1.Container{{Name: "i", SecurityContext: c}}}
	}
	for name, c := range map[string]struct {
		spec  corev1.PodSpec
		field string
	}{
		"the host's users": {corev1.PodSpec{HostUsers: &yes}, ""},
		"users of its own": {corev1.PodSpec{HostUsers: &no}, "spec.hostUsers"},
		"no medium":        {medium(""), ""},
		"memory":           {medium(corev1.StorageMediumMemory), ""},
		"huge pages":       {medium("HugePages"), ""},
		"of a size":        {medium("HugePages-2Mi"), ""},
		"unknown medium":   {medium("Tape"), "spec.volumes[v].emptyDir.medium"},
		"a profile":        {container(seccomp(corev1.SeccompProfileTypeLocalhost, &in)), ""},
		"one outside": {container(seccomp(corev1.SeccompProfileTypeLocalhost, &out)),
			"spec.initContainers[i].securityContext.seccompProfile.localhostProfile"},
		"one without a name": {container(seccomp(corev1.SeccompProfileTypeLocalhost, nil)),
			"spec.initContainers[i].securityContext.seccompProfile.localhostProfile"},
		"not of the node": {container(seccomp(corev1.SeccompProfileTypeRuntimeDefault, &out)), ""},
		"of an ephemeral container": {corev1.PodSpec{EphemeralContainers: []corev1.EphemeralContainer{{
			EphemeralContainerCommon: corev1.EphemeralContainerCommon{Name: "e", VolumeDevices: []corev1.VolumeDevice{{}}},
		}}}, "spec.ephemeralContainers[e].volumeDevices"},
	} {
		pod := &corev1.Pod{Spec: c.spec}
		var fields []string
		for _, r := range Holds(pod, Abilities{}) {
			fields = append(fields, r.Field)
			published := slices.Contains(Codes(Abilities{}), r.Code)
			if r.Why == "" || r.Help == "" || !published || !slices.Contains(CodesOf(pod), r.Code) {
				t.Errorf("%s: %+v", name, r)
			}
		}
		if got := strings.Join(fields, ","); got != c.field {
			t.Errorf("%s: held for %q, want %q", name, got, c.field)
		}
	}
}

// TestAbilities: a node does not hold a pod because of something that it can carry out, and does not publish that it
// lacks it. CodesOf a pod does not depend on the node.
func TestAbilities(t *testing.T) {
	no := false
	pod := &corev1.Pod{Spec: corev1.PodSpec{HostUsers: &no, Volumes: []corev1.Volume{
		{Name: "i", VolumeSource: corev1.VolumeSource{Image: &corev1.ImageVolumeSource{}}},
		{Name: "n", VolumeSource: corev1.VolumeSource{NFS: &corev1.NFSVolumeSource{}}},
		{Name: "p", VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{
			Sources: []corev1.VolumeProjection{
				{ClusterTrustBundle: &corev1.ClusterTrustBundleProjection{}},
				{PodCertificate: &corev1.PodCertificateProjection{}},
			},
		}}},
	}}}
	const (
		users  = "user-namespaces"
		images = "volumes.image"
		nfs    = "volumes.nfs"
		roots  = "volumes.projected.clusterTrustBundle"
		keys   = "volumes.projected.podCertificate"
	)
	every := []string{users, images, nfs, roots, keys}
	if got := CodesOf(pod); !slices.Equal(got, every) {
		t.Errorf("the pod needs %v", got)
	}
	for can, want := range map[Abilities][]string{
		{}:                     every,
		{UserNamespaces: true}: {images, nfs, roots, keys},
		{ImageVolumes: true}:   {users, nfs, roots, keys},
		{TrustBundles: true}:   {users, images, nfs, keys},

		{PodCertificates: true}: {users, images, nfs, roots},
		{NFS: true}:             {users, images, roots, keys},
		{UserNamespaces: true, ImageVolumes: true, TrustBundles: true, PodCertificates: true}: {nfs},
	} {
		var got []string
		for _, r := range Holds(pod, can) {
			got = append(got, r.Code)
		}
		slices.Sort(got)
		if !slices.Equal(got, want) {
			t.Errorf("%+v: held for %v, want %v", can, got, want)
		}
		for _, code := range every {
			if slices.Contains(Codes(can), code) != slices.Contains(want, code) {
				t.Errorf("%+v: the node lacks %v", can, Codes(can))
			}
		}
	}
}

// TestBlocks: an unsupported field of a container prevents that container from starting; one of the pod prevents all
// from starting.
func TestBlocks(t *testing.T) {
	no := false
	pod := &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "a"},
		{Name: "b", VolumeDevices: []corev1.VolumeDevice{{}}}}}}
	if a, b := Blocks(pod, "a", Abilities{}), Blocks(pod, "b", Abilities{}); a != nil || b == nil {
		t.Errorf("a: %v, b: %v", a, b)
	}
	pod.Spec.HostUsers = &no
	if a := Blocks(pod, "a", Abilities{}); a == nil || a.Field != "spec.hostUsers" {
		t.Errorf("a: %v", a)
	}
}

// TestText is bounded: a pod may have thousands of unsupported fields.
func TestText(t *testing.T) {
	pod := &corev1.Pod{}
	for range 1000 {
		pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: strings.Repeat("v", 63),
			VolumeSource: corev1.VolumeSource{NFS: &corev1.NFSVolumeSource{}}})
	}
	if text := Text(Holds(pod, Abilities{})); len(text) > 1000 || !strings.HasSuffix(text, "and 997 more fields") {
		t.Errorf("%d bytes: %.300s", len(text), text)
	}
	if got := Text(nil); got != "" {
		t.Errorf("%q for nothing", got)
	}
}

// BenchmarkCodesOf is the cost for each pending pod in a scheduler.
func BenchmarkCodesOf(b *testing.B) {
	pod := &corev1.Pod{Spec: corev1.PodSpec{Containers: make([]corev1.Container, 2), Volumes: make([]corev1.Volume, 3)}}
	b.ReportAllocs()
	for b.Loop() {
		if CodesOf(pod) != nil {
			b.Fatal("held")
		}
	}
}
