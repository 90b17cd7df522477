//go:build e2e

package scheduler

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/yaml"

	"github.com/plimsoll-dev/plimsoll/internal/image"
	"github.com/plimsoll-dev/plimsoll/test/e2e/rig"
)

// kubeadmLine is the command of kubeadm 1.36's static pod; k3sLine is what k3s starts its scheduler with. rig.Keep
// passes the kubeconfig to both once more. How long k3s waits before it acts is upstream's default.
func kubeadmLine(kubeconfig, address string) []string {
	return []string{"scheduler", "--authentication-kubeconfig=" + kubeconfig, "--authorization-kubeconfig=" + kubeconfig,
		"--bind-address=" + address, "--kubeconfig=" + kubeconfig, "--leader-elect=true"}
}

func k3sLine(kubeconfig string) []string {
	return []string{"scheduler", "--authentication-kubeconfig=" + kubeconfig, "--authorization-kubeconfig=" + kubeconfig,
		"--bind-address=127.0.0.1", "--kubeconfig=" + kubeconfig, "--leader-elect=false", "--profiling=false",
		"--secure-port=10259", "--tls-cert-file=", "--tls-private-key-file=", "--v=0", "--vmodule="}
}

// dropIn is an instance that runs our scheduler with kube-scheduler's user, roles and command line.
type dropIn struct {
	*rig.Cluster
	conf     string // the kubeconfig of system:kube-scheduler, whole in one file
	watcher  string // tokens of ServiceAccounts: one that may read /metrics and the like,
	stranger string // and one that may not
	ns       string
	asAdmin  *http.Client // with the admin's client certificate
}

// TestDropIn starts our scheduler as kubeadm and k3s start kube-scheduler, on a real API server that allows it only
// what the bootstrap roles of system:kube-scheduler allow.
func TestDropIn(t *testing.T) {
	d := &dropIn{Cluster: rig.New(t, "drop", rig.Options{UpFlags: []string{"--no-scheduler", "--no-lifecycle"}})}
	// Our role, in addition to upstream's: it allows reading reports of NUMA nodes.
	reader := "plimsoll:topology-reader"
	if err := d.API.RbacV1().ClusterRoleBindings().Delete(t.Context(), reader, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	d.ns = d.Namespace(t)
	d.identify(t)
	for i := range 6 {
		d.node(t, fmt.Sprint("n", i))
	}
	d.allRun(t, "kubeadm's manifest", d.testManifest)
	d.allRun(t, "kubeadm's command line twice", d.testTwo)
	d.allRun(t, "k3s's command line", d.testK3s)
}

// allRun runs the parts, and stops after the first that fails, because the next would find its port in use.
func (d *dropIn) allRun(t *testing.T, name string, do func(*testing.T)) {
	t.Helper()
	if !t.Run(name, do) {
		t.FailNow()
	}
}

// identify writes the scheduler's kubeconfig with its certificates in one file, and makes credentials for the clients
// of its port.
func (d *dropIn) identify(t *testing.T) {
	t.Helper()
	config, err := clientcmd.LoadFromFile(filepath.Join(d.StateDir, "pki", "scheduler.kubeconfig"))
	if err != nil {
		t.Fatal(err)
	}
	if err := clientcmdapi.FlattenConfig(config); err != nil {
		t.Fatal(err)
	}
	d.conf = filepath.Join(t.TempDir(), "scheduler.conf")
	if err := clientcmd.WriteToFile(*config, d.conf); err != nil {
		t.Fatal(err)
	}
	ctx := t.Context()
	role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "reads-metrics"}, Rules: []rbacv1.PolicyRule{{
		Verbs:           []string{"get"},
		NonResourceURLs: []string{"/metrics", "/metrics/resources", "/configz", "/debug/pprof/*"},
	}, {
		Verbs: []string{"get"}, APIGroups: []string{"plimsoll.dev"}, Resources: []string{"journals"},
		ResourceNames: []string{"scheduler"},
	}}}
	if _, err := d.API.RbacV1().ClusterRoles().Create(ctx, role, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	token := func(name string) string {
		accounts := d.API.CoreV1().ServiceAccounts(d.ns)
		account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: name}}
		if _, err := accounts.Create(ctx, account, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		answer, err := accounts.CreateToken(ctx, name, &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return answer.Status.Token
	}
	d.watcher, d.stranger = token("watcher"), token("stranger")
	binding := &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "reads-metrics"},
		RoleRef:    rbacv1.RoleRef{Kind: "ClusterRole", Name: "reads-metrics"},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: d.ns, Name: "watcher"}},
	}
	if _, err := d.API.RbacV1().ClusterRoleBindings().Create(ctx, binding, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	admin, err := rest.TLSConfigFor(d.Config)
	if err != nil {
		t.Fatal(err)
	}
	admin.InsecureSkipVerify = true // its certificate is self-signed, as kube-scheduler's is
	d.asAdmin = &http.Client{Transport: &http.Transport{TLSClientConfig: admin}, Timeout: time.Minute}
}

