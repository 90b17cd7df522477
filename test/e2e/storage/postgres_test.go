//go:build e2e

package storage

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"github.com/plimsoll-dev/plimsoll/test/e2e/rig"
)

// database is Debian's PostgreSQL on a claim. Beside the server a client runs pgbench again and again until the file
// /data/stop is there. Both reach each other by a socket in a volume of the pod.
const database = `apiVersion: apps/v1
kind: StatefulSet
metadata: {name: database}
spec:
  serviceName: database
  replicas: 1
  selector: {matchLabels: {app: database}}
  template:
    metadata: {labels: {app: database}}
    spec:
      terminationGracePeriodSeconds: 30
      securityContext: {runAsUser: 999, runAsGroup: 999, fsGroup: 999}
      containers:
      - name: server
        image: ` + databaseImage + `
        command:
        - /bin/bash
        - -ec
        - |
          [ -e /data/pg/PG_VERSION ] || initdb --pgdata /data/pg --username postgres
          exec postgres -D /data/pg -c listen_addresses= -c unix_socket_directories=/run/pg -c max_wal_size=128MB
        volumeMounts: &mounts
        - {name: data, mountPath: /data}
        - {name: run, mountPath: /run/pg}
      - name: client
        image: ` + databaseImage + `
        command:
        - /bin/bash
        - -ec
        - |
          until pg_isready -h /run/pg; do sleep 0.2; done
          [ -e /data/stop ] || pgbench -h /run/pg -U postgres -i -q postgres
          while [ ! -e /data/stop ]; do pgbench -h /run/pg -U postgres -n -c 4 -T 3 postgres; done
          touch /run/pg/done
          exec sleep infinity
        volumeMounts: *mounts
      volumes:
      - name: run
        emptyDir: {}
  volumeClaimTemplates:
  - metadata: {name: data}
    spec:
      accessModes: [ReadWriteOnce]
      resources: {requests: {storage: 512Mi}}
`

const databaseImage = "plimsoll.dev/postgres:test"

// agentKills is how often the agent is killed while transactions run (the number).
const agentKills = 20

// TestPostgres: while the agent is killed twenty times, and the driver and its controllers once, no transaction fails
// and none that was committed is lost; after the pod has moved to a new start everything is still there; and the file
// system of the volume is clean.
func TestPostgres(t *testing.T) {
	if os.Getenv("PLIMSOLL_E2E_LONG") == "" {
		t.Skip("fetches and imports Debian's PostgreSQL, and runs for minutes: PLIMSOLL_E2E_LONG=1 (make test-long)")
	}
	c := rig.Shared(t)
	k := keeper{Cluster: c, t: t, ns: c.Namespace(t)}
	archive := makeDatabaseImage(t)
	if out, err := c.Plimsoll("image", "load", archive); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	k.apply(database)
	k.awaitRuns(1)
	for n := range agentKills {
		kill(t, c.PID(t, "agent"))
		c.Forgive(t)
		if n == agentKills/2 {
			kill(t, c.PID(t, "csi-driver"))
			kill(t, c.PID(t, "storage"))
		}
	}
	k.awaitRuns(2)
	k.inDatabase("touch", "/data/stop")
	rig.Eventually(t, soon, "the client ends", func(context.Context) error {
		_, err := k.TryKubectl(t, "--namespace", k.ns, "exec", "database-0", "-c", "server", "--", "test", "-e", "/run/pg/done")
		return err
	})
	if restarts := k.kubectl("get", "pod", "database-0", "--output", "jsonpath={.status.containerStatuses[*].restartCount}"); restarts != "0 0" {
		t.Errorf("containers restarted: %s", restarts)
	}
	done, failed := transactions(k.kubectl("logs", "database-0", "-c", "client"))
	if failed != 0 {
		t.Errorf("%d transactions failed", failed)
	}
	t.Logf("%d transactions while the agent was killed %d times", done, agentKills)
	k.wantBalance(done)

	k.kubectl("delete", "pod", "database-0")
	rig.Eventually(t, soon, "the database is back", func(context.Context) error {
		_, err := k.TryKubectl(t, "--namespace", k.ns, "exec", "database-0", "-c", "server", "--", "pg_isready", "-h", "/run/pg")
		return err
	})
	k.wantBalance(done)

	k.kubectl("scale", "statefulset/database", "--replicas=0")
	k.kubectl("wait", "pod/database-0", "--for=delete", "--timeout="+soon.String())
	k.wantClean()
	k.kubectl("delete", "statefulset/database", "persistentvolumeclaim/data-database-0", "--wait=false")
	k.wantNothingKept()
}

