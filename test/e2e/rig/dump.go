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

// How much of a log is shown when tests failed (chosen): the reason is more often in ours.
const (
	dumpOurs   = 12 << 10
	dumpTheirs = 1 << 10
)

// dumpNamespace shows what a failed test leaves.
func (c *Cluster) dumpNamespace(t *testing.T, namespace string) {
	for _, args := range [][]string{
		{"get", "pods", "-o", "wide"},
		{"get", "pods", "-o", `jsonpath={range .items[*]}{.metadata.name}{": "}{.status}{"\n"}{end}`},
		{"get", "events", "--sort-by=.metadata.creationTimestamp", "-o", `jsonpath={range .items[*]}{.lastTimestamp}{" "}{.type}{" "}{.reason}{" "}{.involvedObject.name}{": "}{.message}{"\n"}{end}`},
	} {
		out, err := c.TryKubectl(t, append(args, "--namespace", namespace)...)
		t.Logf("kubectl %s\n%s", strings.Join(args[:2], " "), out)
		if err != nil {
			t.Log(err)
		}
	}
}

// dumpLogs shows the ends of all logs of the instance's processes.
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
		if slices.Contains([]string{"agent.log", "scheduler.log", "lifecycle.log", "supervisor.log"}, filepath.Base(path)) {
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
