//go:build e2e

package charts

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/plimsoll-dev/plimsoll/internal/host/link"
	"github.com/plimsoll-dev/plimsoll/internal/host/loop"
	"github.com/plimsoll-dev/plimsoll/test/e2e/rig"
)

// node is the address of the node: the instance runs in a network namespace of its own, whose bridge has it.
const node = "192.168.78.1/24"

func TestMain(m *testing.M) {
	flag.Parse()
	os.Exit(rig.Apart(func() int {
		address := netip.MustParsePrefix(node)
		if os.Geteuid() == 0 {
			if err := errors.Join(link.SetUp("lo"), link.EnsureBridge("lan", address)); err != nil {
				fmt.Fprintln(os.Stderr, "FAIL:", err)
				return 1
			}
		}
		return rig.Main(m, "charts", rig.Options{
			Services: true,
			Storage:  true,
			// Prometheus reaches all components at the node's address, by the ports that its configuration names.
			UpFlags: []string{
				"--bind-address", address.Addr().String(), "--node-ip", address.Addr().String(),
				"--controller-manager-port", "10257", "--lifecycle-port", "10267", "--scheduler-port", "10259",
			},
		})
	}))
}

// imagesVariable names the archive of the images.
const imagesVariable = "PLIMSOLL_CHARTS_IMAGES"

// soon bounds what takes seconds on two idle cores, and scaled what a horizontal autoscaler decides: it reads metrics
// every 15 s, which metrics-server measures every 15 s, and waits until a new pod has some.
const (
	soon   = 3 * time.Minute
	scaled = 5 * time.Minute
)

// The set of objects, and what users get of us for a Prometheus of theirs.
const (
	set       = "testdata/shop"
	namespace = "shop"
	deployed  = "../../../deploy/monitoring"
)

// TestShop installs the set, uses it and removes it.
func TestShop(t *testing.T) {
	archive := os.Getenv(imagesVariable)
	if archive == "" {
		t.Skipf("%s is not set: `make charts` builds the images and sets it", imagesVariable)
	}
	c := rig.Shared(t)
	for _, one := range []string{archive, filepath.Join(filepath.Dir(rig.Binary(t)), "images", "postgresql.tar")} {
		if out, err := c.Plimsoll("image", "load", one); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
	}
	before := objects(t, c)

	began := time.Now()
	all := []string{"-f", set, "-f", configured(t, c)}
	c.Kubectl(t, append([]string{"apply"}, all...)...)
	t.Cleanup(func() {
		if t.Failed() {
			out, _ := c.TryKubectl(t, "--namespace", namespace, "describe", "hpa,deployments,statefulsets,pvc,pods")
			t.Log(out)
			_, _ = c.TryKubectl(t, append([]string{"delete", "--ignore-not-found"}, all...)...)
		}
	})
	for _, what := range []string{
		"deployment/web", "statefulset/database", "deployment/prometheus", "deployment/kube-state-metrics",
	} {
		rolledOut(t, c, what)
	}
	t.Logf("everything was ready after %v", time.Since(began).Round(100*time.Millisecond))

	for _, part := range []struct {
		name string
		run  func(*testing.T, *rig.Cluster)
	}{
		{"database", database},
		{"web", web},
		{"monitoring", monitoring},
	} {
		if !t.Run(part.name, func(t *testing.T) { part.run(t, c) }) {
			return
		}
	}
	pods, err := c.API.CoreV1().Pods(namespace).List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range pods.Items {
		for _, s := range p.Status.ContainerStatuses {
			if s.RestartCount != 0 {
				t.Errorf("pod %s: %d restarts: %+v", p.Name, s.RestartCount, s.LastTerminationState.Terminated)
			}
		}
	}
	// Without --ignore-not-found it would be an error that the namespace's end is quicker.
	waiting(t, c, append([]string{"delete", "--ignore-not-found"}, all...)...)
	rig.Eventually(t, soon, "nothing is left on the node", func(context.Context) error { return remains(c, pods.Items) })
	rig.Eventually(t, soon, "nothing is left in the API", func(context.Context) error {
		var left []string
		for _, object := range objects(t, c) {
			if !slices.Contains(before, object) {
				left = append(left, object)
			}
		}
		if len(left) > 0 {
			return fmt.Errorf("left: %q", left)
		}
		return nil
	})
}

