//go:build e2e

package scheduler

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/plimsoll-dev/plimsoll/deploy"
	"github.com/plimsoll-dev/plimsoll/test/e2e/rig"
)

// asked is a cluster with broken pods, and a reader who may do only what deploy/rbac-explain.yaml allows.
type asked struct {
	*rig.Cluster
	ns     string
	reader string // the reader's kubeconfig
}

// explained is what a test reads of an answer.
type explained struct {
	Verdict *struct {
		Changes []remedy `json:"changes"`
	} `json:"verdict"`
}

type remedy struct {
	Of      string `json:"of"`
	Node    string `json:"node"`
	Text    string `json:"text"`
	Changes []struct {
		Kind  string `json:"kind"`
		Name  string `json:"name"`
		Value string `json:"value"`
		Taint string `json:"taint"`
		To    string `json:"to"`
	} `json:"changes"`
}

// TestExplain breaks pods, asks why they wait, does what the answer says, and waits until the scheduler places each of
// them on the node that was named. The one who asks has only the role in deploy/.
func TestExplain(t *testing.T) {
	a := &asked{Cluster: rig.New(t, "why", rig.Options{NoNode: true, UpFlags: []string{"--no-lifecycle"}})}
	a.ns = a.Namespace(t)
	a.allow(t)
	nodes := a.API.CoreV1().Nodes()
	for _, pool := range []string{"taint", "cordon", "label", "room", "request", "apart", "gate", "free"} {
		makeNode(t, nodes, pool, "4", map[string]string{corev1.LabelHostname: pool, "pool": pool})
	}
	a.patchNode(t, "taint", `{"spec":{"taints":[{"key":"team","value":"blue","effect":"NoSchedule"}]}}`)
	a.patchNode(t, "cordon", `{"spec":{"unschedulable":true}}`)
	a.make(t, "other", "1", "apart", func(p *corev1.Pod) { p.Labels = map[string]string{"app": "other"} })
	a.placed(t, "other", "apart")

	a.troubles(t)
	a.make(t, "taint", "1", "taint", nil)
	a.make(t, "cordon", "1", "cordon", nil)
	a.make(t, "label", "1", "label", func(p *corev1.Pod) { p.Spec.NodeSelector["disk"] = "ssd" })
	a.make(t, "room", "5", "room", nil)
	a.make(t, "request", "4500m", "request", nil)
	a.make(t, "apart", "1", "apart", func(p *corev1.Pod) {
		p.Spec.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{
			RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{{
				LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "other"}},
				TopologyKey:   corev1.LabelHostname,
			}},
		}}
	})
	a.make(t, "gate", "1", "gate", func(p *corev1.Pod) {
		p.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "example.com/quota"}}
	})

	all := a.ask(t, "pending")
	for _, want := range []string{"7 pods wait; 8 nodes.", a.ns + "/taint",
		"remove the taint team=blue:NoSchedule from node taint",
		"uncordon node cordon", "label node label with disk=ssd", "request cpu 4 instead of 4500m",
		"have cpu 5 allocatable on node room instead of 4",
		"drop the required pod anti-affinity within kubernetes.io/hostname",
		"remove the scheduling gate example.com/quota"} {
		if !strings.Contains(all, want) {
			t.Errorf("%q is not in\n%s", want, all)
		}
	}
	if strings.Contains(all, "Not seen") {
		t.Errorf("with the role in deploy/ something is not seen:\n%s", all)
	}
	for pod, side := range map[string]string{"taint": "node", "cordon": "node", "label": "node", "room": "node",
		"request": "pod", "apart": "pod", "gate": "pod"} {
		r := a.remedyOf(t, pod, side)
		a.apply(t, pod, r)
		a.placed(t, pod, r.Node)
	}
	if all := a.ask(t, "pending"); !strings.HasPrefix(all, "0 pods wait; 8 nodes.") {
		t.Errorf("after all changes:\n%s", all)
	}
	if text := a.ask(t, "node", "taint"); !strings.Contains(text,
		"cpu        4          0            4               1             3") {
		t.Errorf("what the node carries:\n%s", text)
	}
	a.withoutRights(t)
}

