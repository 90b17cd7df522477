//go:build e2e

// Package database runs PostgreSQL on a volume of ours while what carries it is killed: the agent again and again, the
// CSI driver, the controllers of volumes; and while its node is drained.
//
// pgbench writes all the time. Each transaction adds a row to a table, and pgbench says at its end how many were
// confirmed. So afterwards the table has at least that many rows, and at most as many more as pgbench had clients. The
// sums of its other tables must be equal. pg_amcheck must find nothing, and fsck, while nothing uses the volume.
//
//	make build bin/images/postgresql.tar && go test -tags e2e ./test/e2e/database
//
// `make database` kills the agent twenty times. Without PLIMSOLL_E2E_LONG it is killed as often as leastKills says.
package database

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/plimsoll-dev/plimsoll/internal/host/loop"
	"github.com/plimsoll-dev/plimsoll/test/e2e/rig"
)

const (
	// soon bounds what takes seconds on two idle cores.
	soon = 2 * time.Minute
	// manyKills and leastKills are how often the agent is killed. Two of them are while the volume is unmounted, and while
	// it is mounted.
	manyKills, leastKills = 20, 4
	// clients is how many transactions are in progress at a time.
	clients = 4
	// scale is pgbench's: 100,000 accounts for each unit, 15 MB.
	scale = 2
	// forgiveEvery is after how many kills the supervisor is replaced, which otherwise waits longer after each.
	forgiveEvery = 3
	// archive is the image, beside the other images.
	archive = "postgresql.tar"
)

// database is the server.
type database struct {
	*rig.Cluster
	t  *testing.T
	ns string
}

// TestDatabase: no confirmed transaction is lost, and no file system is damaged, whatever is killed.
func TestDatabase(t *testing.T) {
	image := filepath.Join(filepath.Dir(rig.Binary(t)), "images", archive)
	if _, err := os.Stat(image); err != nil {
		t.Skipf("%v; run make bin/images/%s", err, archive)
	}
	kills := leastKills
	if os.Getenv("PLIMSOLL_E2E_LONG") != "" {
		kills = manyKills
	}
	c := rig.New(t, "db", rig.Options{Storage: true})
	if out, err := c.Plimsoll("image", "load", image); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	d := database{Cluster: c, t: t, ns: c.Namespace(t)}
	d.kubectl("apply", "-f", "testdata/database.yaml")
	d.ready()
	d.exec("pgbench", "--host=/tmp", "--username=postgres", "--initialize", "--quiet", fmt.Sprintf("--scale=%d", scale))

	d.load("first")
	before := d.pod().Status.ContainerStatuses[0]
	for i := range kills - 2 {
		d.killed("agent")
		if i == 0 {
			d.killed("csi-driver")
			d.killed("storage")
		}
		d.progresses()
		if i%forgiveEvery == forgiveEvery-1 {
			c.Forgive(t)
		}
	}
	after := d.pod().Status.ContainerStatuses[0]
	if after.ContainerID != before.ContainerID || after.RestartCount != 0 {
		t.Errorf("the server runs in %s, %d restarts; in %s before anything was killed", after.ContainerID,
			after.RestartCount, before.ContainerID)
	}

	c.Forgive(t)
	d.drain()
	confirmed := d.confirmed("first")
	d.check(confirmed, confirmed+clients)
	first := d.rows()

	d.load("second")
	d.progresses()
	d.kubectl("scale", "statefulset/db", "--replicas=0")
	confirmed = first + d.confirmed("second")
	d.unused()
	d.fsck()
	d.kubectl("scale", "statefulset/db", "--replicas=1")
	d.ready()
	d.check(confirmed, confirmed+clients)
	d.kubectl("delete", "statefulsets,pods", "--all")
	d.kubectl("delete", "persistentvolumeclaims", "--all", rig.KubectlWaits)
	d.unused()
}

func (d database) kubectl(args ...string) string {
	d.t.Helper()
	return d.Kubectl(d.t, append([]string{"--namespace", d.ns}, args...)...)
}

