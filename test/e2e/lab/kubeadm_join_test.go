//go:build e2e && lab

package lab

import (
	"context"
	"fmt"
	"strings"
	"testing"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/plimsoll-dev/plimsoll/internal/image"
)

// joins makes a second guest a node with kubeadm join: with a token it requests its first certificate, and its
// kubeconfig names the file. A pod runs there. After kubeadm upgrade node it has the cluster's changed configuration,
// and the pod goes on.
//
// The guests reach each other's API server by this machine's ports, and nothing else of each other. So nobody asks the
// second one's kubelet, and its pods find no Service.
func joins(t *testing.T, server kubeadmGuest, api kubernetes.Interface) kubeadmGuest {
	t.Helper()
	node := newKubeadmGuest(t, "joined", kubeadmOptions{Kubelet: ours})
	node.resolves(t, node.Host)
	words := strings.Fields(server.Run(t, "kubeadm", "token", "create", "--print-join-command"))
	node.kubeadm(t, words[1:]...)
	node.wantReady(t, api)
	node.wantBootstrapped(t, api)
	web := node.runs(t, api, "web-joined")
	node.wantProxy(t, api)
	node.wantNoRestart(t, "kubelet")

	const field = "maxPods"
	configs := api.CoreV1().ConfigMaps(metav1.NamespaceSystem)
	shared, err := configs.Get(t.Context(), "kubelet-config", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	shared.Data["kubelet"] += field + ": 77\n"
	if _, err := configs.Update(t.Context(), shared, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	node.kubeadm(t, "upgrade", "node")
	node.Run(t, "systemctl", "restart", "kubelet")
	eventually(t, podWithin, "the node has the changed configuration", func(ctx context.Context) error {
		n, err := api.CoreV1().Nodes().Get(ctx, node.Name, metav1.GetOptions{})
		if err == nil && n.Status.Allocatable.Pods().Value() != 77 {
			err = fmt.Errorf("%v pods", n.Status.Allocatable.Pods())
		}
		return err
	})
	node.wantReady(t, api)
	wantGoesOn(t, api, web)
	node.wantNoRestart(t, "kubelet")
	return node
}

// wantGoesOn waits until a pod is Ready, and checks that its container is the same as before.
func wantGoesOn(t *testing.T, api kubernetes.Interface, pod *corev1.Pod) {
	t.Helper()
	eventually(t, podWithin, pod.Name+" goes on", func(ctx context.Context) error {
		now, err := api.CoreV1().Pods(pod.Namespace).Get(ctx, pod.Name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		was, is := pod.Status.ContainerStatuses[0], now.Status.ContainerStatuses[0]
		if was.ContainerID != is.ContainerID || is.RestartCount != 0 {
			return fmt.Errorf("its container was %s, and is %s after %d restarts", was.ContainerID, is.ContainerID,
				is.RestartCount)
		}
		return podReady(now)
	})
}

// wantBootstrapped checks that the node got its certificate by a token.
func (g kubeadmGuest) wantBootstrapped(t *testing.T, api kubernetes.Interface) {
	t.Helper()
	requests, err := api.CertificatesV1().CertificateSigningRequests().List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	asked := 0
	for _, r := range requests.Items {
		if r.Spec.SignerName == certificatesv1.KubeAPIServerClientKubeletSignerName &&
			strings.HasPrefix(r.Spec.Username, "system:bootstrap:") && len(r.Status.Certificate) > 0 {
			asked++
		}
	}
	if asked != 1 {
		t.Errorf("%d certificates were issued to tokens, want 1: %+v", asked, requests.Items)
	}
	g.wantNamesPair(t)
	if left := g.Run(t, "sh", "-c", "ls /etc/kubernetes/bootstrap-kubelet.conf || true"); left != "" {
		t.Errorf("kubeadm has left %s", left)
	}
}

// runs creates a pod on the guest, and returns it when it is Ready. It is not evicted when the node is silent.
func (g kubeadmGuest) runs(t *testing.T, api kubernetes.Interface, name string, args ...string) *corev1.Pod {
	t.Helper()
	if args == nil {
		args = []string{"http", "--port", "8080"}
	}
	grace := int64(20)
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: metav1.NamespaceDefault},
		Spec: corev1.PodSpec{
			NodeName:                      g.Name,
			Tolerations:                   []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
			TerminationGracePeriodSeconds: &grace,
			Containers:                    []corev1.Container{{Name: "c", Image: image.Demo, Args: args}},
		},
	}
	pods := api.CoreV1().Pods(pod.Namespace)
	eventually(t, podWithin, "create "+name, func(ctx context.Context) error { // its account may not be there yet
		_, err := pods.Create(ctx, pod, metav1.CreateOptions{})
		return err
	})
	var now *corev1.Pod
	eventually(t, systemWithin, name+" is Ready", func(ctx context.Context) (err error) {
		if now, err = pods.Get(ctx, name, metav1.GetOptions{}); err != nil {
			return err
		}
		return podReady(now)
	})
	return now
}

// wantProxy waits until kube-proxy is Ready on the guest.
func (g kubeadmGuest) wantProxy(t *testing.T, api kubernetes.Interface) {
	t.Helper()
	eventually(t, systemWithin, "kube-proxy is Ready on "+g.Name, func(ctx context.Context) error {
		pods, err := api.CoreV1().Pods(metav1.NamespaceSystem).List(ctx, metav1.ListOptions{
			LabelSelector: "k8s-app=kube-proxy", FieldSelector: "spec.nodeName=" + g.Name,
		})
		if err != nil {
			return err
		}
		if len(pods.Items) != 1 {
			return fmt.Errorf("%d pods", len(pods.Items))
		}
		return podReady(&pods.Items[0])
	})
}