// awaitRuns waits until n more runs of pgbench have ended than at the first look.
func (k keeper) awaitRuns(n int) {
	k.t.Helper()
	first := -1
	rig.Eventually(k.t, soon, fmt.Sprintf("%d more runs of pgbench", n), func(context.Context) error {
		out, err := k.TryKubectl(k.t, "--namespace", k.ns, "logs", "database-0", "-c", "client")
		if err != nil {
			return err
		}
		runs := len(processedLine.FindAllString(out, -1))
		if first < 0 {
			first = runs
		}
		if runs < first+n {
			return fmt.Errorf("%d, %d at the first look:\n%s", runs, first, out)
		}
		return nil
	})
}

// What pgbench prints at the end of a run.
var (
	processedLine = regexp.MustCompile(`number of transactions actually processed: (\d+)`)
	failedLine    = regexp.MustCompile(`number of failed transactions: (\d+)`)
)

// transactions adds up what all runs of pgbench say.
func transactions(log string) (processed, failed int) {
	sum := func(line *regexp.Regexp) (total int) {
		for _, found := range line.FindAllStringSubmatch(log, -1) {
			n, err := strconv.Atoi(found[1])
			if err != nil {
				panic(err) // the expression admits digits only
			}
			total += n
		}
		return total
	}
	return sum(processedLine), sum(failedLine)
}

func (k keeper) inDatabase(command ...string) string {
	k.t.Helper()
	return k.kubectl(append([]string{"exec", "database-0", "-c", "server", "--"}, command...)...)
}

// wantBalance compares what pgbench was told with what the tables hold: each transaction is a row of the history, and
// its amount is in one account, one teller and one branch.
func (k keeper) wantBalance(transactions int) {
	k.t.Helper()
	got := strings.TrimSpace(k.inDatabase("psql", "-h", "/run/pg", "-U", "postgres", "-At", "-c", `select count(*),
		sum(delta) = (select sum(abalance) from pgbench_accounts),
		sum(delta) = (select sum(tbalance) from pgbench_tellers),
		sum(delta) = (select sum(bbalance) from pgbench_branches) from pgbench_history`))
	if want := fmt.Sprintf("%d|t|t|t", transactions); got != want {
		k.t.Errorf("transactions, and whether accounts, tellers and branches agree with them: %s, want %s", got, want)
	}
}

// wantClean checks the file system in the image of every volume.
func (k keeper) wantClean() {
	k.t.Helper()
	images, err := filepath.Glob(filepath.Join(k.StateDir, "volumes/volumes/*/image"))
	if err != nil || len(images) == 0 {
		k.t.Fatalf("images of volumes: %v, %v", images, err)
	}
	for _, image := range images {
		if out, err := exec.Command("fsck.ext4", "-fn", image).CombinedOutput(); err != nil {
			k.t.Errorf("fsck %s: %v\n%s", image, err, out)
		}
	}
}

// makeDatabaseImage fetches Debian's PostgreSQL and returns an image archive of it, in the form of docker save.
func makeDatabaseImage(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	run := func(name string, args ...string) {
		t.Helper()
		if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
			t.Fatalf("%s %v: %v\n%s", name, args, err, out)
		}
	}
	run("../../../conformance/images/debian.sh", dir, "tree", "postgresql-15", "bash", "coreutils")
	tree := filepath.Join(dir, "tree")
	write := func(path, text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write(filepath.Join(tree, "etc/passwd"), "root:x:0:0::/:/bin/bash\npostgres:x:999:999::/data:/bin/bash\n")
	write(filepath.Join(tree, "etc/group"), "root:x:0:\npostgres:x:999:\n")
	if err := os.Symlink("bash", filepath.Join(tree, "bin/sh")); err != nil { // Debian's packages make it when they are installed
		t.Fatal(err)
	}
	layer := filepath.Join(dir, "layer.tar")
	run("tar", "--owner=0", "--group=0", "-C", tree, "-cf", layer, ".")
	config, err := json.Marshal(map[string]any{
		"architecture": runtime.GOARCH,
		"os":           "linux",
		"config":       map[string]any{"Env": []string{"PATH=/usr/lib/postgresql/15/bin:/usr/bin:/bin"}},
		"rootfs":       map[string]any{"type": "layers", "diff_ids": []string{"sha256:" + digest(t, layer)}},
	})
	if err != nil {
		t.Fatal(err)
	}
	write(filepath.Join(dir, "config.json"), string(config))
	write(filepath.Join(dir, "manifest.json"),
		`[{"Config":"config.json","RepoTags":["`+databaseImage+`"],"Layers":["layer.tar"]}]`)
	archive := filepath.Join(dir, "image.tar")
	run("tar", "-C", dir, "-cf", archive, "manifest.json", "config.json", "layer.tar")
	return archive
}

func digest(t *testing.T, path string) string {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	hash := sha256.New()
	if _, err := io.Copy(hash, f); err != nil {
		t.Fatal(err)
	}
	return hex.EncodeToString(hash.Sum(nil))
}
