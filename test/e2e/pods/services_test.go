//go:build e2e

package pods

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/plimsoll-dev/plimsoll/test/e2e/rig"
)

// TestServices: a Service's address leads to its ready pods: from pods, from hostNetwork pods and from the machine, and
// from a pod to itself. When its pods are replaced, the address leads to the new ones.
func TestServices(t *testing.T) {
	b := at(t)
	for _, name := range []string{"one", "two"} {
		b.serves(name)
	}
	service := b.service("web", corev1.ServiceTypeNodePort, 80)
	node := b.ready("one").Status.HostIP
	b.ready("two")
	url := "http://" + service.Spec.ClusterIP + "/"
	atNode := fmt.Sprintf("http://%s:%d/", node, service.Spec.Ports[0].NodePort)
	b.answers(url, "one up", "two up")
	b.answers(atNode, "one up", "two up")
	if text, err := os.ReadFile("/proc/sys/net/bridge/bridge-nf-call-iptables"); err == nil &&
		strings.TrimSpace(string(text)) == "1" {
		b.until("one", "two sees its address", soon, func(p *corev1.Pod) error {
			said := b.in("one", "get", url)
			if !strings.HasPrefix(said, "two up") {
				return fmt.Errorf("%q answers", said)
			}
			if !strings.Contains(said, "you are "+p.Status.PodIP+":") {
				t.Errorf("pod one has %s, and was told %q", p.Status.PodIP, said)
			}
			return nil
		})
	}
	hosted := lasting(workload("c", "sleep", "infinity"))
	hosted.HostNetwork = true
	b.create("hosted", hosted)
	b.ready("hosted")
	// Of sixteen connections each may reach the pod itself; that none or all do is one in 30,000.
	for _, from := range []string{"one", "hosted"} {
		said := ""
		for range 16 {
			said += b.in(from, "get", url)
		}
		for _, want := range []string{"one up", "two up"} {
			if !strings.Contains(said, want) {
				t.Errorf("asked by pod %s: no answer of %q in %q", from, want, said)
			}
		}
	}
	b.delete("one", 0, soon)
	b.answers(url, "two up")
	b.serves("three")
	b.ready("three")
	b.answers(url, "two up", "three up")
}

// serves creates a pod behind the Service "web".
func (b bench) serves(name string) {
	web := workload("c", "http")
	web.ReadinessProbe = &corev1.Probe{PeriodSeconds: 1,
		ProbeHandler: corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: "/", Port: intstr.FromInt32(8080)}}}
	spec := lasting(web)
	spec.Hostname = name
	b.post(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"behind": "web"}}, Spec: spec})
}

func (b bench) service(name string, kind corev1.ServiceType, port int32) *corev1.Service {
	b.t.Helper()
	s, err := b.API.CoreV1().Services(b.ns).Create(b.t.Context(), &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.ServiceSpec{Type: kind, Selector: map[string]string{"behind": name},
			Ports: []corev1.ServicePort{{Port: port, TargetPort: intstr.FromInt32(8080)}}},
	}, metav1.CreateOptions{})
	if err != nil {
		b.t.Fatal(err)
	}
	return s
}

// answers requests a URL from this machine until all of the pods have answered, and no other pod has, among ten
// requests for each pod.
func (b bench) answers(url string, pods ...string) {
	b.t.Helper()
	// Each request has its own connection, since a connection stays with its pod.
	client := &http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	ask := func() (string, error) {
		answer, err := client.Get(url)
		if err != nil {
			return "", err
		}
		defer answer.Body.Close()
		text, err := io.ReadAll(answer.Body)
		return string(text), err
	}
	rig.Eventually(b.t, soon, url+" leads to "+strings.Join(pods, ", "), func(context.Context) error {
		said := map[string]bool{}
		for range 10 * len(pods) {
			text, err := ask()
			if err != nil {
				return err
			}
			for _, pod := range pods {
				if strings.HasPrefix(text, pod) {
					said[pod], text = true, ""
				}
			}
			if text != "" {
				return fmt.Errorf("%q answers", text)
			}
		}
		if len(said) < len(pods) {
			return errors.New("not all of them answer")
		}
		return nil
	})
}

