//go:build e2e

package lifecycle

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/plimsoll-dev/plimsoll/test/e2e/rig"
)

// death: three of seven nodes die. They are marked at once and evicted one after another. The leader is killed after
// the first of them. The other candidate takes over and continues from there, and deletes no pod twice.
func (c *cluster) death(t *testing.T, doomed, left, right *rig.Program) {
	doomed.Stop()
	before := map[string]types.UID{}
	for _, p := range c.pods(t.Context()) {
		if onDoomed(&p) {
			before[p.Name] = p.UID
		}
	}
	rig.Eventually(t, soon, "three nodes Unknown and closed, one emptied", func(ctx context.Context) error {
		nodes, err := c.doomedNodes(ctx)
		for _, n := range nodes {
			err = errors.Join(err, unknownAndClosed(&n))
		}
		if len(emptied(nodes)) == 0 {
			err = errors.Join(err, errors.New("none is emptied"))
		}
		return err
	})
	nodes, err := c.doomedNodes(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	first := emptied(nodes)
	holder := c.holder(t)
	// The test cannot know which of the two leads. Killing the other one changes nothing. So it kills one, and if the
	// holder stays, the other one too.
	left.Stop()
	if got := c.holderAfter(t, holder, 5*time.Second); got == holder {
		left.Start()
		right.Stop()
		if got := c.holderAfter(t, holder, 10*time.Second); got == holder {
			t.Fatalf("%s holds the Lease, and both were killed", got)
		}
	}
	rig.Eventually(t, soon, "all three emptied, the Deployment whole elsewhere", func(ctx context.Context) error {
		nodes, err := c.doomedNodes(ctx)
		if err != nil || len(emptied(nodes)) != 3 {
			return fmt.Errorf("%d emptied: %v", len(emptied(nodes)), err)
		}
		ready, going, waiting := 0, 0, 0
		for _, p := range c.pods(ctx) {
			if p.Labels["app"] == "web" {
				ready += one(isReady(&p) && !onDoomed(&p))
			}
			going += one(p.DeletionTimestamp != nil)
			waiting += one(p.Labels["app"] == "db" && p.DeletionTimestamp != nil)
		}
		if ready != 14 || waiting != 3 {
			return fmt.Errorf("%d of 14 Deployment pods Ready elsewhere, %d of 3 StatefulSet pods waiting, %d terminating",
				ready, waiting, going)
		}
		return nil
	})
	nodes, err = c.doomedNodes(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for name, at := range first {
		if now := emptied(nodes)[name]; !now.Equal(at) {
			t.Errorf("%s was emptied at %v, by the next leader again at %v", name, at, now)
		}
	}
	c.checkFates(t, before)
	c.Explains(t, "node doomed-1", nil, `Ready +Unknown`, `node\.kubernetes\.io/unreachable:NoExecute`)
	c.Explains(t, "pod "+c.ns+"/"+c.statefulOn(t, "doomed-1").Name, c.journals,
		`node doomed-1: Ready becomes Unknown, .*taint node\.kubernetes\.io/unreachable:NoSchedule is added.*: `+
			`no sign of life for ([6-9]|[1-9][0-9]|[1-9]m)`, // the grace period is 6 s
		`evicted on doomed-1: its node has had the taint node\.kubernetes\.io/unreachable:NoExecute for [1-9][0-9.]*s, `+
			`which it tolerates for 2s`)
}

func unknownAndClosed(n *corev1.Node) error {
	unknown, closed := false, false
	for _, s := range n.Status.Conditions {
		unknown = unknown || s.Type == corev1.NodeReady && s.Status == corev1.ConditionUnknown &&
			s.Reason == "NodeStatusUnknown"
	}
	for _, taint := range n.Spec.Taints {
		closed = closed || taint.Key == corev1.TaintNodeUnreachable && taint.Effect == corev1.TaintEffectNoSchedule
	}
	if !unknown || !closed {
		return fmt.Errorf("%s: Unknown %v, NoSchedule %v", n.Name, unknown, closed)
	}
	return nil
}

// checkFates checks what becomes of each pod, depending on its owner, and what kubectl shows.
func (c *cluster) checkFates(t *testing.T, before map[string]types.UID) {
	t.Helper()
	shown := map[string]string{}
	for line := range strings.Lines(c.Kubectl(t, "get", "pods", "-n", c.ns, "--no-headers")) {
		if f := strings.Fields(line); len(f) > 2 {
			shown[f[0]] = f[2]
		}
	}
	for _, p := range c.pods(t.Context()) {
		if !onDoomed(&p) {
			continue
		}
		if uid, known := before[p.Name]; !known || uid != p.UID {
			t.Errorf("pod %s is new on dead node %s", p.Name, p.Spec.NodeName)
		}
		want := "Terminating" // of a Deployment: replaced on another node; of a StatefulSet: its name is not free
		if app := p.Labels["app"]; app == "ds" || app == "" {
			want = "Running" // the phase that was reported last
		}
		if shown[p.Name] != want {
			t.Errorf("kubectl shows pod %s on %s as %s, want %s", p.Name, p.Spec.NodeName, shown[p.Name], want)
		}
		if isReady(&p) {
			t.Errorf("pod %s on dead node %s is Ready", p.Name, p.Spec.NodeName)
		}
		if want == "Terminating" && !hasReason(&p, "DeletionByTaintManager") {
			t.Errorf("pod %s: conditions %+v", p.Name, p.Status.Conditions)
		}
	}
}

func hasReason(p *corev1.Pod, reason string) bool {
	for _, s := range p.Status.Conditions {
		if s.Type == corev1.DisruptionTarget && s.Status == corev1.ConditionTrue && s.Reason == reason {
			return true
		}
	}
	return false
}

func (c *cluster) holder(t *testing.T) string {
	lease, err := c.API.CoordinationV1().Leases("kube-system").Get(t.Context(), "plimsoll-lifecycle", metav1.GetOptions{})
	if err != nil || lease.Spec.HolderIdentity == nil {
		t.Fatalf("lease: %v", err)
	}
	return *lease.Spec.HolderIdentity
}

// holderAfter waits until the Lease has another holder.
func (c *cluster) holderAfter(t *testing.T, was string, limit time.Duration) string {
	end := time.Now().Add(limit)
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	now := c.holder(t)
	for now == was && time.Now().Before(end) {
		<-tick.C
		now = c.holder(t)
	}
	return now
}

func (c *cluster) pod(ctx context.Context, name string) (*corev1.Pod, error) {
	return c.API.CoreV1().Pods(c.ns).Get(ctx, name, metav1.GetOptions{})
}

// statefulOn returns the StatefulSet's pod on a node.
func (c *cluster) statefulOn(t *testing.T, node string) *corev1.Pod {
	t.Helper()
	for _, p := range c.pods(t.Context()) {
		if p.Labels["app"] == "db" && p.Spec.NodeName == node {
			return &p
		}
	}
	t.Fatalf("no pod of the StatefulSet on %s", node)
	return nil
}

// moved waits until the StatefulSet's pod has been replaced on another node.
func (c *cluster) moved(t *testing.T, was *corev1.Pod) {
	t.Helper()
	rig.Eventually(t, slack, was.Name+" Ready elsewhere", func(ctx context.Context) error {
		p, err := c.pod(ctx, was.Name)
		if err != nil {
			return err
		}
		if p.UID == was.UID || !isReady(p) {
			return fmt.Errorf("on %s, Ready %v", p.Spec.NodeName, isReady(p))
		}
		return nil
	})
}

// metrics checks the leader's metrics, which have upstream's names, and who may read them.
func (c *cluster) metrics(t *testing.T) {
	ctx := t.Context()
	tokens := map[string]string{}
	for _, name := range []string{"scraper", "stranger"} {
		_, err := c.API.CoreV1().ServiceAccounts(c.ns).Create(ctx,
			&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		token, err := c.API.CoreV1().ServiceAccounts(c.ns).CreateToken(ctx, name, &authenticationv1.TokenRequest{},
			metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		tokens[name] = token.Status.Token
	}
	// its certificate is self-signed
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	read := func(port, who string) (int, string) {
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://127.0.0.1:"+port+"/metrics", nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Authorization", "Bearer "+tokens[who])
		answer, err := client.Do(r)
		if err != nil {
			return 0, "" // it was killed
		}
		defer answer.Body.Close()
		body, err := io.ReadAll(answer.Body)
		if err != nil {
			t.Fatal(err)
		}
		return answer.StatusCode, string(body)
	}
	for _, port := range c.ports {
		if status, body := read(port, "stranger"); status != 0 && status != http.StatusForbidden {
			t.Errorf("a stranger got %d: %.200s", status, body)
		}
	}
	c.Kubectl(t, "create", "clusterrole", "scraper", "--verb=get", "--non-resource-url=/metrics")
	c.Kubectl(t, "create", "clusterrolebinding", "scraper", "--clusterrole=scraper", "--serviceaccount="+c.ns+":scraper")
	rig.Eventually(t, soon, "the leader's numbers", func(context.Context) error {
		var all strings.Builder
		for _, port := range c.ports {
			_, body := read(port, "scraper")
			all.WriteString(body)
		}
		for _, line := range []string{`node_collector_zone_size{zone=""} 7`,
			`node_collector_unhealthy_nodes_in_zone{zone=""} 3`, `node_collector_evictions_total{zone=""}`,
			"taint_eviction_controller_pod_deletions_total"} {
			if !strings.Contains(all.String(), line) {
				return errors.New("no " + line)
			}
		}
		return nil
	})
}

// outOfService checks what follows when an administrator has marked doomed-0 as out of service.
func (c *cluster) outOfService(t *testing.T) {
	was := c.statefulOn(t, "doomed-0")
	c.Kubectl(t, "taint", "node", "doomed-0", corev1.TaintNodeOutOfService+"=nodeshutdown:NoExecute")
	c.moved(t, was)
}

// deletedNode deletes the Node doomed-1. Its pods are deleted, a DaemonSet's too.
func (c *cluster) deletedNode(t *testing.T) {
	was := c.statefulOn(t, "doomed-1")
	c.Kubectl(t, "delete", "node", "doomed-1")
	c.moved(t, was)
	rig.Eventually(t, slack, "no pod on doomed-1", func(ctx context.Context) error {
		for _, p := range c.pods(ctx) {
			if p.Spec.NodeName == "doomed-1" {
				return errors.New(p.Name)
			}
		}
		return nil
	})
}

// comeBack starts the dead nodes again. Pods that were replaced end, the StatefulSet's pod is created again, and the
// others are the same and Ready again.
func (c *cluster) comeBack(t *testing.T, doomed *rig.Program) {
	was := c.statefulOn(t, "doomed-2")
	static, err := c.pod(t.Context(), "static-doomed-2")
	if err != nil {
		t.Fatal(err)
	}
	c.Kubectl(t, "taint", "node", "doomed-0", corev1.TaintNodeOutOfService+"-")
	doomed.Start()
	c.moved(t, was)
	rig.Eventually(t, soon, "25 pods Ready, none terminating, no taint", func(ctx context.Context) error {
		nodes, err := c.doomedNodes(ctx)
		for _, n := range nodes {
			if len(n.Spec.Taints) > 0 {
				err = errors.Join(err, fmt.Errorf("%s has %v", n.Name, n.Spec.Taints))
			}
		}
		pods, ready := c.pods(ctx), 0
		for _, p := range pods {
			ready += one(isReady(&p) && p.DeletionTimestamp == nil)
		}
		if ready != 25 || len(pods) != 25 {
			err = errors.Join(err, fmt.Errorf("%d of %d pods Ready", ready, len(pods)))
		}
		return err
	})
	after, err := c.pod(t.Context(), static.Name)
	began := func(pod *corev1.Pod) *metav1.Time { return &pod.Status.ContainerStatuses[0].State.Running.StartedAt }
	if err != nil || after.UID != static.UID || !began(after).Equal(began(static)) {
		t.Errorf("the static pod was not left alone: %v %+v", err, after.Status.ContainerStatuses)
	}
}

// budgets taints a node by hand. The StatefulSet's budget allows no eviction at first, so its pod stays until it does.
// The Deployment's pods are evicted.
func (c *cluster) budgets(t *testing.T) {
	was, err := c.pod(t.Context(), "db-0")
	if err != nil {
		t.Fatal(err)
	}
	node := was.Spec.NodeName
	c.Kubectl(t, "create", "poddisruptionbudget", "db", "-n", c.ns, "--selector=app=db", "--min-available=3")
	c.Kubectl(t, "taint", "node", node, "example.com/drain=:NoExecute")
	rig.Eventually(t, soon, "the eviction refused, and only that one", func(ctx context.Context) error {
		for _, p := range c.pods(ctx) {
			if p.Labels["app"] == "web" && p.Spec.NodeName == node {
				return errors.New(p.Name + " is still there")
			}
		}
		events, err := c.API.CoreV1().Events(c.ns).List(ctx,
			metav1.ListOptions{FieldSelector: "reason=TaintManagerEviction,involvedObject.name=" + was.Name})
		if err != nil || len(events.Items) == 0 {
			return fmt.Errorf("no event about %s: %v", was.Name, err)
		}
		return nil
	})
	if p, err := c.pod(t.Context(), was.Name); err != nil || p.UID != was.UID || p.DeletionTimestamp != nil {
		t.Errorf("the budget was not kept: %v", err)
	}
	c.Kubectl(t, "delete", "poddisruptionbudget", "db", "-n", c.ns)
	c.moved(t, was)
	c.Kubectl(t, "taint", "node", node, "example.com/drain-")
}

// away stops the API server for twice the node-monitor grace period. The leader ends and another leads when it is back.
// No node is tainted and no pod evicted.
func (c *cluster) away(t *testing.T) {
	before := map[types.UID]bool{}
	for _, p := range c.pods(t.Context()) {
		before[p.UID] = true
	}
	server := c.PID(t, "kube-apiserver")
	if err := syscall.Kill(server, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	away := time.NewTimer(2 * grace)
	<-away.C
	if err := syscall.Kill(server, syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	began, worst := time.Now(), 0
	rig.Eventually(t, soon, "a new leader that has watched for two graces", func(ctx context.Context) error {
		nodes, err := c.API.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		for _, n := range nodes.Items {
			for _, taint := range n.Spec.Taints {
				worst += one(taint.Effect == corev1.TaintEffectNoExecute)
			}
		}
		if time.Since(began) < 2*grace || c.holder(t) == "" {
			return errors.New("not yet")
		}
		return nil
	})
	if worst > 0 {
		t.Error("nodes were given NoExecute taints because the API server was away")
	}
	same := 0
	for _, p := range c.pods(t.Context()) {
		same += one(before[p.UID] && p.DeletionTimestamp == nil && isReady(&p))
	}
	if same != len(before) {
		t.Errorf("%d of %d pods are as they were", same, len(before))
	}
}
