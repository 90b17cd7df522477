package main

import (
	"slices"
	"testing"
)

func TestWithoutSecrets(t *testing.T) {
	for _, c := range []struct{ args, want []string }{
		{[]string{"join", "x", "--token", "a.b", "--detach"}, []string{"join", "x", "--detach"}},
		{[]string{"join", "--token=a.b", "x"}, []string{"join", "x"}},
		{[]string{"join", "--token=a.b", "--token", "c.d", "x"}, []string{"join", "x"}},
		{[]string{"join", "x", "--token"}, []string{"join", "x", "--token"}},
		{[]string{"join", "x"}, []string{"join", "x"}},
		{[]string{"up", "--certificate-key", "k", "--token", "a.b", "--detach"}, []string{"up", "--detach"}},
		{[]string{"--certificate-key=k", "--token-file=f"}, []string{"--token-file=f"}},
	} {
		if got := withoutSecrets(c.args); !slices.Equal(got, c.want) {
			t.Errorf("%q: %q, want %q", c.args, got, c.want)
		}
	}
}