// TestAPIServerFromPods: a pod reaches the API server as every client library does, by the Service's address in its
// environment and with its own token. It has only the rights of its service account. The same holds for a hostNetwork
// pod. The endpoint of the Service leads to the API server, too.
func TestAPIServerFromPods(t *testing.T) {
	b := at(t)
	if _, err := b.API.RbacV1().RoleBindings(b.ns).Create(t.Context(), &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "view"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "view"},
		Subjects:   []rbacv1.Subject{{Kind: "ServiceAccount", Name: "default", Namespace: b.ns}},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	const account = "/var/run/secrets/kubernetes.io/serviceaccount/"
	get := "get --ca-file " + account + "ca.crt --token-file " + account + "token https://"
	slices, err := b.API.DiscoveryV1().EndpointSlices("default").List(t.Context(),
		metav1.ListOptions{LabelSelector: "kubernetes.io/service-name=kubernetes"})
	if err != nil {
		t.Fatal(err)
	}
	if len(slices.Items) != 1 || len(slices.Items[0].Endpoints) != 1 || len(slices.Items[0].Ports) != 1 {
		t.Fatalf("the Service kubernetes has the endpoints %+v", slices.Items)
	}
	endpoint := fmt.Sprintf("%s:%d", slices.Items[0].Endpoints[0].Addresses[0], *slices.Items[0].Ports[0].Port)
	pods := "/api/v1/namespaces/" + b.ns + "/pods"
	for name, hosted := range map[string]bool{"pod": false, "hosted": true} {
		spec := brief(workload("c", "run", get+"$(KUBERNETES_SERVICE_HOST):$(KUBERNETES_SERVICE_PORT)"+pods, get+endpoint+
			pods))
		spec.HostNetwork = hosted
		b.create(name, spec)
	}
	b.create("curious", brief(workload("c", "run",
		get+"$(KUBERNETES_SERVICE_HOST)/api/v1/namespaces/kube-system/secrets")))
	for _, name := range []string{"pod", "hosted"} {
		b.ended(name, corev1.PodSucceeded)
		if said := b.logs(name, "c"); strings.Count(said, `"kind":"PodList"`) != 2 {
			t.Errorf("pod %s was answered %q", name, said)
		}
	}
	b.ended("curious", corev1.PodFailed)
	if said := b.logs("curious", "c"); !strings.Contains(said, "403 Forbidden") {
		t.Errorf("the curious pod was answered %q", said)
	}
}