// allow makes a reader with the role in deploy/.
func (a *asked) allow(t *testing.T) {
	t.Helper()
	apply := a.KubectlCommand(t.Context(), "apply", "-f", "-")
	apply.Stdin = strings.NewReader(deploy.Explain)
	if out, err := apply.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	accounts := a.API.CoreV1().ServiceAccounts(a.ns)
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "reader"}}
	if _, err := accounts.Create(t.Context(), account, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	token, err := accounts.CreateToken(t.Context(), "reader", &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	binding := &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "reader"},
		RoleRef:    rbacv1.RoleRef{Kind: "ClusterRole", Name: "plimsoll:explain"},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: a.ns, Name: "reader"}},
	}
	if _, err := a.API.RbacV1().ClusterRoleBindings().Create(t.Context(), binding, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	config, err := clientcmd.LoadFromFile(a.Kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	for name := range config.AuthInfos {
		config.AuthInfos[name] = &clientcmdapi.AuthInfo{Token: token.Status.Token}
	}
	a.reader = filepath.Join(t.TempDir(), "reader.kubeconfig")
	if err := clientcmd.WriteToFile(*config, a.reader); err != nil {
		t.Fatal(err)
	}
}

// ask runs `plimsoll explain` as the reader.
func (a *asked) ask(t *testing.T, args ...string) string {
	t.Helper()
	out, err := a.Plimsoll("explain", append(args, "--kubeconfig", a.reader)...)
	if err != nil {
		t.Fatalf("explain %v: %v\n%s", args, err, out)
	}
	return out
}

func (a *asked) patchNode(t *testing.T, name, patch string, subresources ...string) {
	t.Helper()
	if _, err := a.API.CoreV1().Nodes().Patch(t.Context(), name, types.MergePatchType, []byte(patch),
		metav1.PatchOptions{},
		subresources...); err != nil {
		t.Fatal(err)
	}
}

// make creates a pod for the nodes of one pool.
func (a *asked) make(t *testing.T, name, cpu, pool string, change func(*corev1.Pod)) {
	t.Helper()
	pod := onlyCPU(name, cpu)
	pod.Spec.NodeSelector = map[string]string{"pool": pool}
	if change != nil {
		change(pod)
	}
	if _, err := a.API.CoreV1().Pods(a.ns).Create(t.Context(), pod, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// placed waits until a pod is on a node.
func (a *asked) placed(t *testing.T, name, node string) {
	t.Helper()
	rig.Eventually(t, placedTimeout, name+" is placed on "+node, func(ctx context.Context) error {
		pod, err := a.API.CoreV1().Pods(a.ns).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if pod.Spec.NodeName != node {
			return fmt.Errorf("it is on %q: %v", pod.Spec.NodeName, pod.Status.Conditions)
		}
		return nil
	})
}

// remedyOf asks why a pod waits, and returns what one side can change.
func (a *asked) remedyOf(t *testing.T, pod, side string) remedy {
	t.Helper()
	var answer explained
	text := a.ask(t, "pod", a.ns+"/"+pod, "-o", "json")
	if err := json.Unmarshal([]byte(text), &answer); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	if answer.Verdict == nil {
		t.Fatalf("%s: no verdict: %s", pod, text)
	}
	for _, r := range answer.Verdict.Changes {
		if r.Of == side {
			return r
		}
	}
	t.Fatalf("%s: no change of a %s: %s", pod, side, text)
	return remedy{}
}

// apply makes the changes of a remedy.
func (a *asked) apply(t *testing.T, name string, r remedy) {
	t.Helper()
	if len(r.Changes) != 1 {
		t.Fatalf("%s: want one change: %+v", name, r)
	}
	switch c := r.Changes[0]; c.Kind {
	case "RemoveTaint":
		a.patchNode(t, r.Node, `{"spec":{"taints":null}}`)
	case "Uncordon":
		a.patchNode(t, r.Node, `{"spec":{"unschedulable":null}}`)
	case "SetLabel":
		a.patchNode(t, r.Node, fmt.Sprintf(`{"metadata":{"labels":{%q:%q}}}`, c.Name, c.Value))
	case "GrowNode":
		a.patchNode(t, r.Node, fmt.Sprintf(`{"status":{"allocatable":{%q:%q}}}`, c.Name, c.To), "status")
	case "LowerRequest":
		a.again(t, name, func(p *corev1.Pod) {
			p.Spec.Containers[0].Resources.Requests[corev1.ResourceName(c.Name)] = resource.MustParse(c.To)
		})
	case "DropAntiAffinity":
		a.again(t, name, func(p *corev1.Pod) { p.Spec.Affinity = nil })
	case "RemoveGate":
		patch := []byte(`{"spec":{"schedulingGates":null}}`)
		if _, err := a.API.CoreV1().Pods(a.ns).Patch(t.Context(), name, types.MergePatchType, patch,
			metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
	default:
		t.Fatalf("%s: unexpected change %+v", name, c)
	}
}

// again deletes a pod and creates it with a change.
func (a *asked) again(t *testing.T, name string, change func(*corev1.Pod)) {
	t.Helper()
	pods := a.API.CoreV1().Pods(a.ns)
	was, err := pods.Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if err := pods.Delete(t.Context(), name, metav1.DeleteOptions{GracePeriodSeconds: new(int64)}); err != nil {
		t.Fatal(err)
	}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: was.Labels}, Spec: was.Spec}
	change(pod)
	if _, err := pods.Create(t.Context(), pod, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// withoutRights takes rights away from the reader. The answer names each; without the right to list nodes there is
// none.
func (a *asked) withoutRights(t *testing.T) {
	t.Helper()
	a.make(t, "waits", "9", "free", nil)
	roles := a.API.RbacV1().ClusterRoles()
	role, err := roles.Get(t.Context(), "plimsoll:explain", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	role.Rules = []rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: []string{"pods", "nodes"}, Verbs: []string{"get",
		"list"}}}
	if role, err = roles.Update(t.Context(), role, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	rig.Eventually(t, placedTimeout, "the answer says what it did not see", func(context.Context) error {
		text := a.ask(t, "pending")
		for _, want := range []string{"Not seen: poddisruptionbudgets.policy: ", "Not seen: namespaces: ",
			"0/8 nodes are available"} {
			if !strings.Contains(text, want) {
				return fmt.Errorf("%q is not in\n%s", want, text)
			}
		}
		return nil
	})
	role.Rules[0].Resources = []string{"pods"}
	if _, err := roles.Update(t.Context(), role, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	rig.Eventually(t, placedTimeout, "without nodes there is no answer", func(context.Context) error {
		out, err := a.Plimsoll("explain", "pending", "--kubeconfig", a.reader)
		if err == nil || !strings.Contains(err.Error()+out, "list nodes: ") ||
			!strings.Contains(err.Error()+out, "deploy/rbac-explain.yaml") {
			return errors.New(out)
		}
		return nil
	})
}
