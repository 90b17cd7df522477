package main

import (
	"bytes"
	"slices"
	"strings"
	"testing"
)

// The name of the file has precedence over the first argument; the program gets its own name as argument zero.
func TestChoose(t *testing.T) {
	for _, c := range []struct {
		args, want string
	}{
		{"/opt/bin/plimsoll-controlplane etcd --name a", "etcd --name a"},
		{"/opt/bin/kubectl get nodes", "/opt/bin/kubectl get nodes"},
		{"kubectl etcd", "kubectl etcd"},
		{"cp kube-controller-manager", "kube-controller-manager"},
		{"cp kubelet", ""},
		{"cp", ""},
	} {
		p, args, ok := choose(strings.Fields(c.args))
		if got := strings.Join(args, " "); got != c.want || ok != (c.want != "") {
			t.Errorf("choose(%q) = %q, %q, %v, want %q", c.args, p.name, got, ok, c.want)
		}
	}
	if _, _, ok := choose(nil); ok {
		t.Error("choose(nil) found a program")
	}
}

func TestUsage(t *testing.T) {
	for _, c := range []struct {
		args           []string
		code           int
		stdout, stderr string // must appear
	}{
		{[]string{"cp"}, exitUsage, "", "no program named"},
		{[]string{"cp", "kubelet"}, exitUsage, "", `unknown program "kubelet"`},
		{[]string{"cp", "--help"}, 0, "usage:", ""},
	} {
		var stdout, stderr bytes.Buffer
		code := usage(&stdout, &stderr, c.args)
		if code != c.code || !strings.Contains(stdout.String(), c.stdout) || !strings.Contains(stderr.String(), c.stderr) {
			t.Errorf("usage(%q) = %d, stdout %q, stderr %q", c.args, code, stdout.String(), stderr.String())
		}
		if said := stdout.String() + stderr.String(); slices.ContainsFunc(programs,
			func(p program) bool { return !strings.Contains(said, p.name) }) {
			t.Errorf("usage(%q) does not list every program: %s", c.args, said)
		}
	}
}
