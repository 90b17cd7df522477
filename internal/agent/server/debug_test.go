package server

import (
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// TestCheckpoint: the runtime writes a checkpoint into a file that only root can read the directory of, and whose name
// is the kubelet's. A time limit is passed on, and a runtime that cannot do it is an error in its words.
func TestCheckpoint(t *testing.T) {
	r := newRig(t, nil)
	r.pods.pods = []*corev1.Pod{testPod("p", "c")}
	r.pods.set("ns/p/c", Container{ID: "c1", State: Running})
	status, body := r.do(t, "POST", "/checkpoint/ns/p/c?timeout=7")
	dir := filepath.Join(r.o.RootDir, "checkpoints")
	want := regexp.MustCompile(`^\{"items":\["` + dir + `/(checkpoint-p_ns-c-20[^/]*\.tar)"\]\}\n$`)
	name := want.FindStringSubmatch(body)
	if status != 200 || name == nil {
		t.Fatalf("%d %s", status, body)
	}
	if text, err := os.ReadFile(filepath.Join(dir, name[1])); err != nil || string(text) != "c1" {
		t.Errorf("the file has %q, %v", text, err)
	}
	if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
	r.stream.mu.Lock()
	if asked := r.stream.last.(*runtimeapi.CheckpointContainerRequest); asked.Timeout != 7 {
		t.Errorf("the runtime is asked %v", asked)
	}
	r.stream.err = errors.New("method CheckpointContainer not implemented")
	r.stream.mu.Unlock()
	status, body = r.do(t, "POST", "/checkpoint/ns/p/c")
	if status != 500 || !strings.Contains(body, "checkpointing of ns/p/c failed (method CheckpointContainer not impl") {
		t.Errorf("%d %s", status, body)
	}
}

// TestVerbosity: the log's level can be set while the agent runs, unless enableDebugFlagsHandler is false.
func TestVerbosity(t *testing.T) {
	put := func(r *rig, body string) int {
		request, err := http.NewRequestWithContext(t.Context(), "PUT", r.base+"/debug/flags/v", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		response, err := r.client.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		_ = response.Body.Close()
		return response.StatusCode
	}
	r := newRig(t, nil)
	if status := put(r, "4"); status != 200 || r.level.Load() != 4 {
		t.Errorf("status %d, level %d", status, r.level.Load())
	}
	for _, bad := range []string{"", "-1", "much", "99999999999"} {
		if status := put(r, bad); status != 400 || r.level.Load() != 4 {
			t.Errorf("%q: status %d, level %d", bad, status, r.level.Load())
		}
	}
	off := false
	r = newRig(t, func(o *Options) { o.Config.EnableDebugFlagsHandler = &off })
	if status := put(r, "4"); status != 405 || r.level.Load() != 0 {
		t.Errorf("switched off: status %d, level %d", status, r.level.Load())
	}
}
