package main

import (
	"reflect"
	"strings"
	"testing"

	"github.com/plimsoll-dev/plimsoll/internal/cluster"
)

// The help of every verb has an example that begins with the verb's own name.
func TestEveryVerbHasAnExample(t *testing.T) {
	for _, c := range newRootCommand().Commands() {
		if c.Hidden || c.Name() == "help" || c.Name() == "completion" {
			continue
		}
		if !strings.Contains(c.Example, "plimsoll "+c.Name()) {
			t.Errorf("plimsoll %s --help has no example of itself: %q", c.Name(), c.Example)
		}
		if c.Short == "" || strings.HasSuffix(c.Short, ".") {
			t.Errorf("plimsoll %s: short help %q: want a phrase without a full stop", c.Name(), c.Short)
		}
	}
}

// Our two flags come first; all that follows is kubectl's, whatever it looks like.
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
