package image

import (
	"archive/tar"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/plimsoll-dev/plimsoll/test/cost"
)

// TestReadSaysWhatIsWrong reads archives that are not ours.
func TestReadSaysWhatIsWrong(t *testing.T) {
	const entry = `{"digest":"sha256:aa","annotations":{"io.containerd.image.name":"x/y:1"}}`
	for name, c := range map[string]struct {
		files map[string]string
		want  string
	}{
		"docker archive": {map[string]string{"manifest.json": "[]"}, "index.json: not in the archive"},
		"broken index":   {map[string]string{"index.json": "{"}, "index.json: unexpected end"},
		"empty index":    {map[string]string{"index.json": "{}"}, "no manifest"},
		"no name":        {map[string]string{"index.json": `{"manifests":[{"digest":"sha256:aa"}]}`}, "manifest 0: no annotation io.containerd.image.name"},
		"two images":     {map[string]string{"index.json": `{"manifests":[` + entry + `,` + strings.Replace(entry, "aa", "bb", 1) + `]}`}, "want one image"},
		"no blob":        {map[string]string{"index.json": `{"manifests":[` + entry + `]}`}, "blobs/sha256/aa: not in the archive"},
		"no config":      {map[string]string{"index.json": `{"manifests":[` + entry + `]}`, "blobs/sha256/aa": "{}"}, "no config digest"},
	} {
		path := filepath.Join(t.TempDir(), "image.tar")
		writeTar(t, path, c.files)
		_, err := Read(path)
		if err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: error %v, want the path and %q", name, err, c.want)
		}
	}
}

func writeTar(t *testing.T, path string, files map[string]string) {
	t.Helper()
	file, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	out := tar.NewWriter(file)
	for name, text := range files {
		if err := out.WriteHeader(&tar.Header{Name: name, Size: int64(len(text)), Typeflag: tar.TypeReg, Mode: 0o644}); err != nil {
			t.Fatal(err)
		}
		if _, err := out.Write([]byte(text)); err != nil {
			t.Fatal(err)
		}
	}
	if err := out.Close(); err != nil {
		t.Fatal(err)
	}
}

func FuzzRead(f *testing.F) {
	cost.Attack(f, []byte("index.json"))
	f.Fuzz(func(t *testing.T, content []byte) {
		defer cost.Spend(t, len(content))()
		path := filepath.Join(t.TempDir(), "image.tar")
		if err := os.WriteFile(path, content, 0o600); err != nil {
			t.Fatal(err)
		}
		if archive, err := Read(path); err == nil && (len(archive.Names) == 0 || archive.ID == "") {
			t.Errorf("an archive without name or id passed: %+v", archive)
		}
	})
}