// node creates a Node without a machine. It has labels by which pods select it, which the instance's real node lacks.
func (d *dropIn) node(t *testing.T, name string) {
	t.Helper()
	makeNode(t, d.API.CoreV1().Nodes(), name, "4", map[string]string{corev1.LabelHostname: name, "of": "test"})
}

// pod creates a pod for the nodes without machines.
func (d *dropIn) pod(t *testing.T, name, cpu string, change func(*corev1.Pod)) {
	t.Helper()
	pod := onlyCPU(name, cpu)
	pod.Spec.NodeSelector = map[string]string{"of": "test"}
	if change != nil {
		change(pod)
	}
	if _, err := d.API.CoreV1().Pods(d.ns).Create(t.Context(), pod, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// bound waits until a pod has a node, and returns it.
func (d *dropIn) bound(t *testing.T, name string) (node string) {
	t.Helper()
	rig.Eventually(t, 2*time.Minute, name+" has a node", func(ctx context.Context) error {
		pod, err := d.API.CoreV1().Pods(d.ns).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if node = pod.Spec.NodeName; node == "" {
			return fmt.Errorf("%v", pod.Status.Conditions)
		}
		return nil
	})
	return node
}

// drop deletes pods with a grace period of 0, because no agent ends them.
func (d *dropIn) drop(t *testing.T, names ...string) {
	t.Helper()
	atOnce := metav1.DeleteOptions{GracePeriodSeconds: new(int64)}
	for _, name := range names {
		err := d.API.CoreV1().Pods(d.ns).Delete(t.Context(), name, atOnce)
		if err != nil && !apierrors.IsNotFound(err) {
			t.Error(err)
		}
	}
}

// ask sends a request to a scheduler's port, with or without a token.
func (d *dropIn) ask(ctx context.Context, address, path, token string) (status int, body string, err error) {
	anybody := &tls.Config{InsecureSkipVerify: true} // its certificate is self-signed
	client := &http.Client{
		Transport: &http.Transport{TLSClientConfig: anybody, DisableKeepAlives: true},
		Timeout:   time.Minute,
	}
	if token == "client certificate" {
		client = d.asAdmin
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+address+":10259"+path, nil)
	if err != nil {
		return 0, "", err
	}
	if client != d.asAdmin && token != "" {
		r.Header.Set("Authorization", "Bearer "+token)
	}
	answer, err := client.Do(r)
	if err != nil {
		return 0, "", err
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	return answer.StatusCode, string(text), err
}

// expect repeats a request until the answer is the wanted one: a new role takes effect a moment later.
func (d *dropIn) expect(t *testing.T, address, path, token string, want int, part string) {
	t.Helper()
	what := fmt.Sprintf("%s answers %d to %.12q, with %q", path, want, token, part)
	rig.Eventually(t, time.Minute, what, func(ctx context.Context) error {
		status, body, err := d.ask(ctx, address, path, token)
		if err != nil || status != want || !strings.Contains(body, part) {
			return fmt.Errorf("%d %.300s %w", status, body, err)
		}
		return nil
	})
}

// testManifest runs kubeadm's static pod with our agent: its probes must succeed.
func (d *dropIn) testManifest(t *testing.T) {
	manifest, err := os.ReadFile("testdata/kube-scheduler.yaml")
	if err != nil {
		t.Fatal(err)
	}
	program := t.TempDir()
	ours, err := os.ReadFile(rig.Binary(t))
	if err == nil {
		err = os.WriteFile(filepath.Join(program, "kube-scheduler"), ours, 0o755)
	}
	if err != nil {
		t.Fatal(err)
	}
	text := strings.NewReplacer(
		"IMAGE", image.Workload, "path: KUBECONFIG", "path: "+d.conf, "path: DIRECTORY", "path: "+program,
	).Replace(string(manifest))
	path := filepath.Join(d.StaticPods(), "kube-scheduler.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	name := "kube-scheduler-" + d.NodeName
	get := func(ctx context.Context) (*corev1.Pod, error) {
		return d.API.CoreV1().Pods(metav1.NamespaceSystem).Get(ctx, name, metav1.GetOptions{})
	}
	took := rig.Eventually(t, 3*time.Minute, "the static pod is ready", func(ctx context.Context) error {
		pod, err := get(ctx)
		if err != nil {
			return err
		}
		for _, c := range pod.Status.Conditions {
			if c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue {
				return nil
			}
		}
		return fmt.Errorf("%+v", pod.Status.ContainerStatuses)
	})
	t.Logf("ready after %v", took.Round(time.Second))
	d.pod(t, "by-manifest", "1", nil)
	d.bound(t, "by-manifest")
	leads := `leader_election_master_status{name="kube-scheduler"} 1`
	d.expect(t, "127.0.0.1", "/metrics", d.watcher, http.StatusOK, leads)
	d.nobodyForgotten(t, "127.0.0.1")
	if pod, err := get(t.Context()); err != nil || pod.Status.ContainerStatuses[0].RestartCount != 0 {
		t.Errorf("%+v, %v", pod.Status.ContainerStatuses, err)
	}
	d.drop(t, "by-manifest")
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	rig.Eventually(t, time.Minute, "the static pod is gone", func(ctx context.Context) error {
		if _, err := get(ctx); !apierrors.IsNotFound(err) {
			return fmt.Errorf("it is there: %w", err)
		}
		return nil
	})
}

// measured sums a metric over its labels.
func measured(text, name string) (sum float64, err error) {
	found := false
	for line := range strings.Lines(text) {
		if rest, is := strings.CutPrefix(line, name); is && (rest[0] == ' ' || rest[0] == '{') {
			n, err := strconv.ParseFloat(strings.TrimSpace(rest[strings.LastIndexByte(rest, ' ')+1:]), 64)
			if err != nil {
				return 0, err
			}
			sum, found = sum+n, true
		}
	}
	if !found {
		return 0, fmt.Errorf("no metric %s in %d bytes", name, len(text))
	}
	return sum, nil
}

// nobodyForgotten checks that the periodic check of long-waiting pods found none that was forgotten.
func (d *dropIn) nobodyForgotten(t *testing.T, address string) {
	t.Helper()
	_, body, err := d.ask(t.Context(), address, "/metrics", d.watcher)
	if err != nil {
		t.Fatal(err)
	}
	if n, err := measured(body, "scheduler_pod_scheduled_after_flush_total"); n != 0 || err != nil {
		t.Errorf("%v pods had been forgotten, %v", n, err)
	}
}

// testTwo starts two schedulers, as two machines of a control plane do, and kills one.
func (d *dropIn) testTwo(t *testing.T) {
	as := *d.Cluster
	as.Kubeconfig = d.conf
	addresses := map[string]string{"left": "127.0.0.1", "right": "127.0.0.2"}
	programs := map[string]*rig.Program{}
	for name, address := range addresses {
		programs[name] = as.Keep(t, name, kubeadmLine(d.conf, address)...)
	}
	for _, address := range addresses {
		d.expect(t, address, "/livez", "", http.StatusOK, "ok") // without credentials, as kubeadm's probes do
		d.expect(t, address, "/readyz", "", http.StatusOK, "ok")
		d.expect(t, address, "/healthz", "", http.StatusOK, "ok")
		for _, path := range []string{"/metrics", "/metrics/resources", "/configz", "/debug/pprof/cmdline", "/journal"} {
			d.expect(t, address, path, "", http.StatusUnauthorized, "")
			d.expect(t, address, path, "no token", http.StatusUnauthorized, "")
			d.expect(t, address, path, d.stranger, http.StatusForbidden, "system:serviceaccount:"+d.ns+":stranger")
			d.expect(t, address, path, d.watcher, http.StatusOK, "")
			d.expect(t, address, path, "client certificate", http.StatusOK, "")
		}
		d.expect(t, address, "/configz", d.watcher, http.StatusOK, `"kind":"KubeSchedulerConfiguration"`)
	}
	leader := d.leader(t, addresses, "")
	d.places(t, addresses[leader])
	d.expect(t, addresses[leader], "/metrics/resources", d.watcher, http.StatusOK, "kube_pod_resource_request{")
	d.expect(t, addresses[leader], "/journal", d.watcher, http.StatusOK, `"kind":"placement"`)

	programs[leader].Stop() // killed, so it does not release its Lease
	d.pod(t, "meanwhile", "1", nil)
	next := d.leader(t, addresses, leader)
	if node := d.bound(t, "meanwhile"); node == "" {
		t.Error("not placed")
	}
	d.drop(t, "meanwhile")
	d.expect(t, addresses[next], "/readyz?verbose", "", http.StatusOK, "[+]leaderElection ok")
	d.nobodyForgotten(t, addresses[next])
	d.says(t, programs[next])
}

// leader waits until exactly one of the running schedulers leads.
func (d *dropIn) leader(t *testing.T, addresses map[string]string, without string) (leader string) {
	t.Helper()
	rig.Eventually(t, time.Minute, "one leads", func(ctx context.Context) error {
		leader = ""
		for name, address := range addresses {
			if name == without {
				continue
			}
			_, body, err := d.ask(ctx, address, "/metrics", d.watcher)
			if err != nil {
				return err
			}
			leads, err := measured(body, "leader_election_master_status")
			if err != nil {
				return err
			}
			if leads == 1 && leader != "" {
				return fmt.Errorf("%s and %s lead", leader, name)
			}
			if leads == 1 {
				leader = name
			}
		}
		if leader == "" {
			return fmt.Errorf("none does")
		}
		return nil
	})
	return leader
}

// says checks what the log says about permissions: the one that only our own manifests grant is missing, and is logged
// once.
func (d *dropIn) says(t *testing.T, p *rig.Program) {
	t.Helper()
	text, err := os.ReadFile(p.LogFile())
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if strings.Contains(line, "forbidden") && !strings.Contains(line, "the API server serves no reports of NUMA nodes") {
			t.Errorf("it lacks a permission: %s", line)
		}
	}
	if n := strings.Count(string(text), "the API server serves no reports of NUMA nodes"); n != 1 {
		t.Errorf("that there are no reports of NUMA nodes is said %d times, want once", n)
	}
}

// places makes the scheduler do everything for which it needs a permission.
func (d *dropIn) places(t *testing.T, address string) {
	t.Helper()
	d.nominated(t)
	d.evicts(t)
	d.volume(t)
	// The Event's text is the condition's, and its reporter is the profile that placed the pod.
	d.event(t, "on-volume", "Scheduled", "default-scheduler")
	d.nobodyForgotten(t, address)
}

// patch changes a pod, or a part of it.
func (d *dropIn) patch(t *testing.T, name string, kind types.PatchType, patch string, part ...string) error {
	_, err := d.API.CoreV1().Pods(d.ns).Patch(t.Context(), name, kind, []byte(patch), metav1.PatchOptions{}, part...)
	return err
}

// nominated: the scheduler respects a nomination by another component.
func (d *dropIn) nominated(t *testing.T) {
	t.Helper()
	for i := range 4 {
		name := fmt.Sprint("nominated", i)
		d.pod(t, name, "100m", func(p *corev1.Pod) {
			p.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "example.com/wait"}}
		})
		err := d.patch(t, name, types.MergePatchType, `{"status":{"nominatedNodeName":"n4"}}`, "status")
		if err == nil {
			err = d.patch(t, name, types.JSONPatchType, `[{"op":"remove","path":"/spec/schedulingGates"}]`)
		}
		if err != nil {
			t.Fatal(err)
		}
		if node := d.bound(t, name); node != "n4" {
			t.Errorf("%s is on %s, and was nominated on n4", name, node)
		}
		d.drop(t, name)
	}
}

// evicts: a pod of high priority preempts another, which is marked, gets a condition with the reason, and is deleted.
func (d *dropIn) evicts(t *testing.T) {
	t.Helper()
	class := &schedulingv1.PriorityClass{ObjectMeta: metav1.ObjectMeta{Name: "important"}, Value: 1000}
	if _, err := d.API.SchedulingV1().PriorityClasses().Create(t.Context(), class, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	for i := range 6 {
		d.pod(t, fmt.Sprint("fills", i), "4", func(p *corev1.Pod) {
			p.Finalizers = []string{"example.com/see-it"} // so that the test can see it before it is gone
			p.Spec.NodeSelector = map[string]string{corev1.LabelHostname: fmt.Sprint("n", i)}
		})
		d.bound(t, fmt.Sprint("fills", i))
	}
	important := onlyCPU("important", "1")
	important.Spec.PriorityClassName = "important"
	important.Spec.NodeSelector = map[string]string{corev1.LabelHostname: "n2"}
	// The admission of the API server must know the priority class.
	rig.Eventually(t, time.Minute, "an important pod is taken", func(ctx context.Context) error {
		_, err := d.API.CoreV1().Pods(d.ns).Create(ctx, important, metav1.CreateOptions{})
		return err
	})
	rig.Eventually(t, time.Minute, "its victim is marked and going", func(ctx context.Context) error {
		victim, err := d.API.CoreV1().Pods(d.ns).Get(ctx, "fills2", metav1.GetOptions{})
		if err != nil {
			return err
		}
		for _, c := range victim.Status.Conditions {
			marked := c.Type == corev1.DisruptionTarget && c.Reason == corev1.PodReasonPreemptionByScheduler
			if marked && victim.DeletionTimestamp != nil {
				return nil
			}
		}
		return fmt.Errorf("%v", victim.Status.Conditions)
	})
	d.event(t, "fills2", "Preempted", "default-scheduler")
	d.event(t, "important", "FailedScheduling", "default-scheduler")
	d.drop(t, "fills0", "fills1", "fills2", "fills3", "fills4", "fills5")
	for i := range 6 {
		err := d.patch(t, fmt.Sprint("fills", i), types.MergePatchType, `{"metadata":{"finalizers":null}}`)
		if err != nil && !apierrors.IsNotFound(err) {
			t.Error(err)
		}
	}
	if node := d.bound(t, "important"); node != "n2" {
		t.Errorf("it is on %s", node)
	}
	d.drop(t, "important")
}

// event waits for an Event about a pod, from the given reporter.
func (d *dropIn) event(t *testing.T, pod, reason, from string) {
	t.Helper()
	rig.Eventually(t, time.Minute, fmt.Sprintf("%s hears %s from %s", pod, reason, from), func(ctx context.Context) error {
		about := metav1.ListOptions{FieldSelector: "involvedObject.name=" + pod + ",reason=" + reason}
		list, err := d.API.CoreV1().Events(d.ns).List(ctx, about)
		if err != nil {
			return err
		}
		for i := range list.Items {
			if e := &list.Items[i]; e.Source.Component == from && e.ReportingController == from {
				return nil
			}
		}
		return fmt.Errorf("%d Events: %+v", len(list.Items), list.Items)
	})
}

// volume: a claim with WaitForFirstConsumer gets the volume on the pod's node.
func (d *dropIn) volume(t *testing.T) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "volume.yaml")
	if err := os.WriteFile(file, []byte(strings.ReplaceAll(`
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: local}
provisioner: kubernetes.io/no-provisioner
volumeBindingMode: WaitForFirstConsumer
---
apiVersion: v1
kind: PersistentVolume
metadata: {name: on-n3}
spec:
  capacity: {storage: 1Gi}
  accessModes: [ReadWriteOnce]
  storageClassName: local
  local: {path: /nowhere}
  nodeAffinity:
    required:
      nodeSelectorTerms:
      - matchExpressions: [{key: kubernetes.io/hostname, operator: In, values: [n3]}]
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: claim, namespace: NS}
spec: {accessModes: [ReadWriteOnce], storageClassName: local, resources: {requests: {storage: 1Gi}}}
`, "NS", d.ns)), 0o600); err != nil {
		t.Fatal(err)
	}
	d.Kubectl(t, "apply", "-f", file)
	d.pod(t, "on-volume", "100m", func(p *corev1.Pod) {
		claim := &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "claim"}
		p.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: claim}}}
	})
	if node := d.bound(t, "on-volume"); node != "n3" {
		t.Errorf("it is on %s, its volume on n3", node)
	}
}