// TestKubeProxyComesBack: a killed kube-proxy is started again, and applies what changed meanwhile.
func TestKubeProxyComesBack(t *testing.T) {
	b := at(t)
	b.serves("one")
	service := b.service("web", corev1.ServiceTypeClusterIP, 80)
	b.ready("one")
	url := "http://" + service.Spec.ClusterIP + "/"
	b.answers(url, "one up")
	if err := syscall.Kill(b.PID(t, "kube-proxy"), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	b.serves("two")
	b.ready("two")
	b.answers(url, "one up", "two up")
}

// TestDNS: names lead to Services as Kubernetes' DNS specification says, from any pod with the ordinary DNS policy, and
// to pods of a headless Service.
func TestDNS(t *testing.T) {
	b := at(t)
	rig.Eventually(t, soon, "CoreDNS is ready", func(ctx context.Context) error {
		d, err := b.API.AppsV1().Deployments("kube-system").Get(ctx, "coredns", metav1.GetOptions{})
		if err == nil && d.Status.AvailableReplicas == 0 {
			err = fmt.Errorf("no replica is available: %+v", d.Status)
		}
		return err
	})
	b.serves("one")
	b.service("web", corev1.ServiceTypeClusterIP, 80)
	if _, err := b.API.CoreV1().Services(b.ns).Create(t.Context(), &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "head"},
		Spec: corev1.ServiceSpec{ClusterIP: corev1.ClusterIPNone, Selector: map[string]string{"behind": "web"},
			Ports: []corev1.ServicePort{{Port: 8080}}},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	b.ready("one")
	// CoreDNS learns of Services and pods a moment later, and caches for 30 seconds that a name does not exist.
	names := []string{"http://web/", "http://web." + b.ns + "/", "http://web." + b.ns + ".svc.cluster.local./",
		"http://head:8080/"}
	for i, url := range names {
		name := fmt.Sprint("asks", i)
		b.create(name, lasting(workload("c", "get", "--every", "1s", url)))
		b.until(name, url+" leads to the pod", soon, func(*corev1.Pod) error {
			said, err := b.tryLogs(name, "c")
			if err == nil && !strings.Contains(said, "one up") {
				err = fmt.Errorf("it says %q", said)
			}
			return err
		})
	}
	b.create("nobody", brief(workload("c", "get", "http://nobody."+b.ns+".svc.cluster.local./")))
	b.ended("nobody", corev1.PodFailed)
	if said := b.logs("nobody", "c"); !strings.Contains(said, "no such host") {
		t.Errorf("a name of no Service: %q", said)
	}
}

// TestMetricsAPI: `kubectl top` shows what nodes and pods use, and a horizontal autoscaler adds pods by it.
func TestMetricsAPI(t *testing.T) {
	b := at(t)
	one := int32(1)
	target := int32(50)
	labels := map[string]string{"app": "busy"}
	busy := workload("c", "cpu", "--milli", "100")
	busy.Resources.Requests = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("50m")}
	spec := lasting(busy)
	if _, err := b.API.AppsV1().Deployments(b.ns).Create(t.Context(), &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: "busy"},
		Spec: appsv1.DeploymentSpec{Replicas: &one, Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: spec}},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := b.API.AutoscalingV2().HorizontalPodAutoscalers(b.ns).Create(t.Context(),
		&autoscalingv2.HorizontalPodAutoscaler{
			ObjectMeta: metav1.ObjectMeta{Name: "busy"},
			Spec: autoscalingv2.HorizontalPodAutoscalerSpec{
				ScaleTargetRef: autoscalingv2.CrossVersionObjectReference{APIVersion: "apps/v1", Kind: "Deployment", Name: "busy"},
				MaxReplicas:    2,
				Metrics: []autoscalingv2.MetricSpec{{Type: autoscalingv2.ResourceMetricSourceType,
					Resource: &autoscalingv2.ResourceMetricSource{
						Name: corev1.ResourceCPU, Target: autoscalingv2.MetricTarget{Type: autoscalingv2.UtilizationMetricType,
							AverageUtilization: &target},
					}}},
			},
		}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	rig.Eventually(t, soon, "kubectl top", func(context.Context) error {
		node, err := b.TryKubectl(t, "top", "node", b.NodeName, "--no-headers")
		if err != nil || len(strings.Fields(node)) != 5 || strings.Contains(node, "<unknown>") {
			return fmt.Errorf("top node says %q, %v", node, err)
		}
		pods, err := b.TryKubectl(t, "top", "pod", "--namespace", b.ns, "--no-headers")
		if err != nil || !strings.HasPrefix(pods, "busy-") || strings.Contains(pods, " 0m ") {
			return fmt.Errorf("top pod says %q, %v", pods, err)
		}
		return nil
	})
	rig.Eventually(t, 2*soon, "the autoscaler adds a pod", func(ctx context.Context) error {
		d, err := b.API.AppsV1().Deployments(b.ns).Get(ctx, "busy", metav1.GetOptions{})
		if err != nil {
			return err
		}
		if d.Status.AvailableReplicas != 2 {
			return fmt.Errorf("%d pods are available", d.Status.AvailableReplicas)
		}
		return nil
	})
}