// exec runs a command beside the server.
func (d database) exec(command ...string) string {
	d.t.Helper()
	return d.kubectl(append([]string{"exec", "db-0", "--container=postgres", "--"}, command...)...)
}

// query returns what the server answers to one question. It waits for an agent that is being restarted.
func (d database) query(sql string) (answer string) {
	d.t.Helper()
	rig.Eventually(d.t, soon, sql, func(context.Context) (err error) {
		answer, err = d.TryKubectl(d.t, "--namespace", d.ns, "exec", "db-0", "--container=postgres", "--", "psql",
			"--host=/tmp", "--username=postgres", "--no-align", "--tuples-only", "--command", sql)
		return err
	})
	return strings.TrimSpace(answer)
}

// rows returns how many transactions the server has.
func (d database) rows() int {
	d.t.Helper()
	rows, err := strconv.Atoi(d.query("SELECT count(*) FROM pgbench_history"))
	if err != nil {
		d.t.Fatal(err)
	}
	return rows
}

func (d database) pod() *corev1.Pod {
	d.t.Helper()
	pod, err := d.API.CoreV1().Pods(d.ns).Get(d.t.Context(), "db-0", metav1.GetOptions{})
	if err != nil {
		d.t.Fatal(err)
	}
	return pod
}

func (d database) ready() {
	d.t.Helper()
	d.kubectl("rollout", "status", "statefulset/db", rig.KubectlWaits)
}

// load starts a pod with pgbench, which writes until the server goes away.
func (d database) load(name string) {
	d.t.Helper()
	no := false
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PodSpec{
			RestartPolicy:                corev1.RestartPolicyNever,
			AutomountServiceAccountToken: &no,
			Containers: []corev1.Container{{
				Name:  "pgbench",
				Image: "plimsoll.dev/postgresql:15",
				Command: []string{"pgbench", "--host=" + d.pod().Status.PodIP, "--username=postgres", "--no-vacuum",
					fmt.Sprintf("--client=%d", clients), "--time=86400", "--progress=5", "postgres"},
			}},
		},
	}
	if _, err := d.API.CoreV1().Pods(d.ns).Create(d.t.Context(), pod, metav1.CreateOptions{}); err != nil {
		d.t.Fatal(err)
	}
	d.kubectl("wait", "pod/"+name, "--for=condition=Ready", rig.KubectlWaits)
}

// progresses waits until the server has more transactions.
func (d database) progresses() {
	d.t.Helper()
	was := d.rows()
	rig.Eventually(d.t, soon, "transactions go on", func(context.Context) error {
		if is := d.rows(); is <= was {
			return fmt.Errorf("%d, were %d", is, was)
		}
		return nil
	})
}

var processed = regexp.MustCompile(`number of transactions actually processed: (\d+)`)

// confirmed waits until the pod with pgbench has ended, and returns how many transactions were confirmed to it.
func (d database) confirmed(name string) int {
	d.t.Helper()
	d.kubectl("wait", "pod/"+name, "--for=jsonpath={.status.phase}=Failed", rig.KubectlWaits)
	out := d.kubectl("logs", name)
	found := processed.FindStringSubmatch(out)
	if found == nil {
		d.t.Fatalf("pgbench does not say how many transactions it made:\n%s", out)
	}
	n, err := strconv.Atoi(found[1])
	if err != nil || n == 0 {
		d.t.Fatalf("%q transactions, %v", found[1], err)
	}
	return n
}

// killed kills a process of the instance and waits until its supervisor has started another.
func (d database) killed(child string) {
	d.t.Helper()
	was := d.PID(d.t, child)
	if was == 0 {
		d.t.Fatalf("%s does not run", child)
	}
	if err := syscall.Kill(was, syscall.SIGKILL); err != nil {
		d.t.Fatal(err)
	}
	rig.Eventually(d.t, soon, child+" runs again", func(context.Context) error {
		if is := d.PID(d.t, child); is == 0 || is == was {
			return fmt.Errorf("pid %d, was %d", is, was)
		}
		return nil
	})
}

