//go:build e2e

package scheduler

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/plimsoll-dev/plimsoll/deploy"
	"github.com/plimsoll-dev/plimsoll/test/e2e/rig"
)

// shadowed is a cluster that is watched by `plimsoll shadow`, with the role in deploy/.
type shadowed struct {
	*rig.Cluster
	ns     string
	reader string // kubeconfig of a user with that role

	mu    sync.Mutex
	lines []shadowLine
	text  bytes.Buffer // all lines
	watch *exec.Cmd
	ended chan error
}

// shadowLine is what a test reads of a line or of the summary.
type shadowLine struct {
	Kind, Pod, Node, What, Text string
	Finding                     bool

	Agree, Judged, Late int
	Counts              map[string]int
	PodLeads, NodeLeads struct{ Of int }
	Findings            []struct{ Text string }
	Unseen              []struct{ What, Error string }
	Notes               []string
}

// shadow starts to watch c.
func shadow(t *testing.T, c *rig.Cluster, flags ...string) *shadowed {
	t.Helper()
	s := &shadowed{Cluster: c, ns: c.Namespace(t), ended: make(chan error, 1)}
	s.allow(t)
	s.watch = exec.Command(rig.Binary(t), append([]string{"shadow", "--kubeconfig", s.reader, "-o", "json"}, flags...)...)
	out, err := s.watch.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	var failed bytes.Buffer
	s.watch.Stderr = &failed
	if err := s.watch.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		for d := json.NewDecoder(out); ; {
			var raw json.RawMessage
			if d.Decode(&raw) != nil {
				break
			}
			var l shadowLine
			err := json.Unmarshal(raw, &l)
			s.mu.Lock()
			if err != nil {
				l.Text = err.Error()
			}
			s.lines = append(s.lines, l)
			fmt.Fprintf(&s.text, "%s\n", raw)
			s.mu.Unlock()
		}
		s.ended <- s.watch.Wait()
	}()
	t.Cleanup(func() {
		_ = s.watch.Process.Kill()
		if t.Failed() {
			s.mu.Lock()
			defer s.mu.Unlock()
			t.Logf("---- shadow\n%s%s", s.text.String(), failed.String())
		}
	})
	s.awaits(t, "it watches", func(l *shadowLine) bool { return l.Kind == "Begin" })
	return s
}

