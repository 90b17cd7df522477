// Package volume manages the files that containers see: their pods' volumes, /etc/hosts and termination logs.
//
// # Model
//
// A Manager owns <root-dir>/pods, with the kubelet's layout, and one tmpfs at <root-dir>/memory. SetUp sets up a pod's
// volumes, Mounts returns the mounts of one container for the runtime, TearDown removes everything. Content from the
// API (ConfigMaps, Secrets, tokens, pod metadata) is written as a payload: a directory of files that is replaced as a
// whole, by replacing one symbolic link, so that no reader ever sees a mixture:
//
//	<volume>/..2026_11_20_10_30_00.123456789/<file>     a payload, complete before anything points to it
//	<volume>/..data -> ..2026_11_20_10_30_00.123456789  replaced by rename(2)
//	<volume>/<file> -> ..data/<file>                    the path that programs open
//
// # Secrets stay in memory
//
// Secret, projected and downwardAPI volumes are below <root-dir>/memory. That is one tmpfs for all pods, not swappable
// if the kernel supports it (noswap, Linux 6.4), and closed to everyone except root. The kubelet mounts one tmpfs per
// volume. That costs a mount and an unmount per pod. It also makes the mount table longer, which the runtime copies and
// walks for every container that it starts. The directory on which the kubelet would mount,
// <root-dir>/pods/<uid>/volumes/kubernetes.io~secret/<name>, is a symbolic link here, for people and tools that look
// there. The runtime is always given the real path, so that nothing depends on following links. When the agent ends, it
// replaces these links by bind mounts, with which a kubelet goes on (HandOver).
//
// Running containers keep the mounts that they were started with. So where a kubelet has mounted a tmpfs for a volume,
// the content of that volume stays there as long as its pod does.
//
// # Invariants
//
//   - SetUp may be interrupted at any moment, also by a crash, and repeated: every step either has no visible effect or
//     is complete. What exists under its final name is ready.
//   - No name or path of a pod leads out of the pod's directories. Names are single path elements. The kernel resolves
//     subPaths beneath their volume (openat2), and they are bind-mounted before the runtime gets them.
//   - TearDown removes nothing through a mount or a link: it unmounts first, checks, and then removes file by file
//     without following or crossing anything.
//   - Links that a container makes never determine what is read from or written to a volume.
//   - Of a file that containers may write, no more is read than it should contain (host/untrusted).
//   - No pod can use up the memory of all secrets, or make the agent build content without bounds (core/volumelimit).
//   - On a full disk, or in full memory, existing content stays as it is, and tries to update it leave nothing behind.
//
// # Limits of the package
//
// Images are mounted by the container runtime, and pulled by others: a volume of kind image has no path here. Volumes
// of CSI drivers are mounted by agent/csivolume, also those of kinds that were migrated to CSI drivers (migrated.go),
// and so are those of kind nfs. Other kinds (iSCSI, ...) are refused with an error that says what to use in their
// place, also behind a claim. Volumes of kind local must be directories: no device is formatted or mounted. Quotas and
// usage belong to eviction. The package never calls the container runtime.
package volume

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/plimsoll-dev/plimsoll/internal/agent/csivolume"
	"github.com/plimsoll-dev/plimsoll/internal/agent/podcert"
	"github.com/plimsoll-dev/plimsoll/internal/agent/poddir"
	"github.com/plimsoll-dev/plimsoll/internal/agent/turns"
	"github.com/plimsoll-dev/plimsoll/internal/agent/volumestats"
	"github.com/plimsoll-dev/plimsoll/internal/core/volumelimit"
	"github.com/plimsoll-dev/plimsoll/internal/host/shortage"
	"github.com/plimsoll-dev/plimsoll/internal/kube"
)

// Objects is the cache of the objects that pods reference; *objectcache.Cache implements it.
type Objects interface {
	// Track watches the objects that pod references. If it references too many, Track returns an error, and the pod's
	// former references stay.
	Track(pod *corev1.Pod) error
	Untrack(uid types.UID)
	ConfigMap(ctx context.Context, namespace, name string) (*corev1.ConfigMap, error)
	Secret(ctx context.Context, namespace, name string) (*corev1.Secret, error)
}

