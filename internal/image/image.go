// Package image has the names of Plimsoll's own two images and reads their archives.
//
// `make images` builds them (images/build) as OCI layout archives: a tar with one manifest, whose names are annotations
// in the index. The archive is the single source of names: the runtime's configuration takes the pause image's name
// from it, and an archive is imported only when the runtime's image of that name has another id.
//
// The package does not build, pull or push, and uses no image library: the product reads only two small JSON files.
package image

import (
	"archive/tar"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
)

// Names of our images. The number in a tag increases when the behaviour that users may rely on changes, as upstream's
// pause does. Demo is the name that manifests and tests use.
const (
	Pause    = "plimsoll.dev/pause:1"
	Workload = "plimsoll.dev/workload:1"
	Demo     = "plimsoll.dev/workload:dev"
)

// Archive file names below bin/images.
const (
	PauseFile    = "pause.tar"
	WorkloadFile = "workload.tar"
)

// NameAnnotation is the index annotation from which containerd takes the name of an imported image
// (containerd/images/annotations.go). There is one index entry per name.
const NameAnnotation = "io.containerd.image.name"

// jsonMax bounds each JSON file read from an archive; ours have about 1 KiB.
const jsonMax = 1 << 20

// An Archive is the description of an image in its archive.
type Archive struct {
	Path  string
	Names []string // in the order of the index; at least one
	ID    string   // digest of the image's configuration: the image id of CRI
}

// Read reads the description of the OCI layout archive at path.
func Read(path string) (Archive, error) {
	archive, err := read(path)
	if err != nil {
		return Archive{}, fmt.Errorf("read image archive: %s: %w", path, err)
	}
	return archive, nil
}

func read(path string) (Archive, error) {
	files, err := readJSON(path)
	if err != nil {
		return Archive{}, err
	}
	var index struct {
		Manifests []struct {
			Digest      string
			Annotations map[string]string
		}
	}
	if err := files.decode("index.json", &index); err != nil {
		return Archive{}, err
	}
	archive := Archive{Path: path}
	digest := ""
	for i, entry := range index.Manifests {
		name := entry.Annotations[NameAnnotation]
		if name == "" {
			return Archive{}, fmt.Errorf("index.json: manifest %d: no annotation %s", i, NameAnnotation)
		}
		if digest != "" && digest != entry.Digest {
			return Archive{}, fmt.Errorf("index.json: manifest %d: digest %s: want one image in the archive, %s", i, entry.Digest, digest)
		}
		digest = entry.Digest
		archive.Names = append(archive.Names, name)
	}
	if len(archive.Names) == 0 {
		return Archive{}, errors.New("index.json: no manifest")
	}
	var manifest struct{ Config struct{ Digest string } }
	if err := files.decode(blobPath(digest), &manifest); err != nil {
		return Archive{}, err
	}
	archive.ID = manifest.Config.Digest
	if archive.ID == "" {
		return Archive{}, fmt.Errorf("%s: no config digest", blobPath(digest))
	}
	return archive, nil
}

func blobPath(digest string) string { return "blobs/" + strings.Replace(digest, ":", "/", 1) }

// jsonFiles contains an archive's small files by name. In our archives they are JSON; layers are larger or not JSON,
// and are never decoded.
type jsonFiles map[string][]byte

func (f jsonFiles) decode(name string, into any) error {
	text, ok := f[name]
	if !ok {
		return fmt.Errorf("%s: not in the archive: want an OCI layout, as `make images` builds", name)
	}
	if err := json.Unmarshal(text, into); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}

func readJSON(path string) (jsonFiles, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	found := jsonFiles{}
	in := tar.NewReader(file) // it seeks over what is not read
	for {
		header, err := in.Next()
		if errors.Is(err, io.EOF) {
			return found, nil
		}
		if err != nil {
			return nil, err
		}
		if header.Typeflag != tar.TypeReg || header.Size > jsonMax {
			continue
		}
		if found[header.Name], err = io.ReadAll(in); err != nil {
			return nil, fmt.Errorf("%s: %w", header.Name, err)
		}
	}
}
