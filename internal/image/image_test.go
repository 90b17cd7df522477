package image

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"fmt"
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
		"no image": {map[string]string{"README": "[]"},
			"index.json: not in the archive, nor is manifest.json: want an image as docker save"},
		"nothing saved": {map[string]string{"manifest.json": "[]"}, "manifest.json: no image"},
		"saved by id": {map[string]string{"manifest.json": `[{"Config":"aa.json","RepoTags":null}]`},
			"save it by its name, not by its id"},
		"broken index": {map[string]string{"index.json": "{"}, "index.json: unexpected end"},
		"empty index":  {map[string]string{"index.json": "{}"}, "no manifest"},
		"no name": {map[string]string{"index.json": `{"manifests":[{"digest":"sha256:aa"}]}`},
			"manifest 0: the image has no name"},
		"a tag alone": {map[string]string{
			"index.json": `{"manifests":[{"digest":"sha256:aa","annotations":{"org.opencontainers.image.ref.name":"latest"}}]}`,
		},
			"manifest 0: the image has no name"},
		"two images": {map[string]string{"index.json": `{"manifests":[` + entry + `,` + strings.Replace(entry, "aa", "bb",
			1) + `]}`,
			"blobs/sha256/aa": `{"config":{"digest":"sha256:cc"}}`, "blobs/sha256/bb": `{"config":{"digest":"sha256:dd"}}`},
			"want one image"},
		"of each platform": {map[string]string{"index.json": `{"manifests":[` + entry + `]}`,
			"blobs/sha256/aa": `{"manifests":[{}]}`}, "for one platform"},
		"no blob": {map[string]string{"index.json": `{"manifests":[` + entry + `]}`},
			"blobs/sha256/aa: not in the archive"},
		"no config": {map[string]string{"index.json": `{"manifests":[` + entry + `]}`, "blobs/sha256/aa": "{}"},
			"no config digest"},
	} {
		path := filepath.Join(t.TempDir(), "image.tar")
		writeTar(t, path, c.files)
		_, err := Read(path)
		if err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: error %v, want the path and %q", name, err, c.want)
		}
	}
}

// TestScan reads archives of every form, compressed and not.
func TestScan(t *testing.T) {
	const entries = `{"digest":"sha256:aa","annotations":{"io.containerd.image.name":"docker.io/library/app:1","org.opencontainers.image.ref.name":"1"}},
		{"digest":"sha256:bb","annotations":{"org.opencontainers.image.ref.name":"localhost/app:2"}}`
	for name, c := range map[string]struct {
		files map[string]string
		want  string
	}{
		"OCI layout": {map[string]string{"./index.json": `{"manifests":[` + entries + `]}`,
			"blobs/sha256/aa": `{"config":{"digest":"sha256:cc"}}`,
			"blobs/sha256/bb": `{"manifests":[{"digest":"sha256:dd"}]}`},
			"[{docker.io/library/app:1 sha256:cc} {localhost/app:2 }]"},
		"docker's form": {map[string]string{"manifest.json": `[{"Config":"cc.json","RepoTags":["app:1","app:2"]}]`},
			"[{app:1 sha256:cc} {app:2 sha256:cc}]"},
		"both, as docker 25 writes": {map[string]string{"index.json": `{"manifests":[` + entries[:strings.Index(entries,
			"}},")+2] + `]}`,
			"blobs/sha256/aa": `{"config":{"digest":"sha256:cc"}}`,
			"manifest.json":   `[{"Config":"blobs/sha256/cc","RepoTags":["app:1"]}]`}, "[{docker.io/library/app:1 sha256:cc}]"},
	} {
		plain := filepath.Join(t.TempDir(), "image.tar")
		writeTar(t, plain, c.files)
		text, err := os.ReadFile(plain)
		if err != nil {
			t.Fatal(err)
		}
		var packed bytes.Buffer
		w := gzip.NewWriter(&packed)
		if _, err := w.Write(text); err != nil {
			t.Fatal(err)
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(plain+".gz", packed.Bytes(), 0o600); err != nil {
			t.Fatal(err)
		}
		for _, path := range []string{plain, plain + ".gz"} {
			if images, err := scanFile(path); err != nil || fmt.Sprint(images) != c.want {
				t.Errorf("%s, %s: %v, %v, want %s", name, filepath.Base(path), images, err, c.want)
			}
		}
		if _, err := Open(filepath.Dir(plain)); err == nil {
			t.Error("a directory was opened")
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
		if err := out.WriteHeader(&tar.Header{Name: name, Size: int64(len(text)), Typeflag: tar.TypeReg,
			Mode: 0o644}); err != nil {
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