// allow makes a user with the role in deploy/, and tries to write as that user.
func (s *shadowed) allow(t *testing.T) {
	t.Helper()
	apply := s.KubectlCommand(t.Context(), "apply", "-f", "-")
	apply.Stdin = strings.NewReader(deploy.Shadow)
	if out, err := apply.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	accounts := s.API.CoreV1().ServiceAccounts(s.ns)
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "shadow"}}
	if _, err := accounts.Create(t.Context(), account, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	token, err := accounts.CreateToken(t.Context(), "shadow", &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	binding := &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "shadow"},
		RoleRef:    rbacv1.RoleRef{Kind: "ClusterRole", Name: "plimsoll:shadow"},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: s.ns, Name: "shadow"}},
	}
	if _, err := s.API.RbacV1().ClusterRoleBindings().Create(t.Context(), binding, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	config, err := clientcmd.LoadFromFile(s.Kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	for name := range config.AuthInfos {
		config.AuthInfos[name] = &clientcmdapi.AuthInfo{Token: token.Status.Token}
	}
	s.reader = filepath.Join(t.TempDir(), "shadow.kubeconfig")
	if err := clientcmd.WriteToFile(*config, s.reader); err != nil {
		t.Fatal(err)
	}
	as, err := clientcmd.BuildConfigFromFlags("", s.reader)
	if err != nil {
		t.Fatal(err)
	}
	client, err := kubernetes.NewForConfig(as)
	if err != nil {
		t.Fatal(err)
	}
	rig.Eventually(t, placedTimeout, "the role allows to list nodes", func(ctx context.Context) error {
		_, err := client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
		return err
	})
	if _, err := client.CoreV1().Pods(s.ns).Create(t.Context(), onlyCPU("no", "1"), metav1.CreateOptions{}); err == nil ||
		!apierrors.IsForbidden(err) {
		t.Fatalf("with the role in deploy/ a pod is created: %v", err)
	}
}

// find returns the first line that is wanted.
func (s *shadowed) find(wanted func(*shadowLine) bool) (shadowLine, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range s.lines {
		if wanted(&s.lines[i]) {
			return s.lines[i], true
		}
	}
	return shadowLine{}, false
}

// awaits waits for a line.
func (s *shadowed) awaits(t *testing.T, what string, wanted func(*shadowLine) bool) (l shadowLine) {
	t.Helper()
	rig.Eventually(t, 2*time.Minute, "shadow: "+what, func(context.Context) error {
		var found bool
		if l, found = s.find(wanted); !found {
			return fmt.Errorf("there is no such line")
		}
		return nil
	})
	return l
}

// about waits for a line about a pod.
func (s *shadowed) about(t *testing.T, pod string) shadowLine {
	t.Helper()
	return s.awaits(t, "a line about "+pod, func(l *shadowLine) bool { return l.Pod == s.ns+"/"+pod && l.Node == "" })
}

// make creates a pod.
func (s *shadowed) make(t *testing.T, name, cpu string, change func(*corev1.Pod)) {
	t.Helper()
	pod := onlyCPU(name, cpu)
	pod.Labels = map[string]string{"app": "web"}
	if change != nil {
		change(pod)
	}
	if _, err := s.API.CoreV1().Pods(s.ns).Create(t.Context(), pod, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// summary interrupts it, and returns what it says at the end.
func (s *shadowed) summary(t *testing.T) shadowLine {
	t.Helper()
	if err := s.watch.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-s.ended:
		if err != nil {
			t.Fatalf("shadow: %v", err)
		}
	case <-time.After(time.Minute):
		t.Fatal("shadow does not end")
	}
	l, found := s.find(func(l *shadowLine) bool { return l.Kind == "Summary" })
	if !found {
		t.Fatal("there is no summary")
	}
	for _, u := range l.Unseen {
		t.Errorf("with the role in deploy/ %s is not seen: %s", u.What, u.Error)
	}
	t.Logf("%d of %d agree, late %d, counts %v, notes %q", l.Agree, l.Judged, l.Late, l.Counts, l.Notes)
	return l
}

// TestShadow watches our own scheduler and lifecycle controller: there is nothing that they decide otherwise.
func TestShadow(t *testing.T) {
	s := shadow(t, rig.New(t, "shade", rig.Options{NoNode: true, UpFlags: []string{"--hollow", "3"}}))
	for i := range 6 {
		name := fmt.Sprint("one-", i)
		s.make(t, name, fmt.Sprintf("%dm", 100*(i+1)), nil)
		s.about(t, name)
	}
	s.make(t, "huge", "9000", nil)
	if l := s.about(t, "huge"); l.Kind != "BothRefuse" {
		t.Errorf("huge: %+v", l)
	}
	for i := range 20 {
		s.make(t, fmt.Sprint("burst-", i), "50m", nil)
	}
	for i := range 20 {
		s.about(t, fmt.Sprint("burst-", i))
	}
	s.Kubectl(t, "cordon", "hollow-1")
	s.awaits(t, "both add the taint of a cordoned node", func(l *shadowLine) bool {
		return l.Kind == "BothDid" && l.Node == "hollow-1" && strings.Contains(l.What, "unschedulable:NoSchedule added")
	})
	l := s.summary(t)
	if l.Agree != l.Judged || l.Judged+l.Counts["Uncertain"] < 27 || len(l.Findings) > 0 || l.PodLeads.Of+l.Late < 26 {
		t.Errorf("%+v", l)
	}
	// Of a burst, some binds come in another order than the decisions. Those that come alone are certain.
	for i := range 6 {
		if l := s.about(t, fmt.Sprint("one-", i)); l.Kind != "SameNode" && l.Kind != "EqualNode" {
			t.Errorf("%+v", l)
		}
	}
}

// TestShadowUpstream watches upstream's kube-scheduler and node-lifecycle controller (make shadow).
func TestShadowUpstream(t *testing.T) {
	if os.Getenv("PLIMSOLL_E2E_LONG") == "" {
		t.Skip("takes two minutes, and needs bin/upstream-scheduler: make shadow")
	}
	c := rig.New(t, "shadeup", rig.Options{
		NoNode:  true,
		UpFlags: []string{"--no-scheduler", "--no-lifecycle", "--hollow", "12", "--hollow-zones", "3"},
	})
	bin := filepath.Dir(rig.Binary(t))
	other(t, "scheduler", filepath.Join(bin, "upstream-scheduler"), "--kubeconfig", c.Kubeconfig,
		"--leader-elect=false", "--secure-port=0")
	other(t, "controllers", filepath.Join(bin, "plimsoll-controlplane"), "kube-controller-manager", "--kubeconfig",
		c.Kubeconfig, "--leader-elect=false", "--secure-port=0",
		"--controllers=node-lifecycle-controller,taint-eviction-controller")
	s := shadow(t, c)
	s.upstreamPlaces(t)
	s.upstreamLoses(t)
	l := s.summary(t)
	for _, f := range l.Findings {
		t.Logf("finding: %s", f.Text)
	}
	if l.Judged < 200 || l.Counts["Rejected"]+l.Counts["Fits"]+l.Counts["LowerScore"] > 0 {
		t.Errorf("%d of %d agree: %v", l.Agree, l.Judged, l.Counts)
	}
	if l.NodeLeads.Of < 4 || l.Counts["OnlyTheirs"] > 0 {
		t.Errorf("about nodes: %d leads: %v", l.NodeLeads.Of, l.Counts)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if file := os.Getenv("PLIMSOLL_SHADOW_LINES"); file != "" {
		if err := os.WriteFile(file, s.text.Bytes(), 0o644); err != nil {
			t.Error(err)
		}
	}
}

// other runs one of upstream's programs until the test ends.
func other(t *testing.T, name, path string, args ...string) {
	t.Helper()
	log, err := os.Create(filepath.Join(t.TempDir(), name+".log"))
	if err != nil {
		t.Fatal(err)
	}
	command := exec.Command(path, args...)
	command.Stdout, command.Stderr = log, log
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = command.Process.Kill()
		_ = command.Wait()
		log.Close()
		if text, err := os.ReadFile(log.Name()); t.Failed() && err == nil {
			t.Logf("---- %s\n%s", name, text[max(0, len(text)-8192):])
		}
	})
}

// upstreamPlaces has kube-scheduler place pods of many kinds, alone and in bursts, and refuse some.
func (s *shadowed) upstreamPlaces(t *testing.T) {
	t.Helper()
	web := &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}
	kinds := []struct {
		name, cpu string
		change    func(*corev1.Pod)
	}{
		{"plain", "250m", nil},
		{"large", "1500m", nil},
		{"none", "0", nil},
		{"zone", "100m", func(p *corev1.Pod) {
			p.Spec.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{{MaxSkew: 1, LabelSelector: web,
				TopologyKey: corev1.LabelTopologyZone, WhenUnsatisfiable: corev1.DoNotSchedule}}
		}},
		{"host", "100m", func(p *corev1.Pod) {
			p.Spec.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{{MaxSkew: 2, LabelSelector: web,
				TopologyKey: corev1.LabelHostname, WhenUnsatisfiable: corev1.ScheduleAnyway}}
		}},
		{"apart", "100m", func(p *corev1.Pod) {
			p.Spec.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{
				PreferredDuringSchedulingIgnoredDuringExecution: []corev1.WeightedPodAffinityTerm{{Weight: 50,
					PodAffinityTerm: corev1.PodAffinityTerm{LabelSelector: web, TopologyKey: corev1.LabelHostname}}},
			}}
		}},
		{"near", "100m", func(p *corev1.Pod) {
			p.Spec.Affinity = &corev1.Affinity{PodAffinity: &corev1.PodAffinity{
				RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{
					{LabelSelector: web, TopologyKey: corev1.LabelTopologyZone}},
			}}
		}},
	}
	for round := range 12 {
		for _, k := range kinds {
			name := fmt.Sprint(k.name, "-", round)
			s.make(t, name, k.cpu, k.change)
			s.about(t, name)
		}
	}
	for i := range 120 {
		s.make(t, fmt.Sprint("burst-", i), "50m", nil)
	}
	for i := range 120 {
		s.about(t, fmt.Sprint("burst-", i))
	}
	for i := range 5 {
		name := fmt.Sprint("huge-", i)
		s.make(t, name, "9000", nil)
		if l := s.about(t, name); l.Kind != "BothRefuse" {
			t.Errorf("%s: %+v", name, l)
		}
	}
	s.make(t, "later", "100m", func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{"later": "yes"} })
	s.about(t, "later")
	s.Kubectl(t, "label", "node", "hollow-3", "later=yes")
	s.awaits(t, "later is placed", func(l *shadowLine) bool {
		return l.Pod == s.ns+"/later" && (l.Kind == "SameNode" || l.Kind == "EqualNode")
	})
}

