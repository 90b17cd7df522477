package cluster

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	utilversion "k8s.io/apimachinery/pkg/util/version"

	"github.com/plimsoll-dev/plimsoll/internal/version"
)

func TestCheckUpgrade(t *testing.T) {
	for _, c := range []struct {
		from, to string
		want     string // in the error; empty: it is allowed
	}{
		{"v1.36.3", "v1.36.3", ""},
		{"v1.36.3", "v1.36.4", ""},
		{"v1.36.4", "v1.36.3", ""},
		{"v1.36.3", "v1.37.0", ""},
		{"v1.37.0", "v1.36.3", "run a plimsoll of v1.37 or newer"},
		{"v1.36.3", "v1.38.0", "one minor release at a time"},
		{"v2.0.0", "v1.36.3", "run a plimsoll of v2.0 or newer"},
		{"v1.37.0-beta.1", "v1.36.3", "v1.37.0-beta.1 of Kubernetes ran here"},
	} {
		err := checkUpgrade(utilversion.MustParseSemantic(c.from), utilversion.MustParseSemantic(c.to))
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s to %s: %v, want %q", c.from, c.to, err, c.want)
		}
	}
}

// TestCheckVersion: the saved version is accepted, and so is an instance from before there was a file. Another text is
// an error that names the file.
func TestCheckVersion(t *testing.T) {
	l := layout{Options{StateDir: t.TempDir()}}
	if err := l.checkVersion(); err != nil {
		t.Errorf("without a file: %v", err)
	}
	if err := l.saveVersion(); err != nil {
		t.Fatal(err)
	}
	if err := l.checkVersion(); err != nil {
		t.Errorf("after %s was saved: %v", version.Kubernetes, err)
	}
	for _, text := range []string{"", "new\n", "v1.37.0\n", strings.Repeat("9", 4096)} {
		if err := os.WriteFile(l.version(), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := l.checkVersion(); err == nil || !strings.Contains(err.Error(), l.o.StateDir) {
			t.Errorf("%.20q: %v", text, err)
		}
	}
}

func TestSameContent(t *testing.T) {
	dir := t.TempDir()
	file := func(name string, content []byte) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, content, 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	long := bytes.Repeat([]byte("program"), 500_000) // more than one part
	changed := bytes.Clone(long)
	changed[len(changed)-1]++
	a := file("a", long)
	for name, c := range map[string]struct {
		other string
		want  bool
	}{
		"itself":          {a, true},
		"a copy":          {file("copy", long), true},
		"another end":     {file("changed", changed), false},
		"shorter":         {file("shorter", long[:1<<20]), false},
		"an empty file":   {file("empty", nil), false},
		"what is missing": {filepath.Join(dir, "none"), false},
	} {
		if same, err := sameContent(a, c.other); same != c.want || (err != nil) != (name == "what is missing") {
			t.Errorf("%s: %v, %v", name, same, err)
		}
	}
}

// TestOtherBuild: only `up` of another program counts; `down`, this program, and a process that cannot be read do not.
func TestOtherBuild(t *testing.T) {
	proc := t.TempDir()
	process := func(name, exe, cmdline string) {
		dir := filepath.Join(proc, name)
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		for file, content := range map[string]string{"exe": exe, "cmdline": cmdline} {
			if err := os.WriteFile(filepath.Join(dir, file), []byte(content), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	process("self", "this", "plimsoll\x00up\x00")
	for i, c := range []struct {
		exe, cmdline string
		want         bool
	}{
		{"other", "plimsoll\x00up\x00--detach\x00", true},
		{"this", "plimsoll\x00up\x00", false},
		{"other", "plimsoll\x00down\x00", false},
		{"other", "", false},
	} {
		process(fmt.Sprint(i), c.exe, c.cmdline)
		if got := otherBuild(proc, i); got != c.want {
			t.Errorf("%q: %v", c.cmdline, got)
		}
	}
	if otherBuild(proc, 99) {
		t.Error("a process that has ended is another build")
	}
}
