// Package runtimehandler knows the handlers of the container runtime: which one a pod requests, and which features they
// have.
//
// A pod's RuntimeClass names a handler. The object is read from the API for each sandbox, because it may be deleted and
// created again with another handler. Learn reads the handlers' features from the runtime. It is called at intervals,
// since the runtime may be replaced by another release. Before the first call, and with runtimes that do not report a
// feature, handlers count as lacking it. No runtime reports whether it mounts images: its name and release decide.
//
// It judges no pod: if a RuntimeClass does not exist, creating the pod's sandbox fails.
package runtimehandler

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync"

	"google.golang.org/grpc"
	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/plimsoll-dev/plimsoll/internal/kube"
	"github.com/plimsoll-dev/plimsoll/internal/kube/podfields"
)

// Handlers knows the handlers of one runtime.
type Handlers struct {
	client *kube.Client

	mu    sync.Mutex // guards everything that follows
	known Knowledge
}

// Knowledge is what is known of a runtime. The zero value is nothing.
type Knowledge struct {
	podfields.Abilities // without regard to the kernel
	// ImageDirectories means that the runtime can mount single directories of images.
	ImageDirectories bool

	recursive, users map[string]bool // whether a handler has the feature
}

// New prepares Handlers. client reads RuntimeClasses.
func New(client *kube.Client) *Handlers { return &Handlers{client: client} }

// Runtime reports the features of its handlers; *cri.Client implements it.
type Runtime interface {
	Status(context.Context, *runtimeapi.StatusRequest, ...grpc.CallOption) (*runtimeapi.StatusResponse, error)
	Version(context.Context, *runtimeapi.VersionRequest, ...grpc.CallOption) (*runtimeapi.VersionResponse, error)
}

// Learn asks the runtime for its features and those of its handlers, and reports whether they have changed. If a
// runtime does not report features (containerd before 2.0), its handlers count as having none.
func (h *Handlers) Learn(ctx context.Context, runtime Runtime) (changed bool, err error) {
	status, err := runtime.Status(ctx, &runtimeapi.StatusRequest{})
	if err != nil {
		return false, err
	}
	version, err := runtime.Version(ctx, &runtimeapi.VersionRequest{})
	if err != nil {
		return false, err
	}
	known := Of(version.RuntimeName, version.RuntimeVersion, status.RuntimeHandlers)
	h.mu.Lock()
	defer h.mu.Unlock()
	changed = h.known.Abilities != known.Abilities
	h.known = known
	return changed, nil
}

// Of returns the features of a runtime of this name and release with these handlers.
func Of(name, release string, handlers []*runtimeapi.RuntimeHandler) Knowledge {
	k := Knowledge{recursive: map[string]bool{}, users: map[string]bool{}}
	for _, handler := range handlers {
		f := handler.GetFeatures()
		k.recursive[handler.Name], k.users[handler.Name] = f.GetRecursiveReadOnlyMounts(), f.GetUserNamespaces()
		k.UserNamespaces = k.UserNamespaces || f.GetUserNamespaces()
	}
	since, ok := imagesSince[name]
	k.ImageVolumes = ok && !before(release, since.whole)
	k.ImageDirectories = ok && !before(release, since.directories)
	return k
}

// imagesSince are the first releases that mount images, and directories of images. containerd: by its source at 2.1.5,
// which has no ImageSubPath, and 2.2.0. CRI-O: by the Kubernetes blog on image volumes in 1.31 and 1.33.
var imagesSince = map[string]struct{ whole, directories [2]int }{
	"containerd": {[2]int{2, 1}, [2]int{2, 2}},
	"cri-o":      {[2]int{1, 31}, [2]int{1, 33}},
}

// before reports whether a release (2.1.5, v2.2.0-rc.1, 1.6.20~ds1) is older than major.minor, or cannot be parsed.
func before(release string, than [2]int) bool {
	var major, minor int
	if n, _ := fmt.Sscanf(strings.TrimPrefix(release, "v"), "%d.%d", &major, &minor); n != 2 {
		return true
	}
	return major < than[0] || major == than[0] && minor < than[1]
}

// Known returns what was learned last.
func (h *Handlers) Known() Knowledge {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.known
}

// RecursiveReadOnly reports whether a handler supports recursive read-only mounts.
func (h *Handlers) RecursiveReadOnly(handler string) bool { return h.Known().recursive[handler] }

// UserNamespaces reports whether a handler supports user namespaces.
func (h *Handlers) UserNamespaces(handler string) bool { return h.Known().users[handler] }

// For looks up the handler of the pod's RuntimeClass; empty means the runtime's default.
func (h *Handlers) For(ctx context.Context, pod *corev1.Pod) (string, error) {
	if pod.Spec.RuntimeClassName == nil || *pod.Spec.RuntimeClassName == "" {
		return "", nil
	}
	name := *pod.Spec.RuntimeClassName
	body, err := h.client.REST(corev1.SchemeGroupVersion).Get().AbsPath("/apis/node.k8s.io/v1/runtimeclasses", name).
		SetHeader("Accept", "application/json").DoRaw(ctx)
	if err != nil {
		return "", fmt.Errorf("read RuntimeClass %q: %w", name, err)
	}
	var class struct {
		Handler string `json:"handler"`
	}
	if err := json.Unmarshal(body, &class); err != nil {
		return "", fmt.Errorf("read RuntimeClass %q: %w", name, err)
	}
	return class.Handler, nil
}
