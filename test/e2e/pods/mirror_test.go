//go:build e2e

package pods

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// TestRegistryMirror: a pod's image is in a registry that does not exist. The runtime asks the mirror that a file
// names, as `up --registry-mirror` writes it, and is not restarted for that.
func TestRegistryMirror(t *testing.T) {
	b := at(t)
	r := newRegistry(t)
	r.name("mirrored/app")
	var pulled atomic.Int64
	r.misbehave("mirrored/app", func(w http.ResponseWriter, request *http.Request, registry http.Handler) {
		pulled.Add(1)
		request.SetBasicAuth(registryUser, registryPassword) // the runtime has no password for the mirror
		registry.ServeHTTP(w, request)
	})
	written, err := os.ReadFile("../../../internal/containerruntime/testdata/hosts.toml")
	if err != nil {
		t.Fatal(err)
	}
	text := strings.ReplaceAll(string(written), "http://127.0.0.1:5000", r.URL)
	dir := filepath.Join(b.StateDir, "registries", "nowhere.invalid")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "hosts.toml"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	b.create("mirrored", pulls("nowhere.invalid/mirrored/app:1"))
	b.ended("mirrored", corev1.PodSucceeded)
	if pulled.Load() == 0 {
		t.Error("the mirror was not asked")
	}
}
