package main

import (
	"reflect"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/plimsoll-dev/plimsoll/internal/cluster"
)

// TestEveryVerbExplainsItself checks the help of every verb: each exists once, has a short and a long description, an
// example with a whole command line, and a text for each of its flags.
func TestEveryVerbExplainsItself(t *testing.T) {
	seen := map[string]bool{}
	var walk func(c *cobra.Command)
	walk = func(c *cobra.Command) {
		for _, verb := range c.Commands() {
			path := verb.CommandPath()
			if seen[path] {
				t.Errorf("%s: added twice", path)
			}
			seen[path] = true
			if verb.Short == "" || strings.HasSuffix(verb.Short, ".") {
				t.Errorf("%s: short help %q: want a phrase without a full stop", path, verb.Short)
			}
			if verb.Long == "" {
				t.Errorf("%s: no long help: say what it does, to what, and what it leaves alone", path)
			}
			if !strings.Contains(verb.Example, path) {
				t.Errorf("%s: Example %q does not show a command line with it", path, verb.Example)
			}
			verb.Flags().VisitAll(func(f *pflag.Flag) {
				if f.Usage == "" {
					t.Errorf("%s --%s: no help text", path, f.Name)
				}
			})
			walk(verb)
		}
	}
	walk(newRootCommand())
	if len(seen) == 0 {
		t.Fatal("no verbs")
	}
}

// Our two flags come first; all further arguments are for kubectl, whatever they look like.
func TestSplitKubectlArgs(t *testing.T) {
	for _, c := range []struct {
		args, instance, stateDir, rest string
		bad                            bool
	}{
		{"get nodes", "", "", "get nodes", false},
		{"--instance a get nodes", "a", "", "get nodes", false},
		{"--instance=a --state-dir /d get", "a", "/d", "get", false},
		{"get --instance a", "", "", "get --instance a", false},
		{"-n x get pods", "", "", "-n x get pods", false},
		{"--instance", "", "", "", true},
	} {
		o, rest, err := splitKubectlArgs(strings.Fields(c.args))
		want := cluster.Options{Instance: c.instance, StateDir: c.stateDir}
		if (err != nil) != c.bad || err == nil && (!reflect.DeepEqual(o, want) || strings.Join(rest, " ") != c.rest) {
			t.Errorf("%q: %+v, %q, %v", c.args, o, rest, err)
		}
	}
}

// TestExitCodes checks the exit codes that scripts rely on: 0 done, 1 failed, 2 bad usage or input.
func TestExitCodes(t *testing.T) {
	for _, c := range []struct {
		args string
		want int
	}{
		{"version", 0},
		{"no-such-verb", 2},
		{"version surplus", 2},
		{"version --no-such-flag", 2},
		{"scheduler", 2},
		{"top everything", 2},
		{"top --sort colour", 2},
		{"top pods --node n1", 2},
		{"top --every 0s", 2},
		{"agent", 2},
		{"kubeconfig --state-dir " + t.TempDir(), 1}, // no cluster there
		{"agent --kubeconfig k --config " + t.TempDir() + "/absent.yaml", 2},
		{"scheduler --kubeconfig " + t.TempDir() + "/absent", 2},
		{"shadow --kubeconfig " + t.TempDir() + "/absent", 2},
		{"shadow --kubeconfig k --for -1s", 2},
		{"shadow --kubeconfig k --node-monitor-grace-period 0s", 2},
		{"shadow --kubeconfig k --config " + t.TempDir() + "/absent.yaml", 2},
	} {
		if got := exitCode(run(t.Context(), strings.Fields(c.args))); got != c.want {
			t.Errorf("plimsoll %s: exit code %d, want %d", c.args, got, c.want)
		}
	}
}
