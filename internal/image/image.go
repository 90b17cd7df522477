// Package image reads image archives, and has the names of Plimsoll's own images.
//
// Scan reads an archive of any usual form and returns the images in it, with the names that the runtime will give them.
// Read is for our own archives. `make images` builds them (images/build) as OCI layouts with one image each. The name
// of an image is taken from its archive: the runtime's configuration gets the pause image's name from there, and an
// archive is imported only if the runtime's image of that name has another id.
//
// The package does not build, import or push, and uses no image library: it reads only a few small JSON files.
package image

import (
	"archive/tar"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"strings"
)

// Names of our images. As with upstream's pause, the number in a tag increases when behaviour changes that users may
// rely on. Demo is the name that manifests and tests use.
const (
	Pause    = "plimsoll.dev/pause:1"
	Workload = "plimsoll.dev/workload:1"
	Demo     = "plimsoll.dev/workload:dev"
	// The tags of add-ons are the versions in addons/go.mod.
	CoreDNS       = "plimsoll.dev/coredns:1.14.7"
	MetricsServer = "plimsoll.dev/metrics-server:0.9.0"
	// Program is the image for the manifests in deploy/ that run parts of Plimsoll as pods. A release has its own tag.
	Program = "plimsoll.dev/plimsoll:latest"
)

// Archive file names below bin/images.
const (
	PauseFile         = "pause.tar"
	WorkloadFile      = "workload.tar"
	CoreDNSFile       = "coredns.tar"
	MetricsServerFile = "metrics-server.tar"
	ProgramFile       = "plimsoll.tar"
)

// Annotations in an index from which containerd takes the name of an imported image (client/import.go). There is one
// index entry per name. The second annotation may also contain only a tag, which is not a name.
const (
	NameAnnotation = "io.containerd.image.name"
	refAnnotation  = "org.opencontainers.image.ref.name"
)

// Bounds of what is kept of an archive, in bytes: of each description, and of all together (chosen). Descriptions of
// our own images have about 1 KiB, those of images with hundreds of layers some 100 KiB.
const (
	jsonMax = 1 << 20
	keptMax = 64 << 20
)

// Contained is an image in an archive under one of its names.
type Contained struct {
	Name string
	ID   string // digest of the image's configuration: the image id of CRI; "" if there is one for each platform
}

// An Archive is the description of an archive with one image.
type Archive struct {
	Path  string
	Names []string // in the order of the index; at least one
	ID    string
}

// Read reads the description of our own archive at path.
func Read(path string) (Archive, error) {
	archive := Archive{Path: path}
	images, err := scanFile(path)
	if err != nil {
		return Archive{}, fmt.Errorf("read image archive: %s: %w", path, err)
	}
	for i, image := range images {
		if image.ID == "" || i > 0 && image.ID != archive.ID {
			return Archive{},
				fmt.Errorf("read image archive: %s: image %s has id %q: want one image in the archive, for one platform",
					path, image.Name, image.ID)
		}
		archive.ID = image.ID
		archive.Names = append(archive.Names, image.Name)
	}
	return archive, nil
}

func scanFile(path string) ([]Contained, error) {
	in, err := Open(path)
	if err != nil {
		return nil, err
	}
	defer in.Close()
	return Scan(in)
}

// Open opens an archive, which may be compressed with gzip.
func Open(path string) (io.ReadCloser, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	magic := make([]byte, 2)
	if _, err := file.ReadAt(magic, 0); err != nil && !errors.Is(err, io.EOF) {
		file.Close()
		return nil, err
	}
	if magic[0] != 0x1f || magic[1] != 0x8b { // RFC 1952
		return file, nil
	}
	plain, err := gzip.NewReader(file)
	if err != nil {
		file.Close()
		return nil, err
	}
	return compressed{plain, file}, nil
}

type compressed struct {
	*gzip.Reader
	file *os.File
}

func (c compressed) Close() error { return errors.Join(c.Reader.Close(), c.file.Close()) }

// Scan reads an archive to its end and returns the images in it, at least one. The archive is an OCI layout or what
// docker save writes. An image without a name is an error: no pod could use it.
func Scan(in io.Reader) ([]Contained, error) {
	found, err := readFiles(in)
	if err != nil {
		return nil, err
	}
	if found.has[layoutFile] {
		return found.layout()
	}
	if found.has[savedFile] {
		return found.saved()
	}
	return nil,
		fmt.Errorf("%s: not in the archive, nor is %s: %s", layoutFile, savedFile, wanted)
}

// wanted says what an archive must be. What docker export writes is the commonest mistake: it has files and no image.
const wanted = "want an image as docker save, podman save, buildah push or skopeo copy write it"

