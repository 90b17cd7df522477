package selinux

import (
	"strings"
	"testing"
)

// TestFileLabel: with SELinux a label has the level that was asked for; without it there is none.
func TestFileLabel(t *testing.T) {
	got, err := FileLabel("", "", "", "s0:c1,c2")
	if err != nil {
		t.Fatal(err)
	}
	if want := Enabled(); strings.HasSuffix(got, ":s0:c1,c2") != want || (got != "") != want {
		t.Errorf("label %q, with SELinux: %v", got, want)
	}
}
