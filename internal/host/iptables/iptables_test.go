package iptables

import (
	"errors"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// inNamespace puts this test, and what it starts, into a network namespace of its own, which has no rules.
func inNamespace(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: changes netfilter")
	}
	runtime.LockOSThread() // the thread ends with the test, since it is never unlocked
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		t.Skipf("needs a network namespace: %v", err)
	}
}

func TestChains(t *testing.T) {
	inNamespace(t)
	for _, open := range []func() (*Tables, error){OpenIPv4, OpenIPv6} {
		tables, err := open()
		if errors.Is(err, ErrMissing) {
			t.Skip(err)
		} else if err != nil {
			t.Fatal(err)
		}
		if has, err := tables.HasChain("mangle", "A-CHAIN"); has || err != nil {
			t.Errorf("%s: a chain that nobody made: %v, %v", tables.Name(), has, err)
		}
		for range 2 { // the second time everything is there
			if err := errors.Join(
				tables.MakeChain("mangle", "A-CHAIN"),
				tables.Last("mangle", "A-CHAIN", "-p", "udp", "-j", "DROP"),
				tables.Last("mangle", "A-CHAIN", "-p", "tcp", "-j", "DROP"),
				tables.First("mangle", "A-CHAIN", "-p", "icmp", "-j", "DROP"),
			); err != nil {
				t.Fatal(err)
			}
		}
		if has, err := tables.HasChain("mangle", "A-CHAIN"); !has || err != nil {
			t.Errorf("%s: a chain that was made: %v, %v", tables.Name(), has, err)
		}
		out, err := exec.Command(tables.Name(), "-t", "mangle", "-S", "A-CHAIN").CombinedOutput()
		var order []string
		for line := range strings.Lines(string(out)) {
			if words := strings.Fields(line); len(words) > 3 && words[0] == "-A" {
				order = append(order, words[3])
			}
		}
		if got := strings.Join(order, " "); err != nil || got != "icmp udp tcp" && got != "ipv6-icmp udp tcp" {
			t.Errorf("%s: the rules are of %q, %v:\n%s", tables.Name(), got, err, out)
		}
		if err := tables.Last("mangle", "NO-SUCH-CHAIN", "-j", "DROP"); err == nil ||
			!strings.Contains(err.Error(), "NO-SUCH-CHAIN of table mangle") {
			t.Errorf("%s: a rule for a chain that is not there: %v", tables.Name(), err)
		}
	}
}

func TestMissing(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	for name, open := range map[string]func() (*Tables, error){"iptables": OpenIPv4, "ip6tables": OpenIPv6} {
		if _, err := open(); !errors.Is(err, ErrMissing) || !strings.HasPrefix(err.Error(), name) {
			t.Errorf("%s without the program: %v", name, err)
		}
	}
}