// TrustBundles has the certificates of ClusterTrustBundles; *trustbundle.Cache implements it.
type TrustBundles interface {
	// Anchors returns the certificates that a source of a volume of a pod selects, as PEM.
	Anchors(ctx context.Context, uid types.UID, source *corev1.ClusterTrustBundleProjection) ([]byte, error)
	Untrack(uid types.UID)
}

// Certificates has the keys and certificates of pods; *podcert.Cache implements it.
type Certificates interface {
	// Credentials returns what a source has at present. written returns what its volume has already.
	Credentials(
		ctx context.Context, pod *corev1.Pod, at podcert.Place, source *corev1.PodCertificateProjection,
		written func() []byte,
	) (podcert.Credentials, error)
	Untrack(uid types.UID)
}

// TokenRequester requests a service account token.
type TokenRequester func(ctx context.Context, namespace, serviceAccount string,
	request *authenticationv1.TokenRequest) (*authenticationv1.TokenRequest, error)

// KubeTokens returns a TokenRequester that asks c's API server.
func KubeTokens(c *kube.Client) TokenRequester {
	return func(ctx context.Context, namespace, serviceAccount string,
		request *authenticationv1.TokenRequest) (*authenticationv1.TokenRequest, error) {
		answer := &authenticationv1.TokenRequest{}
		return answer, c.Create(ctx, kube.ServiceAccounts, namespace, serviceAccount, request, answer, "token")
	}
}

// Options tell where volumes are stored and where their content comes from. All fields but Bundles and Certificates are
// required.
type Options struct {
	RootDir       string // the agent's root directory, an absolute path; created if missing
	ClusterDomain string // for hosts files
	Objects       Objects
	Tokens        TokenRequester
	Claims        ClaimSource
	Bundles       TrustBundles               // nil: volumes with a source clusterTrustBundle are not supported
	Certificates  Certificates               // nil: volumes with a source podCertificate are not supported
	MaxPods       int                        // of the node: how many shares the memory for secrets has
	NodeLabels    func() map[string]string   // of this node, at present
	Allocatable   func() corev1.ResourceList // of this node, at present
	// CSI has the volumes that CSI drivers mount. nil: they are not supported.
	CSI *csivolume.Manager
	// Usage asks how full volumes behind claims and those of drivers are. nil: nobody asks.
	Usage *volumestats.Reader
	// Took measures an operation on a volume: volume_mount, volume_unmount. Optional.
	Took func(plugin, operation string, took time.Duration, err error)
}

// Manager manages the volumes of the pods on this node. It is safe for concurrent use.
type Manager struct {
	Options
	ctx     context.Context
	pods    string // <root-dir>/pods
	memory  string // <root-dir>/memory
	selinux bool   // the runtime must relabel files that the agent creates
	clock   func() moment

	preparing sync.Mutex
	prepared  bool // the directories and the tmpfs exist; guarded by preparing

	// mu guards byPod.
	mu    sync.Mutex
	byPod map[types.UID]*podState

	refresher refresher
	readers   *turns.Starts // of the pods that read their claims
}

// podState is the state of one pod. Its fields are guarded by mu, which is locked during SetUp, refreshes and TearDown,
// so that they never run at the same time for one pod.
type podState struct {
	latest atomic.Pointer[corev1.Pod] // as last received from the API; mu is not needed

	mu    sync.Mutex
	gone  bool        // torn down: look up the pod's state again
	pod   *corev1.Pod // as last set up or refreshed
	ready map[string]bool
	// volumes on which a kubelet mounted a tmpfs: their containers read that one, so their content is written there
	adopted map[string]bool
	claims  map[string]claimed         // what is behind claims, and volumes of drivers
	read    map[string]readClaim       // claims that wait for a driver
	wrote   map[string]payloadSum      // the present content of content volumes
	uses    map[string]volumelimit.Use // and what that content takes
	tokens  map[tokenKey]*token
	timer   *time.Timer // next renewal or retry
	tries   int         // failed refreshes in a row

	missing missing // of the objects of ready volumes
}

