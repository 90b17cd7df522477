package manifests

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"

	"github.com/plimsoll-dev/plimsoll/test/cost"
)

func TestDefaultPod(t *testing.T) {
	pod, err := DecodePod([]byte(`{"apiVersion":"v1","kind":"Pod","spec":{"hostNetwork":true,"volumes":[{"name":"v"},{"name":"h","hostPath":{"path":"/x"}}],
		"initContainers":[{"name":"i","image":"registry:5000/app"}],
		"containers":[{"name":"a","image":"app@sha256:00","ports":[{"containerPort":80}],"livenessProbe":{"httpGet":{"port":80}}},{"name":"b","image":"app:latest"},
		{"name":"c","image":"registry.example/app:1"},{"name":"d","image":"app"}]}}`))
	if err != nil {
		t.Fatal(err)
	}
	DefaultPod(pod)
	s := pod.Spec
	if s.DNSPolicy != corev1.DNSClusterFirst || *s.TerminationGracePeriodSeconds != 30 || !*s.EnableServiceLinks ||
		s.SecurityContext == nil {
		t.Errorf("pod: %+v", s)
	}
	if s.Volumes[0].EmptyDir == nil || *s.Volumes[1].HostPath.Type != corev1.HostPathUnset {
		t.Errorf("volumes: %+v", s.Volumes)
	}
	if p := s.Containers[0].LivenessProbe; p.TimeoutSeconds != 1 || p.PeriodSeconds != 10 || p.FailureThreshold != 3 ||
		p.HTTPGet.Path != "/" || p.HTTPGet.Scheme != "HTTP" {
		t.Errorf("probe: %+v", p)
	}
	if p := s.Containers[0].Ports[0]; p.Protocol != "TCP" || p.HostPort != 80 {
		t.Errorf("port: %+v", p)
	}
	for i, want := range []corev1.PullPolicy{corev1.PullIfNotPresent, corev1.PullAlways, corev1.PullIfNotPresent,
		corev1.PullAlways} {
		if got := s.Containers[i].ImagePullPolicy; got != want {
			t.Errorf("%s: pull policy %s, want %s", s.Containers[i].Image, got, want)
		}
	}
	if got := s.InitContainers[0].ImagePullPolicy; got != corev1.PullAlways {
		t.Errorf("%s: pull policy %s, want Always", s.InitContainers[0].Image, got)
	}
}

// TestCheckUsers: fields that the API server refuses with hostUsers: false, or without it.
func TestCheckUsers(t *testing.T) {
	const head = "apiVersion: v1\nkind: Pod\nmetadata: {name: a, namespace: b}\nspec:\n"
	const c = "  containers: [{name: c, image: i}]\n"
	const unmasked = "image: i, securityContext: {procMount: Unmasked}}]\n"
	const volume = c + "  volumes: [{name: v, image: "
	for spec, want := range map[string]string{
		c + "  hostUsers: false\n":                                                              "",
		c + "  hostNetwork: true\n  hostPID: true\n  hostIPC: true\n":                           "",
		c + "  hostUsers: true\n  hostNetwork: true\n":                                          "",
		c + "  hostUsers: false\n  hostNetwork: true\n":                                         "spec.hostNetwork: must not",
		c + "  hostUsers: false\n  hostPID: true\n":                                             "spec.hostPID: must not",
		c + "  hostUsers: false\n  hostIPC: true\n":                                             "spec.hostIPC: must not",
		"  hostUsers: false\n  containers: [{name: c, image: i, volumeDevices: [{name: v}]}]\n": "[c].volumeDevices",
		"  hostUsers: false\n  containers: [{name: c, " + unmasked:                              "",
		"  containers: [{name: c, " +
			unmasked: "Unmasked needs hostUsers: false",
		c + "  initContainers: [{name: i, " +
			unmasked: "spec.containers[i].securityContext.procMount",
		"  containers: [{name: c, image: i, securityContext: {procMount: Naked}}]\n":   `"Naked": want Default or Unmasked`,
		"  containers: [{name: c, image: i, securityContext: {procMount: Default}}]\n": "",
		volume + "{reference: example.com/a}}]\n":                                      "",
		volume + "{}}]\n": "spec.volumes[v].image.reference",
		volume + "{reference: example.com/a, pullPolicy: Sometimes}}]\n": `"Sometimes": want Always`,
	} {
		pod, err := DecodePod([]byte(head + spec))
		if err != nil {
			t.Fatalf("%s: %v", spec, err)
		}
		DefaultPod(pod)
		err = CheckStaticPod(pod)
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s%v, want %q", spec, err, want)
		}
	}
}

// TestImageVolumePolicy: the image of a volume has the same pull policy as a container's image of that name.
func TestImageVolumePolicy(t *testing.T) {
	const always, once = corev1.PullAlways, corev1.PullIfNotPresent
	for image, want := range map[string]corev1.PullPolicy{"a": always, "a:latest": always, "a:1": once,
		"h:5000/a": always} {
		source := &corev1.ImageVolumeSource{Reference: image}
		pod := &corev1.Pod{Spec: corev1.PodSpec{
			Containers: []corev1.Container{{Image: image}},
			Volumes:    []corev1.Volume{{VolumeSource: corev1.VolumeSource{Image: source}}},
		}}
		DefaultPod(pod)
		if c := pod.Spec.Containers[0].ImagePullPolicy; c != want || source.PullPolicy != want {
			t.Errorf("%s: container %s, volume %s, want %s", image, c, source.PullPolicy, want)
		}
	}
}

// FuzzDecodePod: every manifest is decoded or refused, and a decoded one can be defaulted and checked.
func FuzzDecodePod(f *testing.F) {
	for _, seed := range []string{
		"", "{}", "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec: {containers: [{name: a, image: b}]}\n",
		`{"apiVersion":"v1","kind":"Pod","spec":{"containers":[{"ports":[{}],"env":[{"valueFrom":{}}],"livenessProbe":{}}],"volumes":[{}]}}`,
		"apiVersion: v1\nkind: List\nitems: []\n", "a: &a [*a]\n", "k8s\x00",
	} {
		cost.Attack(f, []byte(seed))
	}
	f.Add([]byte(cost.Aliases("apiVersion: v1\nkind: Pod\n")))
	f.Fuzz(func(t *testing.T, manifest []byte) {
		defer cost.Spend(t, len(manifest))()
		pod, err := DecodePod(manifest)
		if (pod == nil) == (err == nil) {
			t.Fatalf("got pod %v and error %v", pod != nil, err)
		}
		if err != nil {
			return
		}
		DefaultPod(pod)
		if err := CheckStaticPod(pod); err == nil && len(pod.Spec.Containers) == 0 {
			t.Fatal("a pod without containers was accepted")
		}
		again := pod.DeepCopy()
		DefaultPod(again)
		if !equality.Semantic.DeepEqual(again, pod) {
			t.Fatal("defaulting twice differs from defaulting once")
		}
	})
}
