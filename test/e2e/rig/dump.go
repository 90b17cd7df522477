//go:build e2e

package rig

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// How much of a log is printed when tests failed, in bytes (chosen): the reason is more often in our logs, and most
// often in the lines about the failed test's pods. The end of a failed run's output should still contain the test's own
// messages.
const (
	dumpOurs   = 3 << 10
	dumpTheirs = 512
	dumpOfTest = 6 << 10
)

// ours are the logs of our own processes.
var ours = []string{"agent.log", "scheduler.log", "lifecycle.log", "supervisor.log"}

// dumpNamespace prints the objects in a failed test's namespace, and log lines about it.
func (c *Cluster) dumpNamespace(t *testing.T, namespace string) {
	for _, args := range [][]string{
		{"get", "pods", "-o", "wide"},
		{"get", "pods", "-o", `jsonpath={range .items[*]}{.metadata.name}{": "}{.status}{"\n"}{end}`},
		{"get", "events", "--sort-by=.metadata.creationTimestamp", "-o",
			`jsonpath={range .items[*]}{.lastTimestamp}{" "}{.type}{" "}{.reason}{" "}{.involvedObject.name}{": "}{.message}{"\n"}{end}`},
	} {
		out, err := c.TryKubectl(t, append(args, "--namespace", namespace)...)
		t.Logf("kubectl %s\n%s", strings.Join(args[:2], " "), out)
		if err != nil {
			t.Log(err)
		}
	}
	for _, name := range ours {
		text, err := os.ReadFile(filepath.Join(filepath.Dir(c.LogFile("x")), name))
		if err != nil {
			continue // this instance has no such log
		}
		var said strings.Builder
		for line := range strings.Lines(string(text)) {
			if strings.Contains(line, namespace) {
				said.WriteString(line)
			}
		}
		if said.Len() > 0 {
			t.Logf("%s of %s\n%s", name, namespace, said.String()[max(0, said.Len()-dumpOfTest):])
		}
	}
}

// dumpLogs prints the ends of the logs of all processes of the instance.
func (c *Cluster) dumpLogs(w io.Writer) {
	logs, err := filepath.Glob(c.LogFile("*"))
	if err != nil {
		fmt.Fprintln(w, err)
	}
	for _, path := range logs {
		text, err := os.ReadFile(path)
		if err != nil {
			fmt.Fprintln(w, err)
			continue
		}
		tail := dumpTheirs
		if slices.Contains(ours, filepath.Base(path)) {
			tail = dumpOurs
		}
		fmt.Fprintf(w, "\n=== %s\n%s\n", path, text[max(0, len(text)-tail):])
	}
	if keep := os.Getenv("PLIMSOLL_E2E_KEEP_LOGS"); keep != "" {
		if err := os.CopyFS(keep, os.DirFS(filepath.Dir(c.LogFile("x")))); err != nil {
			fmt.Fprintln(w, err)
		}
	}
}