// setUpMax bounds one attempt to set up a pod's volumes (chosen).
const setUpMax = 2 * time.Minute

// dirMode is the kubelet's mode of a pod's directories: readable by root's group, closed to others.
const dirMode = 0o750

// New prepares the directories and the shared tmpfs. Background refreshes end with ctx. Mounts stay, because running
// containers use them (see UnmountAll).
func New(ctx context.Context, o Options) (*Manager, error) {
	if !filepath.IsAbs(o.RootDir) {
		return nil, fmt.Errorf("prepare volumes: root directory %q: must be an absolute path", o.RootDir)
	}
	if err := os.MkdirAll(o.RootDir, dirMode); err != nil {
		return nil, fmt.Errorf("prepare volumes: %w", err)
	}
	// The mount table has real paths; the Manager's paths must be comparable with them.
	root, err := filepath.EvalSymlinks(o.RootDir)
	if err != nil {
		return nil, fmt.Errorf("prepare volumes: %w", err)
	}
	o.RootDir = root
	k := &Manager{
		Options: o, ctx: ctx,
		pods: filepath.Join(root, poddir.Pods), memory: filepath.Join(root, "memory"),
		byPod: map[types.UID]*podState{}, clock: clockFrom(time.Now()),
		readers: turns.NewStarts(readersMax),
	}
	if err := k.prepareDirs(); shortage.Is(err) {
		slog.Warn("volumes cannot be set up yet; trying again with each pod", "err", err)
	} else if err != nil {
		return nil, err
	}
	_, err = os.Stat("/sys/fs/selinux/enforce")
	k.selinux = err == nil
	return k, nil
}

// prepareDirs creates what New prepares. On a full disk that must wait until space has been freed, possibly by this
// agent.
func (k *Manager) prepareDirs() error {
	k.preparing.Lock()
	defer k.preparing.Unlock()
	if k.prepared {
		return nil
	}
	if err := os.MkdirAll(k.pods, dirMode); err != nil {
		return fmt.Errorf("prepare volumes: %w", err)
	}
	if err := mountMemory(k.memory); err != nil {
		return fmt.Errorf("prepare volumes: mount tmpfs for secrets: %s: %w", k.memory, err)
	}
	k.prepared = true
	return nil
}

// SetUp sets up every volume of pod, or returns Failures with those that it could not set up. It may be called again at
// any time; a volume that is up to date costs no system call. A volume that already has content, also from before a
// restart of the agent, is not a failure if its content cannot be updated now: its containers may start with the
// present content, and the Manager keeps trying. SetUp waits for pods that came before and read their claims, and then
// for the API server for a bounded time; cancel ctx to wait less.
func (k *Manager) SetUp(ctx context.Context, pod *corev1.Pod) error {
	if err := errors.Join(checkPod(pod), k.prepareDirs()); err != nil {
		return err
	}
	if err := k.readClaims(ctx, pod); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, setUpMax)
	defer cancel()
	s := k.lockPod(pod.UID)
	defer s.mu.Unlock()
	if err := k.Objects.Track(pod); err != nil {
		return err
	}
	first := s.pod == nil
	if first {
		fresh, err := k.prepare(pod.UID)
		if err != nil {
			return err
		}
		if !fresh {
			if s.adopted, err = k.mountedByKubelet(pod); err != nil {
				return err
			}
		}
	}
	s.pod = pod
	s.latest.Store(pod)
	var failures, stale Failures
	for i := range pod.Spec.Volumes {
		v := &pod.Spec.Volumes[i]
		begun := time.Now()
		err := k.setUpVolume(ctx, s, v)
		if !s.ready[v.Name] && !s.claims[v.Name].byCSI { // csivolume measures those of drivers
			k.measure(pluginOf(s, v), "volume_mount", begun, err)
		}
		switch {
		case err == nil:
			s.ready[v.Name] = true
		case s.ready[v.Name] || readOnly(v) && hasContent(k.pathOf(s, pod.UID, v)):
			s.ready[v.Name] = true
			stale = append(stale, Failure{v.Name, err})
		default:
			failures = append(failures, Failure{v.Name, err})
		}
		if s.ready[v.Name] {
			k.askAbout(s, v)
		}
	}
	if stale != nil {
		k.logFailures(s, stale)
	}
	k.schedule(s, append(stale, failures...))
	if failures != nil {
		return failures
	}
	return nil
}

