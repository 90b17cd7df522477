package server

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/plimsoll-dev/plimsoll/internal/version"
)

// checkpointMax bounds a checkpoint without a time of its own. Chosen: the memory of a large container is written to a
// disk.
const checkpointMax = 10 * time.Minute

// checkpoint has the runtime write a checkpoint of a container into a file of the node, and answers with its path.
func (s *Server) checkpoint(w http.ResponseWriter, r *http.Request) {
	t := targetOf(r)
	pod, err := s.find(t)
	switch {
	case err != nil:
		http.Error(w, "pod does not exist", http.StatusNotFound)
		return
	case !hasContainer(pod, t.container):
		http.Error(w, fmt.Sprintf("container %v does not exist", t.container), http.StatusNotFound)
		return
	}
	request := &runtimeapi.CheckpointContainerRequest{}
	limit := checkpointMax
	if given := r.URL.Query()["timeout"]; len(given) > 0 {
		seconds, err := strconv.ParseInt(given[len(given)-1], 10, 32)
		if err != nil || seconds < 0 {
			http.Error(w, "cannot parse value of timeout parameter", http.StatusNotFound) // the kubelet's status
			return
		}
		if request.Timeout = seconds; seconds > 0 {
			limit = time.Duration(seconds) * time.Second
		}
	}
	if err := s.writeCheckpoint(r.Context(), pod, t.container, request, limit); err != nil {
		http.Error(w, fmt.Sprintf("checkpointing of %v/%v/%v failed (%v)", t.namespace, t.pod, t.container, err),
			http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(map[string][]string{"items": {request.Location}}) // the client may be gone
}

// writeCheckpoint sets the file's name in the request, as in the kubelet, and has the runtime write it.
func (s *Server) writeCheckpoint(ctx context.Context, pod *corev1.Pod, container string,
	request *runtimeapi.CheckpointContainerRequest, limit time.Duration) error {
	c, err := s.o.Pods.Container(pod.Namespace, pod.Name, container, pod.UID, false)
	if err != nil {
		return err
	}
	if c.ID == "" {
		return fmt.Errorf("container %s not found", container)
	}
	dir := filepath.Join(s.o.RootDir, "checkpoints")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	request.ContainerId = c.ID
	request.Location = filepath.Join(dir, fmt.Sprintf("checkpoint-%s_%s-%s-%s.tar", pod.Name, pod.Namespace, container,
		time.Now().Format(time.RFC3339)))
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	_, err = s.o.Runtime.CheckpointContainer(ctx, request)
	return err
}

// zpageHead begins a page for people. The words are those of upstream's components.
const zpageHead = "\nkubelet %s\nWarning: This endpoint is not meant to be machine parseable, has no formatting " +
	"compatibility guarantees and is for debugging purposes only.\n\n"

// statusz answers with the agent's versions and the time since its start.
func (s *Server) statusz(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	up := time.Since(s.began).Round(time.Second)
	_, _ = fmt.Fprintf(w, zpageHead+"Started: %s\nUp: %d hr %02d min %02d sec\nGo version: %s\nBinary version: %s\n"+
		"Emulation version: %s\nPlimsoll version: %s\n", "statusz", s.began.UTC().Format(time.UnixDate), int(up.Hours()),
		int(up.Minutes())%60, int(up.Seconds())%60, runtime.Version(), strings.TrimPrefix(version.Kubernetes, "v"),
		strings.Join(strings.SplitN(strings.TrimPrefix(version.Kubernetes, "v"), ".", 3)[:2], "."), version.Plimsoll())
}

// flagz answers with the flags of the command line and their values.
func (s *Server) flagz(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	_, _ = fmt.Fprintf(w, zpageHead, "flagz")
	for _, name := range slices.Sorted(maps.Keys(s.o.Flags)) {
		_, _ = fmt.Fprintf(w, "%s=%s\n", name, s.o.Flags[name])
	}
}

// verbosity sets how much the agent logs: the body is a number as of -v.
func (s *Server) verbosity(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		http.Error(w, "error reading request body: "+err.Error(), http.StatusBadRequest)
		return
	}
	n, err := strconv.ParseUint(strings.TrimSpace(string(body)), 10, 31)
	if err != nil {
		http.Error(w, fmt.Sprintf("failed set klog.logging.verbosity %.100s: want a number of 0 or more", body),
			http.StatusBadRequest)
		return
	}
	s.o.SetVerbosity(int(n))
	_, _ = fmt.Fprintf(w, "successfully set klog.logging.verbosity to %d", n)
}
