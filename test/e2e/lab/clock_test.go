//go:build e2e && lab

package lab

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/plimsoll-dev/plimsoll/lab"
	"github.com/plimsoll-dev/plimsoll/test/e2e/rig"
)

// TestClock: a machine whose clock is an hour ahead or behind does not join. It gets both times and what to do, and
// keeps nothing of a node. With its clock set right it is a Ready node.
func TestClock(t *testing.T) {
	t.Parallel()
	const stateDir = "/var/lib/plimsoll"
	g := lab.Boot(t, "tiny", lab.Options{Name: "clock", Time: time.Now().Add(time.Hour)})
	c := rig.New(t, "clock", rig.Options{
		NoNode:  true,
		UpFlags: []string{"--bind-address", "0.0.0.0", "--node-ip", g.Host},
	})
	out, err := c.Plimsoll("token", "create", "-o", "json")
	var invitation struct {
		Token string `json:"token"`
		Hash  string `json:"discoveryTokenCACertHash"`
	}
	if err == nil {
		err = json.Unmarshal([]byte(out), &invitation)
	}
	if err != nil {
		t.Fatalf("token create: %v: %s", err, out)
	}
	_, port, err := net.SplitHostPort(strings.TrimPrefix(c.Config.Host, "https://"))
	if err != nil {
		t.Fatal(err)
	}
	const program = "/root/plimsoll-controlplane" // not in the cargo
	g.CopyIn(t, filepath.Join(filepath.Dir(rig.Binary(t)), filepath.Base(program)), program)
	join := []string{
		"plimsoll", "join", "https://" + net.JoinHostPort(g.Host, port), "--detach", "--node-name", g.Name,
		"--node-ip", g.IP, "--state-dir", stateDir, "--controlplane-binary", program, "--timeout", "5m",
		"--token", invitation.Token, "--discovery-token-ca-cert-hash", invitation.Hash,
	}
	set := func(at time.Time) { g.Run(t, "date", "--utc", "--set", fmt.Sprintf("@%d", at.Unix())) }

	for _, off := range []time.Duration{time.Hour, -time.Hour} {
		set(time.Now().Add(off))
		out, err := g.Output(t.Context(), join...)
		if err == nil {
			t.Fatalf("a machine whose clock is %v ahead joins: %s", off, out)
		}
		if got, bad := aheadOf(err.Error()); bad != nil || (got-off).Abs() > time.Minute {
			t.Errorf("with a clock that is %v ahead: it is said to be %v ahead, %v\n%v", off, got, bad, err)
		}
		if left := g.Run(t, "sh", "-c", "ls -d "+stateDir+" /run/plimsoll /sys/fs/cgroup/plimsoll* 2>/dev/null || true; "+
			"ip -o link show type bridge; pgrep -a 'plimsoll|containerd' || true"); left != "" {
			t.Errorf("with a clock that is %v ahead, the machine keeps\n%s", off, left)
		}
	}
	_, err = c.API.CoreV1().Nodes().Get(t.Context(), g.Name, metav1.GetOptions{})
	if !apierrors.IsNotFound(err) {
		t.Errorf("a machine that was refused is a node: %v", err)
	}

	set(time.Now())
	if out, err := g.Output(t.Context(), join...); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	c.WaitCondition(t, g.Name, corev1.NodeReady, corev1.ConditionTrue, unknownWithin)
	g.Run(t, "plimsoll", "down", "--purge", "--state-dir", stateDir)
}

// told is what a machine says whose clock is wrong.
var told = regexp.MustCompile(`this machine's clock says (\S+), the server's (\S+): set the one that is wrong`)

// aheadOf returns how much the machine's clock is ahead of the server's, by what it says.
func aheadOf(said string) (time.Duration, error) {
	found := told.FindStringSubmatch(said)
	if found == nil {
		return 0, errors.New("it does not name the clocks")
	}
	here, err := time.Parse(time.RFC3339, found[1])
	if err != nil {
		return 0, err
	}
	there, err := time.Parse(time.RFC3339, found[2])
	return here.Sub(there), err
}
