package containerruntime

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/plimsoll-dev/plimsoll/internal/image"
)

// TestUserImages loads archives of several forms, runs a container from one, lists the images and removes them.
func TestUserImages(t *testing.T) {
	r := startTestInstance(t, newTestInstance(t, 12, Options{}))
	source := readWorkload(t, r.options.ImageDir)
	dir := t.TempDir()
	layout, saved := filepath.Join(dir, "layout.tar.gz"), filepath.Join(dir, "saved.tar")
	writeArchive(t, layout, source.layout("localhost/plain:1"), true)
	writeArchive(t, saved, source.saved("localhost/saved:1", "localhost/saved:2"), false)

	for path, names := range map[string][]string{layout: {"localhost/plain:1"}, saved: {"localhost/saved:1",
		"localhost/saved:2"}} {
		for range 2 { // it may be repeated
			images, err := r.Import(testContext(t), path)
			if err != nil {
				t.Fatal(err)
			}
			if len(images) != 1 || !slices.Equal(images[0].Names, names) {
				t.Fatalf("%s: loaded %+v, want one image with the names %v", filepath.Base(path), images, names)
			}
		}
		all, err := r.Images(testContext(t))
		if err != nil {
			t.Fatal(err)
		}
		if !slices.ContainsFunc(all, func(i Image) bool { return slices.Equal(i.Names, names) && i.Bytes > 0 }) {
			t.Errorf("%v are not among %+v", names, all)
		}
	}

	r.image = "localhost/saved:2"
	id := r.container(t, r.pod(t, "one"), "one", "http")
	if got := r.exec(t, id, "cat", "/etc/passwd"); !strings.HasPrefix(got, "root:x:0:0") {
		t.Errorf("cat in a container of a loaded image answered %q", got)
	}
	for name, want := range map[string]string{
		"localhost/saved:1": "container one of pod", // by another of its names
		image.Pause:         "every pod needs it",
		"localhost/none:1":  "the runtime has no such image",
	} {
		if _, err := r.RemoveImage(testContext(t), name); err == nil || !strings.Contains(err.Error(), want) ||
			!strings.Contains(err.Error(), name) {
			t.Errorf("remove %s: %v, want its name and %q", name, err, want)
		}
	}
	removed, err := r.RemoveImage(testContext(t), "localhost/plain:1")
	if err != nil || !slices.Equal(removed.Names, []string{"localhost/plain:1"}) {
		t.Errorf("removed %+v: %v", removed, err)
	}
	if _, err := r.RemoveImage(testContext(t), "localhost/plain:1"); err == nil {
		t.Error("an image was removed twice")
	}
}

// TestNoImage loads what is no image: the error says the file and what is wrong with it, and nothing is loaded.
func TestNoImage(t *testing.T) {
	r := startTestInstance(t, newTestInstance(t, 13, Options{}))
	source, dir := readWorkload(t, r.options.ImageDir), t.TempDir()
	before, err := r.Images(testContext(t))
	if err != nil {
		t.Fatal(err)
	}
	at := func(name string) string { return filepath.Join(dir, name) }
	if err := os.WriteFile(at("text"), bytes.Repeat([]byte("no image\n"), 1000), 0o600); err != nil {
		t.Fatal(err)
	}
	writeArchive(t, at("cut"), source.layout("localhost/cut:1"), false)
	if err := os.Truncate(at("cut"), 100_000); err != nil {
		t.Fatal(err)
	}
	hollow := source.layout("localhost/hollow:1")
	for name := range hollow {
		if len(hollow[name]) > 1<<20 {
			delete(hollow, name) // its layer
		}
	}
	writeArchive(t, at("hollow"), hollow, false)
	for name, want := range map[string]string{
		"text": "read it as tar", "cut": "unexpected EOF", "hollow": "not in the archive", "missing": "no such file",
		".": "is a directory",
	} {
		if _, err := r.Import(testContext(t), at(name)); err == nil || !strings.Contains(err.Error(), want) ||
			!strings.Contains(err.Error(), at(name)) {
			t.Errorf("load %s: %v, want its path and %q", name, err, want)
		}
	}
	after, err := r.Images(testContext(t))
	if err != nil || len(after) != len(before) {
		t.Errorf("images after: %+v, before: %+v: %v", after, before, err)
	}
}

