package containerconfig

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/plimsoll-dev/plimsoll/internal/agent/criconfig"
	"github.com/plimsoll-dev/plimsoll/internal/agent/dns"
	"github.com/plimsoll-dev/plimsoll/internal/agent/env"
	"github.com/plimsoll-dev/plimsoll/internal/agent/volume"
	"github.com/plimsoll-dev/plimsoll/internal/kube/manifests"
	"github.com/plimsoll-dev/plimsoll/internal/kube/podfields"
	"github.com/plimsoll-dev/plimsoll/internal/kube/podfields/sample"
	"github.com/plimsoll-dev/plimsoll/internal/kube/translate"
)

// shop has the API's objects that the samples name.
type shop struct{}

func (shop) Track(*corev1.Pod) error { return nil }
func (shop) Untrack(types.UID)       {}

func (shop) ConfigMap(_ context.Context, _, name string) (*corev1.ConfigMap, error) {
	if name != "shop" {
		return nil, apierrors.NewNotFound(corev1.Resource("configmaps"), name)
	}
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name},
		Data: map[string]string{"colour": "red", "size": "7"}}, nil
}

func (shop) Secret(_ context.Context, _, name string) (*corev1.Secret, error) {
	if name != "safe" {
		return nil, apierrors.NewNotFound(corev1.Resource("secrets"), name)
	}
	return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name},
		Data: map[string][]byte{"pin": []byte("1"), "puk": []byte("2")}}, nil
}

func (shop) Claim(_ context.Context, namespace, name string) (*corev1.PersistentVolumeClaim, error) {
	if name != "data" {
		return nil, apierrors.NewNotFound(corev1.Resource("persistentvolumeclaims"), name)
	}
	return &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: "claim"},
		Spec:       corev1.PersistentVolumeClaimSpec{VolumeName: "pv"},
		Status:     corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimBound},
	}, nil
}

func (shop) Volume(_ context.Context, name string) (*corev1.PersistentVolume, error) {
	pv := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: name}}
	pv.Spec.ClaimRef = &corev1.ObjectReference{UID: "claim"}
	pv.Spec.HostPath = &corev1.HostPathVolumeSource{Path: "/srv"}
	return pv, nil
}

// token contains everything that was requested. It is valid for longer than any test runs.
func (shop) token(_ context.Context, _, account string,
	request *authenticationv1.TokenRequest) (*authenticationv1.TokenRequest, error) {
	const issued = 4_000_000_000 // in 2096
	claims, err := json.Marshal(map[string]any{
		"iat": issued, "exp": issued + *request.Spec.ExpirationSeconds, "aud": request.Spec.Audiences, "sub": account,
		"kubernetes.io": map[string]any{"pod": map[string]any{"uid": request.Spec.BoundObjectRef.UID}},
	})
	out := request.DeepCopy()
	out.Status.Token = "e30." + base64.RawURLEncoding.EncodeToString(claims) + ".sig"
	out.Status.ExpirationTimestamp = metav1.Unix(issued+*request.Spec.ExpirationSeconds, 0)
	return out, err
}

// plainGroups are Groups without limits, which other tests check.
type plainGroups struct{}

func (plainGroups) Resources(*corev1.Pod, *corev1.Container) *runtimeapi.LinuxContainerResources {
	return nil
}
func (plainGroups) SandboxResources(*corev1.Pod) (overhead, resources *runtimeapi.LinuxContainerResources) {
	return nil, nil
}

// noAssignments is a node that assigns nothing.
type noAssignments struct{}

func (noAssignments) Note(string) string { return "" }

// hostUsers is a node on which all pods have the host's users.
type hostUsers struct{}

func (hostUsers) Of(*corev1.Pod) (*runtimeapi.UserNamespace, error) { return nil, nil }

// noDevices is a node without plugins.
type noDevices struct{}

func (noDevices) Configure(context.Context, string, string, *runtimeapi.ContainerConfig) error {
	return nil
}

// nodeOfSamples is a builder with a directory of its own, in which volumes are really set up.
func nodeOfSamples(t *testing.T, root string) (Builder, *volume.Manager) {
	t.Helper()
	allocatable := func() corev1.ResourceList {
		return corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("8"),
			corev1.ResourceMemory: resource.MustParse("8Gi")}
	}
	service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "till"}}
	service.Spec = corev1.ServiceSpec{ClusterIP: "192.0.2.77", Ports: []corev1.ServicePort{{Port: 80}}}
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	keeper, err := volume.New(ctx, volume.Options{
		RootDir: root, ClusterDomain: "cluster.local", Objects: shop{}, Tokens: shop{}.token, Claims: shop{}, MaxPods: 10,
		NodeLabels: func() map[string]string { return nil }, Allocatable: allocatable,
	})
	if err != nil {
		t.Fatal(err)
	}
	return Builder{
		Node:        criconfig.Node{SeccompDir: filepath.Join(root, "seccomp"), LogDir: "/var/log/pods"},
		HostIPs:     []string{"192.0.2.1", "2001:db8::1"},
		Allocatable: allocatable,
		DNS:         dns.Resolver{ClusterDomain: "cluster.local", ClusterDNS: []string{"192.0.2.53"}},
		Env: &env.Builder{
			Objects: shop{}, Services: func(string) ([]*corev1.Service, error) { return []*corev1.Service{service}, nil },
		},
		Volumes:     keeper,
		Groups:      plainGroups{},
		Assignments: noAssignments{},
		Users:       hostUsers{},
		Devices:     noDevices{},
	}, keeper
}

