//go:build e2e

package nodes

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/plimsoll-dev/plimsoll/test/e2e/rig"
)

// TestServerMoves starts a server again with another --apiserver-port. It names the machines that need to be told, and
// a machine is told by `plimsoll join` with the new URL and without a token. A server of another cluster is refused,
// and the machine stays a node of its own.
func TestServerMoves(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("a node needs root")
	}
	rig.Binary(t)
	dir := shortDir(t)
	c := &rig.Cluster{Name: fmt.Sprintf("m%d-", os.Getpid()%100000), Dir: dir}
	one, other, node := newMachine(t, c, "one", 21), newMachine(t, c, "other", 22), newMachine(t, c, "node", 23)
	for _, m := range []*machine{one, other} {
		if out, err := m.up(m.first(nil)...); err != nil {
			t.Fatal(err, out)
		}
	}
	join := func(url string, flags ...string) (string, error) {
		return node.run("join", append([]string{url, "--detach", "--node-name", "node", "--node-ip", node.ip}, flags...)...)
	}
	if out, err := join(one.url(), one.invite().invitation.with()...); err != nil {
		t.Fatal(err, out)
	}
	one.deploy("before", "node")
	if out, err := join(other.url()); err == nil || !strings.Contains(err.Error(), "run `plimsoll down` first") {
		t.Errorf("join of a node that runs: %v\n%s", err, out)
	}
	for _, m := range []*machine{node, one} {
		if out, err := m.run("down"); err != nil {
			t.Fatal(err, out)
		}
	}

	moved := "https://" + one.ip + ":7444"
	out, err := one.up(one.first([]string{"--apiserver-port", "7444"})...)
	if err != nil {
		t.Fatal(err, out)
	}
	want := "of the nodes node that are no servers run `plimsoll down`, then `plimsoll join " + moved
	if !strings.Contains(out, want) || !strings.Contains(out, one.url()) {
		t.Errorf("up with another port: want %q and %s:\n%s", want, one.url(), out)
	}
	for _, c := range []struct {
		url, want string
		flags     []string
	}{
		{other.url(), "certificate", nil},
		{other.url(), "certificate", other.invite().invitation.with()}, // no reason to leave the cluster
		{"https://" + one.ip + ":7445", "connect", nil},                // nothing listens there
	} {
		if out, err := join(c.url, c.flags...); err == nil || !strings.Contains(err.Error(), c.want) ||
			!strings.Contains(err.Error(), "belongs to a node of "+one.url()) {
			t.Errorf("join %s: %v, want %q\n%s", c.url, err, c.want, out)
		}
	}
	if out, err := join(moved); err != nil {
		t.Fatal(err, out)
	}
	one.eventually(time.Minute, "the node is Ready again", "True", "get", "node", "node", "-o", readyOf)
	one.deploy("after", "node")
	if out, err := node.run("status"); err != nil || !strings.Contains(out, moved+", ready") {
		t.Errorf("the node does not use the new URL: %v\n%s", err, out)
	}
}
