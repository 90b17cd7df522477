//go:build e2e

// Package skew runs our agent, scheduler and lifecycle controller with the API servers and controller managers of other
// minor releases of Kubernetes than ours, which `make skew` builds of their published modules.
package skew

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	ours "github.com/plimsoll-dev/plimsoll/internal/image"
	"github.com/plimsoll-dev/plimsoll/test/e2e/rig"
)

// soon bounds what takes seconds on an idle machine.
const soon = 3 * time.Minute

// agentConfig switches on what API servers do not serve unless they are told to: the agent asks for it when a pod needs
// it.
const agentConfig = `apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
featureGates: {ClusterTrustBundle: true, ClusterTrustBundleProjection: true, PodCertificateRequest: true}
`

// TestSkew: pods of each owner run, are read, resized, moved and ended, and a lost node is seen. Our programs log once
// that an API server is older, and ask it for nothing that it lacks.
func TestSkew(t *testing.T) {
	if os.Getenv("PLIMSOLL_E2E_LONG") == "" {
		t.Skip("needs control planes of other releases: make skew builds them, and runs this")
	}
	for _, minor := range []string{"v1.34", "v1.35", "v1.37"} {
		t.Run(minor, func(t *testing.T) {
			program, err := filepath.Abs(filepath.Join("../../../bin/skew", minor, "plimsoll-controlplane"))
			if err != nil {
				t.Fatal(err)
			}
			if _, err := os.Stat(program); err != nil {
				t.Fatalf("%v; make skew builds it", err)
			}
			config := filepath.Join(t.TempDir(), "agent.yaml")
			if err := os.WriteFile(config, []byte(agentConfig), 0o600); err != nil {
				t.Fatal(err)
			}
			name := strings.ReplaceAll(minor, ".", "")
			c := rig.New(t, name, rig.Options{UpFlags: []string{"--controlplane-binary", program, "--agent-config", config}})
			version, err := c.API.Discovery().ServerVersion()
			if err != nil || !strings.HasPrefix(version.GitVersion, minor+".") {
				t.Fatalf("the API server is %v, %v; want %s", version, err, minor)
			}
			s := &server{c, c.Namespace(t)}
			s.owners(t)
			s.resize(t)
			s.reads(t)
			s.newer(t)
			s.lost(t)
			s.logs(t, minor < "v1.36")
		})
	}
}

// server is an instance with a control plane of another release.
type server struct {
	*rig.Cluster
	ns string
}

// spec is that of a pod that serves HTTP.
func spec(args ...string) corev1.PodSpec {
	grace := int64(1)
	return corev1.PodSpec{
		TerminationGracePeriodSeconds: &grace,
		Containers: []corev1.Container{{
			Name:  "c",
			Image: ours.Demo,
			Args:  args,
			Resources: corev1.ResourceRequirements{
				Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("20m")},
				Limits:   corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("32Mi")},
			},
			ResizePolicy: []corev1.ContainerResizePolicy{
				{ResourceName: corev1.ResourceMemory, RestartPolicy: corev1.NotRequired},
			},
		}},
	}
}

func template(app string, s corev1.PodSpec) corev1.PodTemplateSpec {
	return corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": app}}, Spec: s}
}