// sampled is what the agent builds for one pod.
type sampled struct {
	sandbox    *runtimeapi.PodSandboxConfig
	containers []request
	files      []string
}

// request is the request for a container, or the error.
type request struct {
	Name   string
	Config json.RawMessage
	Error  string
}

// makeOf builds everything of a pod that is built before it runs, in a new directory.
func makeOf(t *testing.T, pod *corev1.Pod) (s sampled, err error) {
	root, err := os.MkdirTemp("", "fields")
	if err != nil {
		return s, err
	}
	defer func() { err = errors.Join(err, volume.UnmountAll(root), os.RemoveAll(root)) }()
	b, keeper := nodeOfSamples(t, root)
	manifests.DefaultPod(pod)
	if err := keeper.SetUp(t.Context(), pod); err != nil {
		return s, err
	}
	scratch := filepath.Join(root, "pods", string(pod.UID), "volumes", "kubernetes.io~empty-dir", "scratch")
	if _, err := os.Stat(scratch); err == nil { // what an init container might have left
		for _, dir := range []string{"a", pod.Name} {
			if err := os.MkdirAll(filepath.Join(scratch, dir), 0o755); err != nil {
				return s, err
			}
		}
		if err := os.WriteFile(filepath.Join(scratch, "app.env"), []byte("A='one'\n"), 0o600); err != nil {
			return s, err
		}
	}
	if s.sandbox, err = b.Sandbox(pod, Sandbox{CgroupParent: "/parent"}); err != nil {
		return s, err
	}
	for _, spec := range translate.PodlifeSpec(pod).Containers {
		c := translate.ContainerNamed(pod, spec.Name)
		config, err := b.Container(t.Context(), pod, c, Run{
			Image:             criconfig.Image{ID: "sha"},
			PodIPs:            []string{"192.0.2.7"},
			RecursiveReadOnly: true,
			Running:           map[string]string{"main": "id-main"},
		})
		if err != nil {
			s.containers = append(s.containers, request{Name: c.Name, Error: err.Error()})
			continue
		}
		text, err := json.Marshal(config)
		if err != nil {
			return s, err
		}
		s.containers = append(s.containers, request{Name: c.Name, Config: json.RawMessage(strings.ReplaceAll(string(text),
			root, "ROOT"))})
	}
	s.files, err = filesBelow(root)
	return s, err
}

// filesBelow lists the files that containers see, with mode, owner and content. It replaces the changing names of
// payload directories.
func filesBelow(root string) (files []string, err error) {
	err = filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.Type().IsRegular() == d.IsDir() {
			return err
		}
		info, err := os.Stat(path)
		if err != nil || info.IsDir() {
			return err
		}
		text, err := os.ReadFile(path)
		name, _ := filepath.Rel(root, path)
		parts := strings.Split(name, "/")
		for i, p := range parts {
			if strings.HasPrefix(p, "..") {
				parts[i] = ".."
			}
		}
		owner := info.Sys().(*syscall.Stat_t)
		files = append(files, fmt.Sprintf("%s %v %d:%d %s", strings.Join(parts, "/"), info.Mode(), owner.Uid, owner.Gid,
			text))
		return err
	})
	return files, err
}

func needRoot(t *testing.T) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root: volumes are mounts and files of other users")
	}
}

// TestFieldsOfSandbox: the request for a pod's sandbox changes with every field that affects it by the table.
func TestFieldsOfSandbox(t *testing.T) {
	needRoot(t)
	err := sample.Unproved(podfields.ObserverSandbox, func(pod *corev1.Pod) (any, error) {
		s, err := makeOf(t, pod)
		return s.sandbox, err
	})
	if err != nil {
		t.Error(err)
	}
}

// TestFieldsOfContainers: the requests for a pod's containers change with every field that affects them by the table.
func TestFieldsOfContainers(t *testing.T) {
	needRoot(t)
	err := sample.Unproved(podfields.ObserverContainer, func(pod *corev1.Pod) (any, error) {
		s, err := makeOf(t, pod)
		return s.containers, err
	})
	if err != nil {
		t.Error(err)
	}
}

// TestFieldsOfFiles: a pod's volumes and its hosts file change with every field that affects them by the table.
func TestFieldsOfFiles(t *testing.T) {
	needRoot(t)
	err := sample.Unproved(podfields.ObserverFiles, func(pod *corev1.Pod) (any, error) {
		s, err := makeOf(t, pod)
		return s.files, err
	})
	if err != nil {
		t.Error(err)
	}
}

// TestSamplesCanBeMade: every sample can be built, except those that are meant to fail. A sample that cannot be built
// would prove nothing.
func TestSamplesCanBeMade(t *testing.T) {
	needRoot(t)
	for _, pod := range sample.Pods() {
		s, err := makeOf(t, pod.DeepCopy())
		if err != nil {
			t.Errorf("%s: %v", pod.Name, err)
		}
		for _, c := range s.containers {
			if forbidden := strings.HasPrefix(pod.Name, "nonroot"); (c.Error != "") != forbidden ||
				forbidden && !strings.Contains(c.Error, "runAsNonRoot") {
				t.Errorf("%s: container %s: error %q", pod.Name, c.Name, c.Error)
			}
		}
	}
}