// The files that list the images of an OCI layout, and of an archive in docker's own form.
const (
	layoutFile = "index.json"
	savedFile  = "manifest.json"
)

func (f files) layout() ([]Contained, error) {
	var index struct {
		Manifests []struct {
			Digest      string
			Annotations map[string]string
		}
	}
	if err := f.decode(layoutFile, &index); err != nil {
		return nil, err
	}
	var images []Contained
	for i, entry := range index.Manifests {
		name := entry.Annotations[NameAnnotation]
		if ref := entry.Annotations[refAnnotation]; name == "" && strings.ContainsAny(ref, "/:@") {
			name = ref
		}
		if name == "" {
			return nil,
				fmt.Errorf("%s: manifest %d: the image has no name: give it one such as localhost/app:1 when it is saved "+
					"(annotation %s or %s)",
					layoutFile, i, NameAnnotation, refAnnotation)
		}
		id, err := f.config(entry.Digest)
		if err != nil {
			return nil, err
		}
		images = append(images, Contained{name, id})
	}
	if len(images) == 0 {
		return nil, fmt.Errorf("%s: no manifest", layoutFile)
	}
	return images, nil
}

// config returns the digest of the configuration that a manifest names; "" if it is a list of manifests. The archive
// may lack some images of such a list, those of other platforms.
func (f files) config(digest string) (string, error) {
	var manifest struct {
		Config    struct{ Digest string }
		Layers    []struct{ Digest string }
		Manifests []json.RawMessage
	}
	if err := f.decode(blobPath(digest), &manifest); err != nil {
		return "", err
	}
	if manifest.Config.Digest == "" && len(manifest.Manifests) == 0 {
		return "", fmt.Errorf("%s: no config digest", blobPath(digest))
	}
	for _, layer := range manifest.Layers {
		if path := blobPath(layer.Digest); !f.has[path] {
			return "", lacks(path)
		}
	}
	return manifest.Config.Digest, nil
}

func blobPath(digest string) string { return "blobs/" + strings.Replace(digest, ":", "/", 1) }

func (f files) saved() ([]Contained, error) {
	var entries []struct {
		Config   string   // the configuration's file, named by its SHA-256: HEX.json or blobs/sha256/HEX
		RepoTags []string // names
		Layers   []string // files
	}
	if err := f.decode(savedFile, &entries); err != nil {
		return nil, err
	}
	var images []Contained
	for i, entry := range entries {
		hex := strings.TrimSuffix(path.Base(entry.Config), ".json")
		if entry.Config == "" || len(entry.RepoTags) == 0 {
			return nil,
				fmt.Errorf("%s: image %d: Config %q, RepoTags %q: the image has no name: save it by its name, not by its id",
					savedFile, i, entry.Config, entry.RepoTags)
		}
		for _, layer := range entry.Layers {
			if path := path.Clean(layer); !f.has[path] {
				return nil, lacks(path)
			}
		}
		for _, name := range entry.RepoTags {
			images = append(images, Contained{name, "sha256:" + hex})
		}
	}
	if len(images) == 0 {
		return nil, fmt.Errorf("%s: no image", savedFile)
	}
	return images, nil
}

// files is what readFiles keeps of an archive's files.
type files struct {
	has   map[string]bool   // the names of all
	texts map[string][]byte // content of small ones: descriptions are among them
}

func (f files) decode(name string, into any) error {
	text, kept := f.texts[name]
	if !kept {
		return lacks(name)
	}
	if err := json.Unmarshal(text, into); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}

func lacks(name string) error {
	return fmt.Errorf("%s: not in the archive: it was cut off, or is not an image", name)
}

func readFiles(in io.Reader) (files, error) {
	found := files{map[string]bool{}, map[string][]byte{}}
	kept := int64(0)
	archive := tar.NewReader(in) // it seeks over what is not read, if it can
	for {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return found, nil
		}
		if err != nil {
			return files{}, fmt.Errorf("read it as tar: %w: %s", err, wanted)
		}
		name := path.Clean(header.Name)
		found.has[name] = true
		described := name == layoutFile || name == savedFile || strings.HasPrefix(name, "blobs/")
		if header.Typeflag != tar.TypeReg || header.Size > jsonMax || !described {
			continue
		}
		if kept += header.Size; kept > keptMax {
			return files{}, fmt.Errorf("%s: more than %d MiB of small files: this is no image", name, keptMax>>20)
		}
		if found.texts[name], err = io.ReadAll(archive); err != nil {
			return files{}, fmt.Errorf("%s: %w", name, err)
		}
	}
}