// configured returns a file with what deploy/monitoring has for Prometheus, as ConfigMaps.
func configured(t *testing.T, c *rig.Cluster) string {
	t.Helper()
	var text strings.Builder
	for name, from := range map[string]string{"prometheus": "prometheus.yml", "rules": "rules"} {
		text.WriteString(c.Kubectl(t, "create", "configmap", name, "--namespace", namespace, "--dry-run=client",
			"--output=yaml", "--from-file="+filepath.Join(deployed, from)))
		text.WriteString("\n---\n")
	}
	path := filepath.Join(t.TempDir(), "configured.yaml")
	if err := os.WriteFile(path, []byte(text.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// rolledOut waits until the pods of a workload are available.
func rolledOut(t *testing.T, c *rig.Cluster, what string) {
	t.Helper()
	waiting(t, c, "--namespace", namespace, "rollout", "status", what)
}

// waiting runs a kubectl command that waits.
func waiting(t *testing.T, c *rig.Cluster, args ...string) {
	t.Helper()
	ctx, cancel := rig.StartClock().Limit(t.Context(), soon)
	defer cancel()
	if out, err := c.KubectlCommand(ctx, args...).CombinedOutput(); err != nil {
		t.Fatalf("kubectl %s: not within %v: %v\n%s", strings.Join(args, " "), soon, err, out)
	}
}

// database: the database is reached by its Service's name, and another pod finds what was written.
func database(t *testing.T, c *rig.Cluster) {
	ask := func(sql string) (string, error) {
		out, err := c.TryKubectl(t, "--namespace", namespace, "exec", "database-0", "--", "psql", "--host=database",
			"--dbname=postgres", "--no-align", "--tuples-only", "--quiet", "--set=ON_ERROR_STOP=1", "--command="+sql)
		return strings.TrimSpace(out), err
	}
	const rows = 10000
	made := fmt.Sprintf("CREATE TABLE orders AS SELECT n, md5(n::text) AS text FROM generate_series(1, %d) AS n", rows)
	if out, err := ask(made); err != nil {
		t.Fatal(err, out)
	}
	const sum = "SELECT count(*) || ' ' || md5(string_agg(text, ',' ORDER BY n)) FROM orders"
	was, err := ask(sum)
	if err != nil || !strings.HasPrefix(was, fmt.Sprint(rows, " ")) {
		t.Fatal(err, was)
	}
	c.Kubectl(t, "--namespace", namespace, "delete", "pod", "database-0")
	rig.Eventually(t, soon, "another pod has the same data", func(context.Context) error {
		is, err := ask(sum)
		if err == nil && is != was {
			t.Fatalf("the database had %s, has %s", was, is)
		}
		return err
	})
	rolledOut(t, c, "statefulset/database")
}

// web: requests of other pods, by the Service's name, make the autoscaler add pods. It removes them again when the
// requests have ended.
func web(t *testing.T, c *rig.Cluster) {
	pods := func(want int) func(context.Context) error {
		return func(ctx context.Context) error {
			d, err := c.API.AppsV1().Deployments(namespace).Get(ctx, "web", metav1.GetOptions{})
			if err != nil {
				return err
			}
			if has := d.Status; int(has.Replicas) != want || int(has.AvailableReplicas) != want {
				return fmt.Errorf("%d pods, %d of them available, want %d", has.Replicas, has.AvailableReplicas, want)
			}
			return nil
		}
	}
	c.Kubectl(t, "--namespace", namespace, "scale", "deployment/load", "--replicas=2")
	up := rig.Eventually(t, scaled, "pods come with requests", pods(3))
	c.Kubectl(t, "--namespace", namespace, "scale", "deployment/load", "--replicas=0")
	down := rig.Eventually(t, scaled, "pods go with requests", pods(1))
	t.Logf("three pods after %v, one pod again after %v", up.Round(time.Second), down.Round(time.Second))
}

// passing are kinds whose objects come and go by themselves.
var passing = []string{"events", "events.events.k8s.io", "leases.coordination.k8s.io"}

// objects returns the names of all objects in the API, except those of passing kinds.
func objects(t *testing.T, c *rig.Cluster) []string {
	t.Helper()
	var kinds []string
	for kind := range strings.FieldsSeq(c.Kubectl(t, "api-resources", "--verbs=list,delete", "--output=name")) {
		if !slices.Contains(passing, kind) {
			kinds = append(kinds, kind)
		}
	}
	const each = `jsonpath={range .items[*]}{.kind} {.metadata.namespace}/{.metadata.name}{"\n"}{end}`
	lines := c.Kubectl(t, "get", strings.Join(kinds, ","), "--all-namespaces", "--output="+each)
	return strings.Split(strings.TrimSpace(lines), "\n")
}

// remains returns an error with what pods and volumes have left on the node.
func remains(c *rig.Cluster, pods []corev1.Pod) error {
	patterns := []string{
		filepath.Join(c.StateDir, "volumes", "volumes", "*"),
		filepath.Join(c.StateDir, "volumes", "new", "*"),
		filepath.Join(c.StateDir, "volumes", "old", "*"),
	}
	for _, p := range pods {
		uid := string(p.UID)
		patterns = append(patterns,
			filepath.Join(c.AgentRoot(), "pods", uid),
			filepath.Join(c.PodLogs(), "*"+uid),
			filepath.Join("/sys/fs/cgroup", "*", c.CgroupRoot(), "*", "*"+uid+"*"),
			filepath.Join("/sys/fs/cgroup", "*", c.CgroupRoot(), "*", "*", "*"+uid+"*"),
		)
	}
	var found []error
	for _, pattern := range patterns {
		paths, err := filepath.Glob(pattern)
		if err != nil || len(paths) > 0 {
			found = append(found, fmt.Errorf("%s: %v", strings.Join(paths, ", "), err))
		}
	}
	devices, err := loop.Below(c.StateDir)
	if err != nil || len(devices) > 0 {
		found = append(found, fmt.Errorf("loop devices %v: %v", devices, err))
	}
	return errors.Join(found...)
}
