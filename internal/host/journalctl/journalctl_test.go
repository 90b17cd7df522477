package journalctl

import (
	"bytes"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"
)

// TestArgs: each part of a question is one argument. Times are in UTC, whatever the time zone of the machine.
func TestArgs(t *testing.T) {
	lines, boot := 5, -1
	zone := time.FixedZone("", 3600)
	got := Query{
		Units: []string{"a", "b.service"},
		Since: time.Date(2026, 11, 20, 11, 0, 0, 0, zone),
		Until: time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC),
		Lines: &lines,
		Boot:  &boot,
		Grep:  "--x y",
	}.args()
	want := []string{"--utc", "--no-pager", "--output=short-precise", "--since=2026-11-20 10:00:00 UTC",
		"--until=2026-11-20 12:00:00 UTC", "--lines=5", "--boot=-1", "--unit=a", "--unit=b.service", "--grep=--x y"}
	if !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

func TestCheckUnit(t *testing.T) {
	for name, good := range map[string]bool{"kubelet": true, "a@b:c_d-e.service": true, "": false, "a b": false,
		"a;b":  false,
		"a\nb": false, "$(x)": false, strings.Repeat("x", 257): false} {
		if err := CheckUnit(name); (err == nil) != good {
			t.Errorf("%q: %v", name, err)
		}
	}
}

// TestProgram asks the real program of this machine. What it knows depends on the machine: a service that does not
// exist has no entry anywhere, and an argument that is wrong is an error in the program's words.
func TestProgram(t *testing.T) {
	if _, err := exec.LookPath(program); err != nil {
		t.Skip(err)
	}
	if found, err := Services(t.Context(), []string{"plimsoll-no-such-service"}); err != nil || len(found) > 0 {
		t.Errorf("%q, %v", found, err)
	}
	var out bytes.Buffer
	if err := Copy(t.Context(), &out, Query{Units: []string{"plimsoll-no-such-service"}}); err != nil {
		t.Errorf("%v: %s", err, out.String())
	}
	if err := Copy(t.Context(), &out, Query{Grep: "("}); err == nil || !strings.Contains(err.Error(), "journalctl: ") {
		t.Errorf("a pattern that is none: %v", err)
	}
}