// drain drains the node of the server, checks the file system while the server is away, and lets it come back. The
// agent is killed while the server ends, and while it starts.
func (d database) drain() {
	d.t.Helper()
	uid := d.pod().UID
	ctx, cancel := rig.StartClock().Limit(d.t.Context(), 2*soon)
	defer cancel()
	drain := d.KubectlCommand(ctx, "drain", d.NodeName, "--pod-selector=app=db", rig.KubectlWaits)
	var said bytes.Buffer
	drain.Stdout, drain.Stderr = &said, &said
	if err := drain.Start(); err != nil {
		d.t.Fatal(err)
	}
	rig.Eventually(d.t, soon, "the server is evicted", func(ctx context.Context) error {
		pod, err := d.API.CoreV1().Pods(d.ns).Get(ctx, "db-0", metav1.GetOptions{})
		if err == nil && pod.UID == uid && pod.DeletionTimestamp == nil {
			return errors.New("not yet")
		}
		return nil
	})
	d.killed("agent")
	if err := drain.Wait(); err != nil {
		d.t.Fatalf("drain: %v\n%s", err, said.String())
	}
	d.unused()
	d.fsck()
	d.kubectl("uncordon", d.NodeName)
	rig.Eventually(d.t, soon, "the server has a node", func(ctx context.Context) error {
		pod, err := d.API.CoreV1().Pods(d.ns).Get(ctx, "db-0", metav1.GetOptions{})
		if err == nil && (pod.UID == uid || pod.Spec.NodeName == "") {
			err = errors.New("not yet")
		}
		return err
	})
	d.killed("agent")
	d.ready()
}

// images returns the files in which the volumes are.
func (d database) images() []string {
	d.t.Helper()
	files, err := filepath.Glob(filepath.Join(d.StateDir, "volumes", "volumes", "*", "image"))
	if err != nil {
		d.t.Fatal(err)
	}
	return files
}

// unused waits until the volume is mounted nowhere.
func (d database) unused() {
	d.t.Helper()
	rig.Eventually(d.t, soon, "the volume is mounted nowhere", func(context.Context) error {
		devices, err := loop.Below(filepath.Join(d.StateDir, "volumes"))
		if err == nil && len(devices) > 0 {
			err = fmt.Errorf("devices %v", devices)
		}
		return err
	})
}

// fsck checks the file system of the volume. It changes nothing: what it would mend is a failure.
func (d database) fsck() {
	d.t.Helper()
	files := d.images()
	if len(files) != 1 {
		d.t.Fatalf("volumes are in %v, want one", files)
	}
	if out, err := exec.CommandContext(d.t.Context(), "e2fsck", "-f", "-n", files[0]).CombinedOutput(); err != nil {
		d.t.Errorf("e2fsck: %v\n%s", err, out)
	}
}

// check checks how many transactions the server has, and what must hold between its tables.
func (d database) check(least, most int) {
	d.t.Helper()
	d.ready()
	rows := d.rows()
	d.t.Logf("%d transactions confirmed, the server has %d", least, rows)
	if rows < least || rows > most {
		d.t.Errorf("the server has %d transactions, want %d to %d", rows, least, most)
	}
	const sums = "SELECT (SELECT sum(abalance) FROM pgbench_accounts), (SELECT sum(bbalance) FROM pgbench_branches), " +
		"(SELECT sum(tbalance) FROM pgbench_tellers), (SELECT sum(delta) FROM pgbench_history)"
	all := strings.Split(d.query(sums), "|")
	for _, sum := range all {
		if len(all) != 4 || sum != all[0] {
			d.t.Errorf("sums of accounts, branches, tellers and transactions: %v", all)
			break
		}
	}
	d.exec("pg_amcheck", "--host=/tmp", "--username=postgres", "--install-missing", "--heapallindexed", "postgres")
}
