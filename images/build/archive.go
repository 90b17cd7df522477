package main

import (
	"archive/tar"
	"bytes"
	_ "crypto/sha256" // go-digest takes its algorithms from what the program links
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	oci "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/plimsoll-dev/plimsoll/internal/image"
)

// build returns the image as an OCI layout (image-layout.md of the OCI image specification 1.1) in a tar.
func (r recipe) build(arch string) ([]byte, error) {
	layer, err := r.layer()
	if err != nil {
		return nil, err
	}
	layerBlob := newBlob(oci.MediaTypeImageLayer, layer)
	config, err := jsonBlob(oci.MediaTypeImageConfig, oci.Image{
		Platform: oci.Platform{Architecture: arch, OS: "linux"},
		RootFS:   oci.RootFS{Type: "layers", DiffIDs: []digest.Digest{layerBlob.Digest}},
		Config:   oci.ImageConfig{Entrypoint: r.entrypoint, Cmd: r.command, Env: r.environ, WorkingDir: "/"},
	})
	if err != nil {
		return nil, err
	}
	manifest, err := jsonBlob(oci.MediaTypeImageManifest, oci.Manifest{
		Versioned: specs.Versioned{SchemaVersion: 2},
		MediaType: oci.MediaTypeImageManifest,
		Config:    config.Descriptor,
		Layers:    []oci.Descriptor{layerBlob.Descriptor},
	})
	if err != nil {
		return nil, err
	}
	index, err := jsonBlob(oci.MediaTypeImageIndex, r.index(manifest.Descriptor))
	if err != nil {
		return nil, err
	}
	layout := file{oci.ImageLayoutFile, []byte(`{"imageLayoutVersion":"` + oci.ImageLayoutVersion + `"}`)}
	return tarOf(layout, file{oci.ImageIndexFile, index.content}, manifest.file(), config.file(), layerBlob.file())
}

// index lists the one manifest once for each name of the image.
func (r recipe) index(manifest oci.Descriptor) oci.Index {
	index := oci.Index{Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: oci.MediaTypeImageIndex}
	for _, name := range r.names {
		_, tag, _ := strings.Cut(name, ":")
		entry := manifest
		entry.Annotations = map[string]string{image.NameAnnotation: name, oci.AnnotationRefName: tag}
		index.Manifests = append(index.Manifests, entry)
	}
	return index
}

func (r recipe) layer() ([]byte, error) {
	var out bytes.Buffer
	files := tar.NewWriter(&out)
	for _, e := range r.entries {
		content := []byte(e.text)
		if e.program != "" {
			var err error
			if content, err = os.ReadFile(e.program); err != nil {
				return nil, err
			}
		}
		if err := put(files, e.header(len(content)), content); err != nil {
			return nil, fmt.Errorf("%s: %w", e.name, err)
		}
	}
	if err := files.Close(); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
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

func (b blob) file() file {
	return file{oci.ImageBlobsDir + "/" + b.Digest.Algorithm().String() + "/" + b.Digest.Encoded(), b.content}
}

type file struct {
	name    string
	content []byte
}

func tarOf(list ...file) ([]byte, error) {
	var out bytes.Buffer
	files := tar.NewWriter(&out)
	for _, f := range list {
		header := &tar.Header{Name: f.name, Mode: 0o644, Size: int64(len(f.content)), Typeflag: tar.TypeReg,
			Format: tar.FormatUSTAR}
		if err := put(files, header, f.content); err != nil {
			return nil, fmt.Errorf("%s: %w", f.name, err)
		}
	}
	if err := files.Close(); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}

func put(files *tar.Writer, header *tar.Header, content []byte) error {
	if err := files.WriteHeader(header); err != nil {
		return err
	}
	_, err := io.Copy(files, bytes.NewReader(content))
	return err
}