// owners runs a Deployment, a DaemonSet, a StatefulSet and a Job, and removes the first.
func (s *server) owners(t *testing.T) {
	t.Helper()
	ctx, apps := t.Context(), s.API.AppsV1()
	replicas := int32(3)
	selector := func(app string) *metav1.LabelSelector {
		return &metav1.LabelSelector{MatchLabels: map[string]string{"app": app}}
	}
	serves := spec("http", "--port", "8080")
	_, err := apps.Deployments(s.ns).Create(ctx, &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: "d"},
		Spec: appsv1.DeploymentSpec{Replicas: &replicas, Selector: selector("d"), Template: template("d", serves)}},
		metav1.CreateOptions{})
	check(t, err)
	_, err = apps.DaemonSets(s.ns).Create(ctx, &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Name: "ds"},
		Spec: appsv1.DaemonSetSpec{Selector: selector("ds"), Template: template("ds", serves)}}, metav1.CreateOptions{})
	check(t, err)
	_, err = apps.StatefulSets(s.ns).Create(ctx, &appsv1.StatefulSet{ObjectMeta: metav1.ObjectMeta{Name: "ss"},
		Spec: appsv1.StatefulSetSpec{Replicas: &replicas, Selector: selector("ss"), Template: template("ss", serves)}},
		metav1.CreateOptions{})
	check(t, err)
	once := spec("exit", "--code", "0")
	once.RestartPolicy = corev1.RestartPolicyNever
	_, err = s.API.BatchV1().Jobs(s.ns).Create(ctx, &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Name: "j"},
		Spec: batchv1.JobSpec{Template: template("j", once)}}, metav1.CreateOptions{})
	check(t, err)
	rig.Eventually(t, soon, "every owner's pods", func(ctx context.Context) error {
		d, err := apps.Deployments(s.ns).Get(ctx, "d", metav1.GetOptions{})
		if err != nil || d.Status.ReadyReplicas != replicas {
			return fmt.Errorf("deployment: %v, %v", d.Status, err)
		}
		ds, err := apps.DaemonSets(s.ns).Get(ctx, "ds", metav1.GetOptions{})
		if err != nil || ds.Status.NumberReady != 1 {
			return fmt.Errorf("daemon set: %v, %v", ds.Status, err)
		}
		ss, err := apps.StatefulSets(s.ns).Get(ctx, "ss", metav1.GetOptions{})
		if err != nil || ss.Status.ReadyReplicas != replicas {
			return fmt.Errorf("stateful set: %v, %v", ss.Status, err)
		}
		j, err := s.API.BatchV1().Jobs(s.ns).Get(ctx, "j", metav1.GetOptions{})
		if err != nil || j.Status.Succeeded != 1 {
			return fmt.Errorf("job: %v, %v", j.Status, err)
		}
		return nil
	})
	foreground := metav1.DeletePropagationForeground
	check(t, apps.Deployments(s.ns).Delete(ctx, "d", metav1.DeleteOptions{PropagationPolicy: &foreground}))
	rig.Eventually(t, soon, "no pods of the deployment", func(ctx context.Context) error {
		pods, err := s.API.CoreV1().Pods(s.ns).List(ctx, metav1.ListOptions{LabelSelector: "app=d"})
		if err != nil || len(pods.Items) > 0 {
			return fmt.Errorf("%d pods, %v", len(pods.Items), err)
		}
		return nil
	})
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// resize gives a container more memory while it runs.
func (s *server) resize(t *testing.T) {
	t.Helper()
	pods := s.API.CoreV1().Pods(s.ns)
	pod, err := pods.Get(t.Context(), "ss-0", metav1.GetOptions{})
	check(t, err)
	pod.Spec.Containers[0].Resources.Limits[corev1.ResourceMemory] = resource.MustParse("48Mi")
	_, err = pods.UpdateResize(t.Context(), pod.Name, pod, metav1.UpdateOptions{})
	check(t, err)
	rig.Eventually(t, soon, "resize", func(ctx context.Context) error {
		pod, err := pods.Get(ctx, pod.Name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		is := pod.Status.ContainerStatuses[0]
		if r := is.Resources; r == nil || r.Limits.Memory().String() != "48Mi" || is.RestartCount > 0 {
			return fmt.Errorf("%+v", is)
		}
		return nil
	})
}

// reads uses the agent's server through the API server.
func (s *server) reads(t *testing.T) {
	t.Helper()
	out := s.Kubectl(t, "exec", "-n", s.ns, "ss-0", "--", "/workload", "env", "HOSTNAME")
	if strings.TrimSpace(out) != "ss-0" {
		t.Errorf("exec printed %q", out)
	}
	s.Kubectl(t, "logs", "-n", s.ns, "ss-0")
	var summary struct{ Node struct{ NodeName string } }
	check(t, json.Unmarshal([]byte(s.ReadAgent(t, "/stats/summary")), &summary))
	if summary.Node.NodeName != s.NodeName {
		t.Errorf("usage is of node %q", summary.Node.NodeName)
	}
}

// newer starts a pod with a source of a volume that an API server has only behind a feature gate. Where it drops the
// source's kind, the pod waits and says so, since nobody knows what a file that it needs would have held. (The kubelet
// would run it without the file.) Where it keeps the source, the pod waits for a bundle that does not exist.
func (s *server) newer(t *testing.T) {
	t.Helper()
	needs := spec("http", "--port", "8080")
	needs.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "v", MountPath: "/v"}}
	signer := "example.com/signer"
	needs.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{
		Sources: []corev1.VolumeProjection{{ClusterTrustBundle: &corev1.ClusterTrustBundleProjection{SignerName: &signer,
			LabelSelector: &metav1.LabelSelector{}, Path: "ca.crt"}}},
	}}}}
	pods := s.API.CoreV1().Pods(s.ns)
	pod, err := pods.Create(t.Context(), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "newer"}, Spec: needs},
		metav1.CreateOptions{})
	check(t, err)
	want := "clustertrustbundle"
	if sources := pod.Spec.Volumes[0].Projected.Sources; len(sources) != 1 || sources[0].ClusterTrustBundle == nil {
		t.Log("the API server drops the source's kind")
		want = "sources[0] is empty"
	}
	rig.Eventually(t, soon, "an Event that says what is missing", func(ctx context.Context) error {
		events, err := s.API.CoreV1().Events(s.ns).List(ctx, metav1.ListOptions{FieldSelector: "involvedObject.name=newer"})
		if err != nil || !slices.ContainsFunc(events.Items, func(e corev1.Event) bool {
			return strings.Contains(strings.ToLower(e.Message), want)
		}) {
			return fmt.Errorf("%d Events, %v", len(events.Items), err)
		}
		return nil
	})
	check(t, pods.Delete(t.Context(), "newer", metav1.DeleteOptions{}))
	rig.Eventually(t, soon, "the end of the pod", func(ctx context.Context) error {
		if _, err := pods.Get(ctx, "newer", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			return fmt.Errorf("it is there: %v", err)
		}
		return nil
	})
}