// upstreamLoses silences a node until upstream has evicted a pod from it, and lets it return.
func (s *shadowed) upstreamLoses(t *testing.T) {
	t.Helper()
	s.make(t, "victim", "10m", func(p *corev1.Pod) {
		p.Spec.NodeSelector = map[string]string{corev1.LabelHostname: "hollow-5"}
		p.Spec.Tolerations = []corev1.Toleration{{Key: "node.kubernetes.io/unreachable", Effect: corev1.TaintEffectNoExecute,
			Operator: corev1.TolerationOpExists, TolerationSeconds: new(int64)}}
	})
	s.about(t, "victim")
	fault := func(args ...string) {
		t.Helper()
		command := exec.Command(rig.Binary(t), append([]string{"fleet", "fault"}, args...)...)
		if out, err := command.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
	}
	fault("silence", "nodes=hollow-5", "--instance", s.Name, "--state-dir", s.StateDir)
	s.awaits(t, "both mark the node", func(l *shadowLine) bool {
		return l.Kind == "BothDid" && l.Node == "hollow-5" && l.What == "Ready becomes Unknown"
	})
	s.awaits(t, "both evict the pod", func(l *shadowLine) bool {
		return l.Kind == "BothDid" && l.Node == "hollow-5" && l.Pod == s.ns+"/victim"
	})
	fault("return", "--instance", s.Name, "--state-dir", s.StateDir)
	s.awaits(t, "both remove the taint", func(l *shadowLine) bool {
		return l.Kind == "BothDid" && l.Node == "hollow-5" && strings.Contains(l.What, "unreachable:NoExecute removed")
	})
}
