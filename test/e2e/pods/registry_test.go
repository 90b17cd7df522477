//go:build e2e

package pods

import (
	"archive/tar"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	ours "github.com/plimsoll-dev/plimsoll/internal/image"
	"github.com/plimsoll-dev/plimsoll/test/e2e/rig"
)

// registry serves our workload image, under any name, to who gives the right password: the pull side of the OCI
// distribution specification 1.1 with basic authentication, in plain HTTP, which containerd takes of loopback
// addresses.
type registry struct {
	*httptest.Server
	blobs    map[string][]byte // by digest
	manifest string            // digest
	user     string
	password string

	mu    sync.Mutex
	tried []string // user:password of each request that had one, without repetitions in a row
}

func newRegistry(t *testing.T, user, password string) *registry {
	t.Helper()
	r := &registry{blobs: map[string][]byte{}, user: user, password: password}
	if err := r.load(filepath.Join(filepath.Dir(rig.Binary(t)), "images", ours.WorkloadFile)); err != nil {
		t.Fatal(err)
	}
	if err := r.sign(t.Name()); err != nil {
		t.Fatal(err)
	}
	r.Server = httptest.NewServer(r)
	t.Cleanup(r.Close)
	return r
}

// name is an image of the registry.
func (r *registry) name(path string) string { return r.Listener.Addr().String() + "/" + path + ":1" }

// load reads an image in an OCI layout.
func (r *registry) load(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	for files := tar.NewReader(f); ; {
		header, err := files.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		content, err := io.ReadAll(files)
		if err != nil {
			return fmt.Errorf("%s: %s: %w", path, header.Name, err)
		}
		if hex, ok := strings.CutPrefix(header.Name, "blobs/sha256/"); ok {
			r.blobs["sha256:"+hex] = content
		}
		if header.Name == "index.json" {
			var index struct{ Manifests []struct{ Digest string } }
			if err := json.Unmarshal(content, &index); err != nil || len(index.Manifests) == 0 {
				return fmt.Errorf("%s: index.json: no manifest: %w", path, err)
			}
			r.manifest = index.Manifests[0].Digest
		}
	}
}

// sign makes the image one of its own, with another digest than the one that was imported to the node: who may use an
// image that a node pulled does not depend on its name alone.
func (r *registry) sign(author string) error {
	var manifest map[string]any
	if err := json.Unmarshal(r.blobs[r.manifest], &manifest); err != nil {
		return fmt.Errorf("manifest: %w", err)
	}
	of, _ := manifest["config"].(map[string]any)
	digest, _ := of["digest"].(string)
	var config map[string]any
	if err := json.Unmarshal(r.blobs[digest], &config); err != nil {
		return fmt.Errorf("config: %w", err)
	}
	config["author"] = author
	text, err := json.Marshal(config)
	if err != nil {
		return err
	}
	of["digest"], of["size"] = r.add(text), len(text)
	if text, err = json.Marshal(manifest); err != nil {
		return err
	}
	r.manifest = r.add(text)
	return nil
}

// add stores a blob and returns its digest.
func (r *registry) add(content []byte) string {
	digest := fmt.Sprintf("sha256:%x", sha256.Sum256(content))
	r.blobs[digest] = content
	return digest
}

func (r *registry) ServeHTTP(w http.ResponseWriter, request *http.Request) {
	user, password, ok := request.BasicAuth()
	if ok {
		r.note(user + ":" + password)
	}
	if user != r.user || password != r.password {
		w.Header().Set("WWW-Authenticate", `Basic realm="registry"`)
		http.Error(w, `{"errors":[{"code":"UNAUTHORIZED","message":"authentication required"}]}`, http.StatusUnauthorized)
		return
	}
	kind := "application/octet-stream"
	reference := request.URL.Path[strings.LastIndexByte(request.URL.Path, '/')+1:]
	if strings.Contains(request.URL.Path, "/manifests/") {
		kind = "application/vnd.oci.image.manifest.v1+json"
		if !strings.HasPrefix(reference, "sha256:") { // a tag: they all mean the one image
			reference = r.manifest
		}
	}
	content, ok := r.blobs[reference]
	if !ok {
		http.NotFound(w, request)
		return
	}
	w.Header().Set("Content-Type", kind)
	w.Header().Set("Content-Length", fmt.Sprint(len(content)))
	w.Header().Set("Docker-Content-Digest", reference)
	if request.Method == http.MethodGet {
		w.Write(content) // who asked sees what is missing
	}
}

func (r *registry) note(credentials string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if n := len(r.tried); n == 0 || r.tried[n-1] != credentials {
		r.tried = append(r.tried, credentials)
	}
}

// take returns what was tried since the last time.
func (r *registry) take() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	tried := r.tried
	r.tried = nil
	return tried
}