// A workload is the workload image's parts.
type workload struct {
	config map[string]any
	layer  []byte
}

func readWorkload(t *testing.T, dir string) workload {
	t.Helper()
	file, err := os.Open(filepath.Join(dir, image.WorkloadFile))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	w := workload{}
	for in := tar.NewReader(file); ; {
		_, err := in.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		content, err := io.ReadAll(in)
		if err != nil {
			t.Fatal(err)
		}
		if len(content) > 1<<20 {
			w.layer = content
		} else if w.config == nil && (json.Unmarshal(content, &w.config) != nil || w.config["rootfs"] == nil) {
			w.config = nil // another description
		}
	}
	if w.config == nil || w.layer == nil {
		t.Fatalf("%s has no configuration or no layer of more than 1 MiB", file.Name())
	}
	return w
}

// configured returns the image's configuration, with an ID that no other author's has.
func (w workload) configured(author string) []byte {
	w.config["author"] = author
	return marshal(w.config)
}

// layout returns an OCI layout with the image under a name.
func (w workload) layout(name string) map[string][]byte {
	config := w.configured(name)
	describe := func(kind string, content []byte) map[string]any {
		return map[string]any{"mediaType": "application/vnd.oci.image." + kind, "digest": "sha256:" + sum(content),
			"size": len(content)}
	}
	manifest := marshal(map[string]any{"schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json",
		"config": describe("config.v1+json", config), "layers": []any{describe("layer.v1.tar", w.layer)}})
	entry := describe("manifest.v1+json", manifest)
	entry["annotations"] = map[string]string{"org.opencontainers.image.ref.name": name}
	return map[string][]byte{
		"oci-layout":                    []byte(`{"imageLayoutVersion":"1.0.0"}`),
		"index.json":                    marshal(map[string]any{"schemaVersion": 2, "manifests": []any{entry}}),
		"blobs/sha256/" + sum(manifest): manifest,
		"blobs/sha256/" + sum(config):   config,
		"blobs/sha256/" + sum(w.layer):  w.layer,
	}
}

// saved returns the image under its names in the form of docker save.
func (w workload) saved(names ...string) map[string][]byte {
	config := w.configured(names[0])
	layer := sum(w.layer) + "/layer.tar"
	return map[string][]byte{
		"manifest.json": marshal([]any{map[string]any{"Config": sum(config) + ".json", "RepoTags": names,
			"Layers": []string{layer}}}),
		sum(config) + ".json": config,
		layer:                 w.layer,
	}
}

func sum(content []byte) string {
	digest := sha256.Sum256(content)
	return hex.EncodeToString(digest[:])
}

func marshal(value any) []byte {
	text, err := json.Marshal(value)
	if err != nil {
		panic(err)
	}
	return text
}

// writeArchive writes files as a tar in the order of their names.
func writeArchive(t *testing.T, path string, files map[string][]byte, compress bool) {
	t.Helper()
	var out bytes.Buffer
	archive := tar.NewWriter(&out)
	names := make([]string, 0, len(files))
	for name := range files {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		if err := archive.WriteHeader(&tar.Header{Name: name, Size: int64(len(files[name])), Typeflag: tar.TypeReg,
			Mode: 0o644}); err != nil {
			t.Fatal(err)
		}
		if _, err := archive.Write(files[name]); err != nil {
			t.Fatal(err)
		}
	}
	if err := archive.Close(); err != nil {
		t.Fatal(err)
	}
	content := out.Bytes()
	if compress {
		var packed bytes.Buffer
		w := gzip.NewWriter(&packed)
		if _, err := w.Write(content); err != nil {
			t.Fatal(err)
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		content = packed.Bytes()
	}
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
}
