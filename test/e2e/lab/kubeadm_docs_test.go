//go:build e2e && lab

package lab

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/plimsoll-dev/plimsoll/test/e2e/rig"
)

// The pages whose commands are run on kubeadm's guests as they are written.
const (
	replaceKubelet = "replace-the-kubelet.md"
	packagesPage   = "packages.md"
)

// asAdmin makes kubectl act as the cluster's administrator on a server.
const asAdmin = "export KUBECONFIG=/etc/kubernetes/admin.conf\n"

// docBlock returns the commands of a page of docs/ that contain a text.
func docBlock(t *testing.T, page, contains string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("../../../docs", page))
	if err != nil {
		t.Fatal(err)
	}
	for _, block := range strings.Split(string(text), "\n```bash\n")[1:] {
		if commands, _, _ := strings.Cut(block, "\n```"); strings.Contains(commands, contains) {
			return commands
		}
	}
	t.Fatalf("%s has no commands with %q", page, contains)
	return ""
}

// follows runs commands of a page of docs/. The test ends if they fail or take too long.
func (g kubeadmGuest) follows(t *testing.T, commands string) {
	t.Helper()
	began := time.Now()
	ctx, cancel := context.WithTimeout(t.Context(), kubeadmWithin)
	defer cancel()
	out, err := g.Output(ctx, "sh", "-ec", commands)
	commands = strings.TrimPrefix(commands, asAdmin)
	if err != nil {
		t.Fatalf("%s: %v\n%s", commands, err, out)
	}
	t.Logf("%s\ntook %v on %s", commands, time.Since(began).Round(time.Second), g.Name)
}

// getsKubectl installs kubectl.
func (g kubeadmGuest) getsKubectl(t *testing.T) {
	t.Helper()
	const program = "/root/plimsoll-controlplane" // not in the cargo
	g.CopyIn(t, filepath.Join(filepath.Dir(rig.Binary(t)), filepath.Base(program)), program)
	g.Write(t, "/usr/bin/kubectl", "#!/bin/sh\nexec "+program+` kubectl "$@"`+"\n")
	g.Run(t, "chmod", "755", "/usr/bin/kubectl")
}

// getsPackage installs what matters of the Debian package: the program and the units. Guests have no dpkg; TestRelease
// installs the package.
func (g kubeadmGuest) getsPackage(t *testing.T) {
	t.Helper()
	g.Run(t, "ln", "-s", ours, "/usr/bin/plimsoll")
	g.Run(t, "mkdir", "-m", "700", "/etc/plimsoll")
	for _, part := range []string{"agent", "scheduler"} {
		unit := "plimsoll-" + part + ".service"
		g.CopyIn(t, filepath.Join("../../../release/units", unit), "/etc/systemd/system/"+unit)
	}
	g.Run(t, "systemctl", "daemon-reload")
}

// rolls gives the node to upstream's kubelet, and then back to our agent by the commands for a whole cluster: it is
// drained, gets the package's unit, and is uncordoned. What ran there runs on the server meanwhile. The result is a pod
// on the node.
func rolls(t *testing.T, server kubeadmGuest, node *kubeadmGuest, api kubernetes.Interface) *corev1.Pod {
	t.Helper()
	node.CopyIn(t, filepath.Join(filepath.Dir(rig.Binary(t)), "upstream-kubelet"), upstream)
	node.Run(t, "sh", "-ec", "ln -sfn "+upstream+" /usr/bin/kubelet && systemctl restart kubelet")
	node.wantKubelet(t, api, false)
	pods := api.CoreV1().Pods(metav1.NamespaceDefault)
	if err := pods.Delete(t.Context(), "web-joined", metav1.DeleteOptions{}); err != nil { // no drain moves it
		t.Fatal(err)
	}
	movable(t, api, node.Name)

	on := asAdmin + "NODE=" + node.Name + "\n"
	server.follows(t, on+docBlock(t, replaceKubelet, "kubectl drain"))
	runsOn(t, api, server.Name)
	node.getsPackage(t)
	node.follows(t, docBlock(t, packagesPage, "systemctl enable --now "+unitOurs))
	node.unit = unitOurs
	server.follows(t, on+docBlock(t, replaceKubelet, "kubectl uncordon"))
	node.wantKubelet(t, api, true)
	node.wantProxy(t, api)
	return node.runs(t, api, "web-rolled")
}

// movable makes a deployment of a pod that prefers a node, and waits until it is there.
func movable(t *testing.T, api kubernetes.Interface, prefers string) {
	t.Helper()
	deploys(t, api, "movable", func(pod *corev1.PodSpec) {
		pod.Containers[0].Args = []string{"http", "--port", "8080"}
		pod.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
			PreferredDuringSchedulingIgnoredDuringExecution: []corev1.PreferredSchedulingTerm{{
				Weight: 100,
				Preference: corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{{
					Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpIn, Values: []string{prefers},
				}}},
			}},
		}}
	})
	runsOn(t, api, prefers)
}

// runsOn waits until the movable pod is Ready on a node.
func runsOn(t *testing.T, api kubernetes.Interface, node string) {
	t.Helper()
	eventually(t, systemWithin, "the movable pod is Ready on "+node, func(ctx context.Context) error {
		pods, err := api.CoreV1().Pods(metav1.NamespaceDefault).List(ctx, metav1.ListOptions{LabelSelector: "app=movable"})
		if err != nil {
			return err
		}
		err = errors.New("there is none")
		for _, pod := range pods.Items {
			if pod.Spec.NodeName == node {
				return podReady(&pod)
			}
			err = fmt.Errorf("%s is on %q", pod.Name, pod.Spec.NodeName)
		}
		return err
	})
}

// wantKubelet waits until the node's kubelet is ours, or is not.
func (g kubeadmGuest) wantKubelet(t *testing.T, api kubernetes.Interface, isOurs bool) {
	t.Helper()
	eventually(t, podWithin, fmt.Sprintf("%s has our agent: %v", g.Name, isOurs), func(ctx context.Context) error {
		node, err := api.CoreV1().Nodes().Get(ctx, g.Name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if v := node.Status.NodeInfo.KubeletVersion; strings.Contains(v, "+plimsoll") != isOurs {
			return fmt.Errorf("its kubelet is %s", v)
		}
		return nil
	})
}

// schedulesAsService has the package's scheduler take the place of kube-scheduler's static pod: it places a pod.
func (g kubeadmGuest) schedulesAsService(t *testing.T, api kubernetes.Interface) {
	t.Helper()
	g.getsPackage(t)
	g.follows(t, docBlock(t, packagesPage, "systemctl enable --now plimsoll-scheduler"))
	eventually(t, podWithin, "the static pod is gone", func(ctx context.Context) error {
		pods, err := api.CoreV1().Pods(metav1.NamespaceSystem).List(ctx, metav1.ListOptions{
			LabelSelector: "component=kube-scheduler",
		})
		if err == nil && len(pods.Items) > 0 {
			err = fmt.Errorf("there is %s", pods.Items[0].Name)
		}
		return err
	})
	findsService(t, api, "by-service")
	g.wantNoRestart(t, "plimsoll-scheduler")
}