// lost has the lifecycle controller see a node that never reports, and evict by a taint.
func (s *server) lost(t *testing.T) {
	t.Helper()
	nodes := s.API.CoreV1().Nodes()
	silent := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "silent"}}
	_, err := nodes.Create(t.Context(), silent, metav1.CreateOptions{})
	check(t, err)
	patch := fmt.Sprintf(`{"spec": {"taints": [{"key": "example.com/off", "effect": %q}]}}`, corev1.TaintEffectNoExecute)
	before, err := s.API.CoreV1().Pods(s.ns).Get(t.Context(), "ss-1", metav1.GetOptions{})
	check(t, err)
	_, err = nodes.Patch(t.Context(), s.NodeName, types.StrategicMergePatchType, []byte(patch), metav1.PatchOptions{})
	check(t, err)
	rig.Eventually(t, soon, "the pods of the tainted node are gone", func(ctx context.Context) error {
		now, err := s.API.CoreV1().Pods(s.ns).Get(ctx, "ss-1", metav1.GetOptions{})
		if err == nil && now.UID == before.UID {
			return fmt.Errorf("%s is there", now.Name)
		} else if err != nil && !apierrors.IsNotFound(err) {
			return err
		}
		return nil
	})
	_, err = nodes.Patch(t.Context(), s.NodeName, types.StrategicMergePatchType, []byte(`{"spec": {"taints": null}}`),
		metav1.PatchOptions{})
	check(t, err)
	rig.Eventually(t, soon, "the silent node is Unknown and tainted", func(ctx context.Context) error {
		node, err := nodes.Get(ctx, "silent", metav1.GetOptions{})
		if err != nil {
			return err
		}
		unknown := slices.ContainsFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool {
			return c.Type == corev1.NodeReady && c.Status == corev1.ConditionUnknown
		})
		tainted := slices.ContainsFunc(node.Spec.Taints, func(t corev1.Taint) bool {
			return t.Key == corev1.TaintNodeUnreachable && t.Effect == corev1.TaintEffectNoExecute
		})
		if !unknown || !tainted {
			return fmt.Errorf("conditions %v, taints %v", node.Status.Conditions, node.Spec.Taints)
		}
		return nil
	})
	check(t, nodes.Delete(t.Context(), "silent", metav1.DeleteOptions{}))
	rig.Eventually(t, soon, "the pods run again", func(ctx context.Context) error {
		ss, err := s.API.AppsV1().StatefulSets(s.ns).Get(ctx, "ss", metav1.GetOptions{})
		if err != nil || ss.Status.ReadyReplicas != 3 {
			return fmt.Errorf("%v, %v", ss.Status, err)
		}
		return nil
	})
}

// complaint is a warning or error in a log, up to its first value.
var complaint = regexp.MustCompile(`(?:WARN|ERROR) .*?(?: [\w./]+=|$)`)

// skew is what our programs log about the release of the API server.
const skew = "API server of another release"

// logs checks that our programs name an older API server once, and that nothing is said again and again.
func (s *server) logs(t *testing.T, older bool) {
	t.Helper()
	for _, child := range []string{"agent", "scheduler", "lifecycle"} {
		text, err := os.ReadFile(s.LogFile(child))
		check(t, err)
		if named := strings.Count(string(text), skew); (named == 1) != older || named > 1 {
			t.Errorf("%s: %d lines about the release of the API server; it is older: %v", child, named, older)
		}
		seen := map[string]int{}
		for line := range strings.Lines(string(text)) {
			if m := complaint.FindString(strings.TrimSpace(line)); m != "" {
				t.Logf("%s: %.300s", child, line)
				seen[m]++
			}
		}
		for m, count := range seen {
			if count > 3 {
				t.Errorf("%s: %d lines of %s", child, count, m)
			}
		}
	}
}
