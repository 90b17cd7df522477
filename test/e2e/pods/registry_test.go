//go:build e2e

package pods

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	ours "github.com/plimsoll-dev/plimsoll/internal/image"
	"github.com/plimsoll-dev/plimsoll/test/e2e/rig"
)

// The one account of the registry, and its line in an htpasswd file: bcrypt, at its lowest cost.
const (
	registryUser     = "team"
	registryPassword = "right"
	registryAccount  = "team:$2a$04$B9bKat56zyIFMxlsPW7rcudTp39Nze8XkwwLgMmUHDX.yIed7LTJm\n"
)

// registry is the distribution project's registry, with a password, behind a proxy. The proxy is on a loopback address,
// which containerd asks in plain HTTP. It records the credentials of requests, and can give bad answers itself.
type registry struct {
	*httptest.Server
	t        *testing.T
	blobs    map[string][]byte // of our workload image, by digest
	manifest string            // its digest
	behind   *http.Client      // asks the registry itself, by its unix socket

	mu     sync.Mutex
	pushed map[string]bool   // by path
	tried  []string          // user:password of each request that had one, without repetitions in a row
	bad    map[string]answer // by path: who answers in the registry's place
}

// answer is what the proxy does with a request; registry answers it as it should be.
type answer func(w http.ResponseWriter, request *http.Request, registry http.Handler)

func newRegistry(t *testing.T) *registry {
	t.Helper()
	r := &registry{t: t, blobs: map[string][]byte{}, pushed: map[string]bool{}, bad: map[string]answer{}}
	bin := filepath.Dir(rig.Binary(t))
	if err := r.load(filepath.Join(bin, "images", ours.WorkloadFile)); err != nil {
		t.Fatal(err)
	}
	if err := r.sign(t.Name()); err != nil {
		t.Fatal(err)
	}
	transport := r.run(filepath.Join(bin, "registry"))
	r.behind = &http.Client{Transport: transport}
	proxy := &httputil.ReverseProxy{Transport: transport, Rewrite: func(p *httputil.ProxyRequest) {
		p.SetURL(&url.URL{Scheme: "http", Host: "registry"})
		p.Out.Host = p.In.Host
	}}
	r.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, request *http.Request) {
		if bad := r.note(request); bad != nil {
			bad(w, request, proxy)
			return
		}
		proxy.ServeHTTP(w, request)
	}))
	t.Cleanup(r.Close)
	return r
}

// run starts the registry and waits until it answers. The transport returned leads to its socket.
func (r *registry) run(program string) *http.Transport {
	r.t.Helper()
	dir := r.t.TempDir()
	socket, accounts, config := filepath.Join(dir, "socket"), filepath.Join(dir, "htpasswd"), filepath.Join(dir,
		"config.json")
	text, err := json.Marshal(map[string]any{ // YAML takes JSON
		"version": "0.1",
		"log":     map[string]any{"level": "warn"},
		"storage": map[string]any{"filesystem": map[string]any{"rootdirectory": filepath.Join(dir, "images")}},
		"auth":    map[string]any{"htpasswd": map[string]any{"realm": "registry", "path": accounts}},
		"http":    map[string]any{"net": "unix", "addr": socket, "relativeurls": true},
	})
	if err := errors.Join(err, os.WriteFile(accounts, []byte(registryAccount), 0o600), os.WriteFile(config, text,
		0o600)); err != nil {
		r.t.Fatal(err)
	}
	var log bytes.Buffer
	command := exec.Command(program, "serve", config)
	command.Stdout, command.Stderr = &log, &log
	if err := command.Start(); err != nil {
		r.t.Fatalf("%v; run make bin/registry", err)
	}
	r.t.Cleanup(func() {
		_ = command.Process.Kill()
		_ = command.Wait()
		if r.t.Failed() {
			r.t.Logf("registry:\n%s", log.String())
		}
	})
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", socket)
	}}
	r.t.Cleanup(transport.CloseIdleConnections)
	rig.Eventually(r.t, soon, "the registry answers", func(ctx context.Context) error {
		connection, err := transport.DialContext(ctx, "", "")
		if err != nil {
			return err
		}
		return connection.Close()
	})
	return transport
}

// name is an image of the registry, pushed at its first mention.
func (r *registry) name(path string) string {
	r.t.Helper()
	r.mu.Lock()
	known := r.pushed[path]
	r.pushed[path] = true
	r.mu.Unlock()
	if !known {
		if err := r.push(path); err != nil {
			r.t.Fatalf("push %s: %v", path, err)
		}
	}
	return r.Listener.Addr().String() + "/" + path + ":1"
}

// push uploads the image as the OCI distribution specification 1.1 says: each blob in one piece, then the manifest.
func (r *registry) push(path string) error {
	for digest, content := range r.blobs {
		if digest == r.manifest {
			continue
		}
		begun, err := r.send(http.MethodPost, "/v2/"+path+"/blobs/uploads/", "", nil, http.StatusAccepted)
		if err != nil {
			return err
		}
		to, err := url.Parse(begun.Get("Location"))
		if err != nil {
			return err
		}
		query := to.Query()
		query.Set("digest", digest)
		to.RawQuery = query.Encode()
		if _, err := r.send(http.MethodPut, to.RequestURI(), "application/octet-stream", content,
			http.StatusCreated); err != nil {
			return err
		}
	}
	_, err := r.send(http.MethodPut, "/v2/"+path+"/manifests/1", "application/vnd.oci.image.manifest.v1+json",
		r.blobs[r.manifest], http.StatusCreated)
	return err
}

// send asks the registry itself and returns the header of its answer.
func (r *registry) send(method, path, kind string, body []byte, want int) (http.Header, error) {
	request, err := http.NewRequest(method, "http://registry"+path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	request.SetBasicAuth(registryUser, registryPassword)
	if kind != "" {
		request.Header.Set("Content-Type", kind)
	}
	response, err := r.behind.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		return nil, err
	}
	if response.StatusCode != want {
		return nil, fmt.Errorf("%s %s: %s: %s", method, path, response.Status, text)
	}
	return response.Header, nil
}

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

// sign gives the image another digest than that of the image that was imported to the node: which pods may use an image
// depends not only on its name.
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
	delete(r.blobs, digest)
	delete(r.blobs, r.manifest)
	r.manifest = r.add(text)
	return nil
}

// add stores a blob and returns its digest.
func (r *registry) add(content []byte) string {
	digest := fmt.Sprintf("sha256:%x", sha256.Sum256(content))
	r.blobs[digest] = content
	return digest
}

// misbehave lets the proxy answer requests for the image of that path; nil: the registry again.
func (r *registry) misbehave(path string, bad answer) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.bad[path] = bad
}

// note records the credentials of a request, and returns what answers in the registry's place; nil: the registry
// itself.
func (r *registry) note(request *http.Request) answer {
	r.mu.Lock()
	defer r.mu.Unlock()
	if user, password, ok := request.BasicAuth(); ok {
		credentials := user + ":" + password
		if n := len(r.tried); n == 0 || r.tried[n-1] != credentials {
			r.tried = append(r.tried, credentials)
		}
	}
	for path, bad := range r.bad {
		if strings.HasPrefix(request.URL.Path, "/v2/"+path+"/") {
			return bad
		}
	}
	return nil
}

// take returns the credentials that were tried since its last call.
func (r *registry) take() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	tried := r.tried
	r.tried = nil
	return tried
}