// testK3s starts the scheduler as k3s does, and once more with a configuration file of two profiles. The Events have
// the names of the profiles.
func (d *dropIn) testK3s(t *testing.T) {
	as := *d.Cluster
	as.Kubeconfig = d.conf
	program := as.Keep(t, "k3s", k3sLine(d.conf)...)
	d.pod(t, "by-k3s", "1", nil)
	d.bound(t, "by-k3s")
	d.expect(t, "127.0.0.1", "/debug/pprof/cmdline", d.watcher, http.StatusNotFound, "")
	_, body, err := d.ask(t.Context(), "127.0.0.1", "/configz", d.watcher)
	var shown map[string]map[string]any
	if err == nil {
		err = json.Unmarshal([]byte(body), &shown)
	}
	election, _ := shown["componentconfig"]["leaderElection"].(map[string]any)
	if err != nil || election["leaderElect"] != false {
		t.Errorf("configz: %v, %v", shown, err)
	}
	d.nobodyForgotten(t, "127.0.0.1")
	d.says(t, program)
	program.Stop()

	file := filepath.Join(t.TempDir(), "config.yaml")
	text, err := yaml.Marshal(map[string]any{
		"apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration",
		"profiles":       []map[string]any{{"schedulerName": "default-scheduler"}, {"schedulerName": "second"}},
		"leaderElection": map[string]any{"leaderElect": true, "resourceName": "second"},
	})
	if err == nil {
		err = os.WriteFile(file, text, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	as.Keep(t, "profiles", "scheduler", "--config", file, "--bind-address", "127.0.0.1")
	for i, profile := range []string{"default-scheduler", "second"} {
		small, big := "small"+strconv.Itoa(i), "big"+strconv.Itoa(i)
		d.pod(t, small, "100m", func(p *corev1.Pod) { p.Spec.SchedulerName = profile })
		d.pod(t, big, "100", func(p *corev1.Pod) { p.Spec.SchedulerName = profile })
		d.bound(t, small)
		d.event(t, small, "Scheduled", profile)
		d.event(t, big, "FailedScheduling", profile)
	}
	d.nobodyForgotten(t, "127.0.0.1")
}