// Update receives the present pod. If its labels, annotations or specification changed, the volumes that show them are
// refreshed in the background. It returns at once; a pod that was never set up is ignored.
func (k *Manager) Update(pod *corev1.Pod) {
	k.mu.Lock()
	s := k.byPod[pod.UID]
	k.mu.Unlock()
	if s == nil {
		return
	}
	had := s.latest.Swap(pod)
	if had == nil || had.Generation != pod.Generation || !maps.Equal(had.Labels, pod.Labels) ||
		!maps.Equal(had.Annotations, pod.Annotations) {
		k.Changed(pod.UID)
	}
}

// prepare creates the pod's directories and removes what a crash left incomplete. It returns whether the pod is new
// here.
func (k *Manager) prepare(uid types.UID) (fresh bool, err error) {
	volumes := filepath.Join(k.podDir(uid), poddir.Volumes)
	if err := os.Mkdir(k.podDir(uid), dirMode); err == nil {
		return true, os.Mkdir(volumes, dirMode)
	}
	if err := os.MkdirAll(volumes, dirMode); err != nil {
		return false, fmt.Errorf("create pod directory: %w", err)
	}
	return false, clearUnfinished(filepath.Join(volumes, poddir.EmptyDir))
}

// mountedByKubelet returns the pod's volumes on which a kubelet mounted a tmpfs of their own before this agent took the
// node over. What an earlier agent mounted for a kubelet is unmounted.
func (k *Manager) mountedByKubelet(pod *corev1.Pod) (map[string]bool, error) {
	adopted := map[string]bool{}
	for i := range pod.Spec.Volumes {
		v := &pod.Spec.Volumes[i]
		kind, _ := kindOf(v)
		if !kind.memory {
			continue
		}
		visible := k.visiblePath(pod.UID, kind.dir, v.Name)
		// What this agent makes there is a link. An error says that nothing is there.
		mounted, err := crossesDevice(filepath.Dir(visible), visible)
		if err != nil || !mounted {
			continue
		}
		ours, err := k.takeBack(pod.UID, kind.dir, v.Name)
		if err != nil {
			return nil, fmt.Errorf("take volume %q back: %w", v.Name, err)
		}
		if !ours {
			adopted[v.Name] = true
		}
	}
	return adopted, nil
}

// VolumePath returns the host path of a volume of pod that SetUp has set up, and is not an image.
func (k *Manager) VolumePath(pod *corev1.Pod, name string) (string, error) {
	k.mu.Lock()
	s := k.byPod[pod.UID]
	k.mu.Unlock()
	if s != nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		for i := range pod.Spec.Volumes {
			if v := &pod.Spec.Volumes[i]; v.Name == name && s.ready[name] && v.Image == nil {
				if c, ok := s.claims[name]; ok {
					return c.path, nil
				}
				return k.pathOf(s, pod.UID, v), nil
			}
		}
	}
	return "", fmt.Errorf("volume %q is not set up", name)
}

// lockPod returns the pod's state, locked.
func (k *Manager) lockPod(uid types.UID) *podState {
	for {
		k.mu.Lock()
		s := k.byPod[uid]
		if s == nil {
			s = &podState{ready: map[string]bool{}, claims: map[string]claimed{}, read: map[string]readClaim{},
				wrote: map[string]payloadSum{},
				uses:  map[string]volumelimit.Use{}, tokens: map[tokenKey]*token{}}
			k.byPod[uid] = s
		}
		k.mu.Unlock()
		s.mu.Lock()
		if !s.gone {
			return s
		}
		s.mu.Unlock() // TearDown was faster; a static pod may return with the same UID
	}
}
