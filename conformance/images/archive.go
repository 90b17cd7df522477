package main

import (
	"archive/tar"
	"bytes"
	_ "crypto/sha256" // go-digest takes its algorithms from what the program links
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"runtime"

	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	oci "github.com/opencontainers/image-spec/specs-go/v1"
)

// nameAnnotation is the index annotation from which containerd takes the name of an imported image
// (containerd/images/annotations.go). There is one index entry per name.
const nameAnnotation = "io.containerd.image.name"

// A layer is a file system that is being written. A later file replaces an earlier one with the same name. The first
// error is kept and returned by blob.
type layer struct {
	out   bytes.Buffer
	files *tar.Writer
	err   error
}

func newLayer() *layer {
	l := &layer{}
	l.files = tar.NewWriter(&l.out)
	return l
}

func (l *layer) put(header tar.Header, content []byte) {
	if l.err != nil {
		return
	}
	header.Size = int64(len(content))
	err := l.files.WriteHeader(&header)
	if err == nil {
		_, err = l.files.Write(content)
	}
	if err != nil {
		l.err = fmt.Errorf("%s: %w", header.Name, err)
	}
}

func (l *layer) dir(name string, mode int64) {
	l.put(tar.Header{Typeflag: tar.TypeDir, Name: name + "/", Mode: mode}, nil)
}

func (l *layer) link(name, target string) {
	l.put(tar.Header{Typeflag: tar.TypeSymlink, Name: name, Linkname: target, Mode: 0o777}, nil)
}

func (l *layer) text(name, content string) {
	l.put(tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644}, []byte(content))
}

// file copies a file of this machine, with another mode.
func (l *layer) file(name string, mode int64, from string) {
	content, err := os.ReadFile(from)
	if err != nil && l.err == nil {
		l.err = err
	}
	l.put(tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: mode}, content)
}

// tree copies a directory of this machine, owners and modes included.
func (l *layer) tree(root string) {
	err := filepath.WalkDir(root, func(at string, _ fs.DirEntry, err error) error {
		if err != nil || at == root {
			return err
		}
		name, err := filepath.Rel(root, at)
		if err != nil {
			return err
		}
		info, err := os.Lstat(at)
		if err != nil {
			return err
		}
		target, content := "", []byte(nil)
		switch {
		case info.Mode()&fs.ModeSymlink != 0:
			target, err = os.Readlink(at)
		case info.Mode().IsRegular():
			content, err = os.ReadFile(at)
		}
		if err != nil {
			return err
		}
		from, err := tar.FileInfoHeader(info, target)
		if err != nil {
			return err
		}
		header := tar.Header{
			Typeflag: from.Typeflag,
			Name:     name,
			Linkname: target,
			Mode:     from.Mode,
			Uid:      from.Uid,
			Gid:      from.Gid,
		}
		if info.IsDir() {
			header.Name += "/"
		}
		l.put(header, content)
		return l.err
	})
	if err != nil && l.err == nil {
		l.err = err
	}
}

func (l *layer) blob() (blob, error) {
	if l.err == nil {
		l.err = l.files.Close()
	}
	return newBlob(oci.MediaTypeImageLayer, l.out.Bytes()), l.err
}

// A blob is content with its descriptor.
type blob struct {
	oci.Descriptor
	content []byte
}

func newBlob(mediaType string, content []byte) blob {
	return blob{oci.Descriptor{MediaType: mediaType, Digest: digest.FromBytes(content), Size: int64(len(content))},
		content}
}

func jsonBlob(mediaType string, value any) (blob, error) {
	content, err := json.Marshal(value)
	return newBlob(mediaType, content), err
}

// An image is its manifest and what that names: the configuration and the layers, lowest first.
type image struct {
	names    []string
	manifest blob
	config   blob
	layers   []blob
}

func newImage(names []string, config oci.ImageConfig, layers ...blob) (image, error) {
	i := image{names: names, layers: layers}
	rootFS := oci.RootFS{Type: "layers"}
	var descriptors []oci.Descriptor
	for _, l := range layers {
		rootFS.DiffIDs = append(rootFS.DiffIDs, l.Digest) // layers are not compressed
		descriptors = append(descriptors, l.Descriptor)
	}
	if len(config.Env) == 0 {
		config.Env = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
	}
	var err error
	if i.config, err = jsonBlob(oci.MediaTypeImageConfig, oci.Image{
		Platform: oci.Platform{Architecture: runtime.GOARCH, OS: "linux"},
		RootFS:   rootFS,
		Config:   config,
	}); err != nil {
		return i, err
	}
	i.manifest, err = jsonBlob(oci.MediaTypeImageManifest, oci.Manifest{
		Versioned: specs.Versioned{SchemaVersion: 2},
		MediaType: oci.MediaTypeImageManifest,
		Config:    i.config.Descriptor,
		Layers:    descriptors,
	})
	return i, err
}

// writeArchive writes images as one OCI layout (image-layout.md of the OCI image specification 1.1) in a tar. Blobs
// that images share are written once.
func writeArchive(file string, images []image) error {
	index := oci.Index{Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: oci.MediaTypeImageIndex}
	all := newLayer()
	all.text(oci.ImageLayoutFile, `{"imageLayoutVersion":"`+oci.ImageLayoutVersion+`"}`)
	written := map[digest.Digest]bool{}
	for _, i := range images {
		for _, name := range i.names {
			entry := i.manifest.Descriptor
			entry.Annotations = map[string]string{nameAnnotation: name}
			index.Manifests = append(index.Manifests, entry)
		}
		for _, b := range append([]blob{i.manifest, i.config}, i.layers...) {
			if !written[b.Digest] {
				written[b.Digest] = true
				name := path.Join(oci.ImageBlobsDir, b.Digest.Algorithm().String(), b.Digest.Encoded())
				all.text(name, string(b.content))
			}
		}
	}
	content, err := json.Marshal(index)
	if err != nil {
		return err
	}
	all.text(oci.ImageIndexFile, string(content))
	archive, err := all.blob()
	if err != nil {
		return err
	}
	if err := os.WriteFile(file+".new", archive.content, 0o644); err != nil {
		return err
	}
	return os.Rename(file+".new", file)
}
