//go:build e2e

package scheduler

import (
	"context"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/plimsoll-dev/plimsoll/internal/image"
	"github.com/plimsoll-dev/plimsoll/test/e2e/rig"
)

// A trouble is a kind of mistake or bad luck. make makes a pod have it, and its story must match says.
type trouble struct {
	make func(*corev1.Pod)
	says string
}

// elsewhere are the kinds that other tests make, with the test.
var elsewhere = map[string]string{
	"taint":               "TestExplain",
	"cordon":              "TestExplain",
	"node selector":       "TestExplain",
	"node too small":      "TestExplain",
	"request too large":   "TestExplain",
	"anti-affinity":       "TestExplain",
	"scheduling gate":     "TestExplain",
	"no room now":         "TestStory",
	"exit with an error":  "TestStory",
	"preemption":          "TestStory",
	"quota":               "TestStory",
	"eviction for memory": "TestEviction of test/e2e/enforce",
	"eviction for disk":   "TestShort of test/e2e/disk",
	"OOM of a child":      "TestOOMOfChild of test/e2e/pods",
	"node silent":         "TestFates of test/e2e/lifecycle",
	"API away":            "TestAwayAPI of test/e2e/crash",
}

// TestKinds counts: fewer kinds of trouble than this are no proof that explain helps with all of them.
func TestKinds(t *testing.T) {
	const enough = 20
	kinds := maps.Clone(elsewhere)
	for _, here := range []map[string]trouble{waiting, onTheNode} {
		for kind := range here {
			if kinds[kind] != "" {
				t.Errorf("%s: twice", kind)
			}
			kinds[kind] = "troubles_test.go"
		}
	}
	if len(kinds) < enough {
		t.Errorf("%d kinds, want %d: %v", len(kinds), enough, slices.Sorted(maps.Keys(kinds)))
	}
}

// waiting are troubles for which no node of TestExplain takes a pod of the pool free.
var waiting = map[string]trouble{
	"pod affinity": {
		make: func(p *corev1.Pod) {
			p.Spec.Affinity = &corev1.Affinity{PodAffinity: &corev1.PodAffinity{
				RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{{
					LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "nowhere"}},
					TopologyKey:   corev1.LabelHostname,
				}},
			}}
		},
		says: `1 node\(s\) didn't match pod affinity rules`,
	},
	"spread": {
		make: func(p *corev1.Pod) {
			p.Spec.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{{
				MaxSkew:           1,
				TopologyKey:       "rack",
				WhenUnsatisfiable: corev1.DoNotSchedule,
				LabelSelector:     &metav1.LabelSelector{MatchLabels: map[string]string{"app": "other"}},
			}}
		},
		says: `1 node\(s\) didn't match pod topology spread constraints \(missing required label\)`,
	},
	"node affinity": {
		make: func(p *corev1.Pod) {
			p.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
				RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
					NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{
						{Key: "cores", Operator: corev1.NodeSelectorOpGt, Values: []string{"16"}},
					}}},
				},
			}}
		},
		says: `6 node\(s\) didn't match Pod's node affinity/selector`,
	},
	"device": {
		make: func(p *corev1.Pod) {
			p.Spec.Containers[0].Resources.Requests["example.com/gpu"] = resource.MustParse("2")
			p.Spec.Containers[0].Resources.Limits = corev1.ResourceList{"example.com/gpu": resource.MustParse("2")}
		},
		says: `1 Insufficient example.com/gpu`,
	},
	"claim": {
		make: func(p *corev1.Pod) {
			p.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{
				PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "nowhere"},
			}}}
		},
		says: `persistentvolumeclaim \\?"nowhere\\?" not found`,
	},
	"memory": {
		make: func(p *corev1.Pod) {
			p.Spec.Containers[0].Resources.Requests[corev1.ResourceMemory] = resource.MustParse("900Gi")
		},
		says: `1 Insufficient memory`,
	},
}

