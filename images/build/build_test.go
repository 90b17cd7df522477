package main

import (
	"archive/tar"
	"bytes"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/plimsoll-dev/plimsoll/internal/image"
)

// programs makes two files that stand for programs, with the given modification time.
func programs(t *testing.T, modified time.Time) (pause, workload string) {
	t.Helper()
	dir := t.TempDir()
	pause, workload = filepath.Join(dir, "pause"), filepath.Join(dir, "workload")
	for _, path := range []string{pause, workload} {
		if err := os.WriteFile(path, []byte("program "+filepath.Base(path)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(path, modified, modified); err != nil {
			t.Fatal(err)
		}
	}
	return pause, workload
}

// TestSameProgramsSameBytes builds twice, from different paths and times.
func TestSameProgramsSameBytes(t *testing.T) {
	var built [2][]byte
	for n := range built {
		pause, workload := programs(t, time.Unix(int64(1e9*n), 0))
		out := t.TempDir()
		if err := run([]recipe{pauseRecipe(pause), workloadRecipe(workload), addonRecipe(workload, "coredns",
			image.CoreDNSFile, image.CoreDNS)}, out, "amd64"); err != nil {
			t.Fatal(err)
		}
		for _, file := range []string{image.PauseFile, image.WorkloadFile, image.CoreDNSFile} {
			content, err := os.ReadFile(filepath.Join(out, file))
			if err != nil {
				t.Fatal(err)
			}
			built[n] = append(built[n], content...)
		}
	}
	if !bytes.Equal(built[0], built[1]) {
		t.Error("two builds of the same programs differ")
	}
}

// TestArchiveSaysWhatItIs reads archives with the product's code.
func TestArchiveSaysWhatItIs(t *testing.T) {
	pause, workload := programs(t, time.Now())
	out := t.TempDir()
	if err := run([]recipe{pauseRecipe(pause), workloadRecipe(workload), addonRecipe(workload, "coredns",
		image.CoreDNSFile, image.CoreDNS)}, out, "amd64"); err != nil {
		t.Fatal(err)
	}
	ids := map[string]bool{}
	for file, names := range map[string][]string{image.PauseFile: {image.Pause}, image.WorkloadFile: {image.Workload,
		image.Demo}, image.CoreDNSFile: {image.CoreDNS}} {
		archive, err := image.Read(filepath.Join(out, file))
		if err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(archive.Names, names) || !strings.HasPrefix(archive.ID, "sha256:") || ids[archive.ID] {
			t.Errorf("%s: names %v id %s; want names %v and an id of its own", file, archive.Names, archive.ID, names)
		}
		ids[archive.ID] = true
	}
}

// TestWorkloadFiles checks for files that kubectl cp and volume tests need.
func TestWorkloadFiles(t *testing.T) {
	_, workload := programs(t, time.Now())
	layer, err := workloadRecipe(workload).layer()
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]string{}
	in := tar.NewReader(bytes.NewReader(layer))
	for {
		h, err := in.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if h.Uid != 0 || h.Gid != 0 || !h.ModTime.IsZero() && h.ModTime.Unix() != 0 {
			t.Errorf("%s: owner %d:%d time %s, want 0:0 and none", h.Name, h.Uid, h.Gid, h.ModTime)
		}
		found[h.Name] = h.FileInfo().Mode().String() + " " + h.Linkname
	}
	for name, want := range map[string]string{
		"workload": "-rwxr-xr-x ", "bin/tar": "Lrwxrwxrwx /workload", "bin/test": "Lrwxrwxrwx /workload",
		"tmp/": "dtrwxrwxrwx ", "etc/passwd": "-rw-r--r-- ",
	} {
		if found[name] != want {
			t.Errorf("%s is %q, want %q", name, found[name], want)
		}
	}
}
