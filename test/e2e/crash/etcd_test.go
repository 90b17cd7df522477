//go:build e2e

package crash

import (
	"context"
	"fmt"
	"net/http"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/plimsoll-dev/plimsoll/test/e2e/rig"
	"github.com/plimsoll-dev/plimsoll/test/freeport"
)

// TestExternalEtcd runs an instance with an external etcd. The instance starts no etcd, keeps its objects in the
// external one, and leaves it running at `down`.
func TestExternalEtcd(t *testing.T) {
	t.Parallel()
	client, peer := fmt.Sprintf("http://127.0.0.1:%d", freeport.ForTest(t)), fmt.Sprintf("http://127.0.0.1:%d",
		freeport.ForTest(t))
	store := exec.Command(filepath.Join(filepath.Dir(rig.Binary(t)), "plimsoll-controlplane"), "etcd",
		"--name=theirs", "--data-dir="+t.TempDir(), "--listen-client-urls="+client, "--advertise-client-urls="+client,
		"--listen-peer-urls="+peer, "--initial-advertise-peer-urls="+peer, "--initial-cluster=theirs="+peer)
	if err := store.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := store.Process.Signal(syscall.SIGTERM); err != nil {
			t.Errorf("their etcd had ended before us: %v", err)
		}
		_ = store.Wait() // its exit code does not matter
	})
	rig.Eventually(t, soon, "their etcd to answer", func(ctx context.Context) error { return healthy(ctx, client) })
	t.Run("instance", func(t *testing.T) {
		c := rig.New(t, "etcd", rig.Options{NoNode: true, UpFlags: []string{"--etcd-servers", client}})
		namespace := c.Namespace(t)
		c.Kubectl(t, "create", "configmap", "kept", "-n", namespace, "--from-literal=a=b")
		children, _, err := c.Children()
		if err != nil {
			t.Fatal(err)
		}
		for _, child := range children {
			if child.Name == etcd {
				t.Errorf("an etcd of its own runs, pid %d", child.PID)
			}
		}
		if out, err := c.Plimsoll("down"); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		if out, err := c.Up(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		if got := c.Kubectl(t, "get", "configmap", "kept", "-n", namespace, "-o", "jsonpath={.data.a}"); got != "b" {
			t.Errorf("after down and up the object says %q, want b", got)
		}
	})
	if err := healthy(context.WithoutCancel(t.Context()), client); err != nil {
		t.Errorf("their etcd after our end: %v", err)
	}
}

func healthy(ctx context.Context, etcd string) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, etcd+"/health", nil)
	if err != nil {
		return err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("%s/health: %s", etcd, response.Status)
	}
	return nil
}
