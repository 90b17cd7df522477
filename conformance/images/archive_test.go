package main

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"

	oci "github.com/opencontainers/image-spec/specs-go/v1"
)

// TestArchive reads an archive of two images: each name refers to a manifest, that to its configuration and layers, and
// shared blobs are there once.
func TestArchive(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "program"), []byte("ELF"), 0o4755); err != nil {
		t.Fatal(err)
	}
	shared := newLayer()
	shared.dir("tmp", 0o1777)
	shared.tree(dir)
	lower, err := shared.blob()
	if err != nil {
		t.Fatal(err)
	}
	one, err := newImage([]string{"a.test/x:1", "a.test/x:2"}, oci.ImageConfig{User: "1234"}, lower)
	if err != nil {
		t.Fatal(err)
	}
	two, err := newImage([]string{"a.test/y:1"}, oci.ImageConfig{}, lower)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "images.tar")
	if err := writeArchive(path, []image{one, two}); err != nil {
		t.Fatal(err)
	}
	files := readTar(t, path)
	var index oci.Index
	decode(t, files, "index.json", &index)
	users := map[string]string{}
	for _, entry := range index.Manifests {
		var manifest oci.Manifest
		decode(t, files, "blobs/sha256/"+entry.Digest.Encoded(), &manifest)
		var config oci.Image
		decode(t, files, "blobs/sha256/"+manifest.Config.Digest.Encoded(), &config)
		users[entry.Annotations[nameAnnotation]] = config.Config.User
		for _, l := range manifest.Layers {
			if got := files["blobs/sha256/"+l.Digest.Encoded()]; !bytes.Equal(got, lower.content) {
				t.Errorf("%s: layer of %d bytes, want %d", entry.Annotations[nameAnnotation], len(got), len(lower.content))
			}
		}
	}
	if len(users) != 3 || users["a.test/x:2"] != "1234" || users["a.test/y:1"] != "" {
		t.Errorf("users by image are %v", users)
	}
	if want := 2 + 1 + 2*2; len(files) != want { // layout and index, one layer, two manifests and configurations
		t.Errorf("%d files in the archive, want %d", len(files), want)
	}
}

// TestMissingSource: a layer with a missing part is an error.
func TestMissingSource(t *testing.T) {
	l := newLayer()
	l.file("x", 0o755, filepath.Join(t.TempDir(), "nothing"))
	l.text("y", "more")
	if _, err := l.blob(); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("error %v does not say what is missing", err)
	}
}

func decode(t *testing.T, files map[string][]byte, name string, into any) {
	t.Helper()
	if err := json.Unmarshal(files[name], into); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
}

func readTar(t *testing.T, path string) map[string][]byte {
	t.Helper()
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	files := map[string][]byte{}
	in := tar.NewReader(file)
	for {
		header, err := in.Next()
		if err == io.EOF {
			return files
		}
		if err != nil {
			t.Fatal(err)
		}
		if _, twice := files[header.Name]; twice {
			t.Errorf("%s is in the archive twice", header.Name)
		}
		if files[header.Name], err = io.ReadAll(in); err != nil {
			t.Fatal(err)
		}
	}
}
