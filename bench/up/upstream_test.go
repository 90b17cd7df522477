package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestControllersScript: only the two controllers change, every other word stays as it is, and arguments without the
// flag are refused.
func TestControllersScript(t *testing.T) {
	echo := filepath.Join(t.TempDir(), "it's echo") // prints its arguments, one a line
	script := filepath.Join(t.TempDir(), "controlplane")
	for path, text := range map[string]string{
		echo:   "#!/bin/sh\nprintf '%s\\n' \"$@\"\n",
		script: controllersScript(echo),
	} {
		if err := os.WriteFile(path, []byte(text), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	const manager = "kube-controller-manager"
	for _, c := range []struct{ given, want []string }{
		{
			[]string{manager, "--a=b c", "--controllers=*" + ownLifecycle + ",token-cleaner-controller", "--z=*"},
			[]string{manager, "--a=b c", "--controllers=*,token-cleaner-controller", "--z=*"},
		},
		{[]string{manager, "--controllers=*" + ownLifecycle}, []string{manager, "--controllers=*"}},
		{[]string{"etcd", "--a", ""}, []string{"etcd", "--a", ""}},
		{[]string{manager, "--controllers=*"}, nil},
		{[]string{manager}, nil},
	} {
		out, err := exec.Command(script, c.given...).Output()
		if want := strings.Join(c.want, "\n") + "\n"; c.want == nil && err == nil || c.want != nil && string(out) != want {
			t.Errorf("%q: %q, %v, want %q", c.given, out, err, c.want)
		}
	}
}