// troubles asks about pods that wait for reasons of all kinds.
func (a *asked) troubles(t *testing.T) {
	t.Helper()
	for _, kind := range slices.Sorted(maps.Keys(waiting)) {
		a.make(t, named(kind), "1", "free", waiting[kind].make)
	}
	for _, kind := range slices.Sorted(maps.Keys(waiting)) {
		says := regexp.MustCompile(waiting[kind].says)
		rig.Eventually(t, placedTimeout, "the answer about "+kind, func(context.Context) error {
			if text := a.ask(t, "pod", a.ns+"/"+named(kind), "-o", "json"); !says.MatchString(text) {
				return fmt.Errorf("%q is not in\n%s", says, text)
			}
			return nil
		})
		if err := a.API.CoreV1().Pods(a.ns).Delete(t.Context(), named(kind), metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
	}
}

func named(kind string) string { return regexp.MustCompile(`[^a-z]`).ReplaceAllString(kind, "-") }

// failing is a probe that nothing answers.
func failing() *corev1.Probe {
	return &corev1.Probe{
		ProbeHandler: corev1.ProbeHandler{
			TCPSocket: &corev1.TCPSocketAction{Port: intstr.FromInt32(9), Host: "127.0.0.1"},
		},
		PeriodSeconds:    1,
		FailureThreshold: 2,
	}
}

// onTheNode are troubles of pods that got a node.
var onTheNode = map[string]trouble{
	"image not found": {
		make: func(p *corev1.Pod) { p.Spec.Containers[0].Image = "127.0.0.1:9/nowhere:1" },
		says: `image 127\.0\.0\.1:9/nowhere:1 was not pulled from 127\.0\.0\.1:9, after .*: .*refused`,
	},
	"image never pulled": {
		make: func(p *corev1.Pod) {
			p.Spec.Containers[0].Image = "127.0.0.1:9/nowhere:1"
			p.Spec.Containers[0].ImagePullPolicy = corev1.PullNever
		},
		says: `ErrImageNeverPull`,
	},
	"secret missing": {
		make: func(p *corev1.Pod) {
			p.Spec.Containers[0].EnvFrom = []corev1.EnvFromSource{{SecretRef: &corev1.SecretEnvSource{
				LocalObjectReference: corev1.LocalObjectReference{Name: "nowhere"},
			}}}
		},
		says: `secret \\?"nowhere\\?" not found`,
	},
	"config map missing": {
		make: func(p *corev1.Pod) {
			p.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{
				ConfigMap: &corev1.ConfigMapVolumeSource{
					LocalObjectReference: corev1.LocalObjectReference{Name: "nowhere"},
				},
			}}}
			p.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "v", MountPath: "/v"}}
		},
		says: `configmap \\?"nowhere\\?" not found`,
	},
	"program missing": {
		make: func(p *corev1.Pod) { p.Spec.Containers[0].Command = []string{"/nowhere"} },
		says: `/nowhere.*no such file or directory`,
	},
	"root is refused": {
		make: func(p *corev1.Pod) {
			yes, root := true, int64(0)
			p.Spec.SecurityContext = &corev1.PodSecurityContext{RunAsNonRoot: &yes, RunAsUser: &root}
		},
		says: `runAsNonRoot|non-root`,
	},
	"out of memory": {
		make: func(p *corev1.Pod) {
			p.Spec.Containers[0].Args = []string{"memory", "--hold", "200Mi"}
			p.Spec.Containers[0].Resources.Limits = corev1.ResourceList{
				corev1.ResourceMemory: resource.MustParse("32Mi"),
			}
		},
		says: `exit code 137.*OOMKilled`,
	},
	"liveness probe": {
		make: func(p *corev1.Pod) { p.Spec.Containers[0].LivenessProbe = failing() },
		says: `container c must end: its liveness probe failed 2 times in a row: .*refused`,
	},
	"readiness probe": {
		make: func(p *corev1.Pod) { p.Spec.Containers[0].ReadinessProbe = failing() },
		says: `[Rr]eadiness probe failed.*refused`,
	},
	"startup probe": {
		make: func(p *corev1.Pod) { p.Spec.Containers[0].StartupProbe = failing() },
		says: `container c must end: its startup probe failed 2 times in a row: .*refused`,
	},
	"hook": {
		make: func(p *corev1.Pod) {
			p.Spec.Containers[0].Lifecycle = &corev1.Lifecycle{PostStart: &corev1.LifecycleHandler{
				Exec: &corev1.ExecAction{Command: []string{"/nowhere"}},
			}}
		},
		says: `[Pp]ostStart`,
	},
	"init container": {
		make: func(p *corev1.Pod) {
			p.Spec.InitContainers = []corev1.Container{{
				Name:  "init",
				Image: image.Demo,
				Args:  []string{"exit", "--code", "7"},
			}}
		},
		says: `container init ends \(run 1\) after .*: exit code 7, Error`,
	},
	"deadline": {
		make: func(p *corev1.Pod) {
			seconds := int64(3)
			p.Spec.ActiveDeadlineSeconds = &seconds
		},
		says: `DeadlineExceeded`,
	},
}

// troubles makes each kind of trouble on the node at once, and asks about each.
func (s *told) troubles(t *testing.T) {
	t.Helper()
	second := int64(1)
	for _, kind := range slices.Sorted(maps.Keys(onTheNode)) {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: named(kind)}, Spec: corev1.PodSpec{
			TerminationGracePeriodSeconds: &second,
			Containers: []corev1.Container{{
				Name:  "c",
				Image: image.Demo,
				Args:  []string{"sleep", "infinity"},
			}},
		}}
		onTheNode[kind].make(pod)
		if _, err := s.API.CoreV1().Pods(s.ns).Create(t.Context(), pod, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	for _, kind := range slices.Sorted(maps.Keys(onTheNode)) {
		says := regexp.MustCompile(onTheNode[kind].says)
		rig.Eventually(t, lifeTimeout, "the story of "+kind, func(context.Context) error {
			text, err := s.Plimsoll("explain", "pod", s.ns+"/"+named(kind), "--kubeconfig", s.Kubeconfig, "-o", "json")
			if err == nil && !says.MatchString(text) {
				err = fmt.Errorf("%q is not in\n%s", says, text)
			}
			return err
		})
	}
}
