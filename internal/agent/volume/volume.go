// Package volume keeps the files that containers see: their pods' volumes, /etc/hosts and termination logs.
//
// # Model
//
// A Keeper owns <root-dir>/pods, laid out as upstream's kubelet lays it out, and one tmpfs at <root-dir>/memory.
// SetUp makes a pod's volumes, Mounts tells what to hand to the runtime for one container, TearDown removes all of it.
// Content that comes from the API (configMaps, secrets, tokens, pod metadata) is written as a payload: a directory of
// files that changes all at once, by the swap of one symbolic link, so that no reader ever sees a mixture:
//
//	<volume>/..2026_11_20_10_30_00.123456789/<file>     a payload, complete before anything points to it
//	<volume>/..data -> ..2026_11_20_10_30_00.123456789  swapped by rename(2)
//	<volume>/<file> -> ..data/<file>                    what programs open
//
// # Secrets stay in memory
//
// Secret, projected and downwardAPI volumes live below <root-dir>/memory, which is one tmpfs for all pods, not
// swappable where the kernel can (noswap, Linux 6.4), and closed to everyone but root. Upstream mounts one tmpfs per
// volume. That costs a mount and an unmount per pod and, worse, lengthens the mount table that the runtime copies and
// walks for every container it starts. The directory upstream would have mounted on,
// <root-dir>/pods/<uid>/volumes/kubernetes.io~secret/<name>, is a symbolic link here, for people and tools that look
// there; the runtime is always given the real path, so that nothing depends on who follows links.
//
// # Invariants
//
//   - SetUp may be interrupted at any instant, by a crash too, and repeated: every step either has no effect that
//     matters or is complete. What exists under its final name is ready.
//   - No name or path that a pod gives leads out of the pod's directories; names are single path elements, subPaths are
//     resolved by the kernel beneath their volume (openat2) and pinned by a bind mount before the runtime sees them.
//   - TearDown removes nothing through a mount or a link: it unmounts first, checks, and then deletes file by file
//     without following or crossing anything.
//   - Nothing is read from or written to a volume on behalf of a container's choice of links.
//   - Of what containers may write, no more is read than it should hold (host/untrusted).
//   - No pod can take the memory of all secrets, or have the agent make content without end (core/volumelimit).
//   - On a full disk, or in full memory, what is there stays as it is, and tries to renew it leave nothing behind.
//
// # Not here
//
// Volumes that need a driver (CSI, NFS, ...) are refused by name, also where a claim stands before them. Volumes of
// kind local are directories here: no device is formatted or mounted. Quotas and usage belong to eviction. Nothing here
// talks to the container runtime.
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

	"github.com/plimsoll-dev/plimsoll/internal/core/volumelimit"
	"github.com/plimsoll-dev/plimsoll/internal/host/shortage"
	"github.com/plimsoll-dev/plimsoll/internal/kube"
)

// Objects is the cache of what pods name; *objectcache.Cache is one.
type Objects interface {
	// Track follows what pod names, or says that it names too many objects and goes on as before.
	Track(pod *corev1.Pod) error
	Untrack(uid types.UID)
	ConfigMap(ctx context.Context, namespace, name string) (*corev1.ConfigMap, error)
	Secret(ctx context.Context, namespace, name string) (*corev1.Secret, error)
}

// TokenRequester asks for a service-account token.
type TokenRequester func(ctx context.Context, namespace, serviceAccount string, request *authenticationv1.TokenRequest) (*authenticationv1.TokenRequest, error)

// KubeTokens asks the API server that c speaks to.
func KubeTokens(c *kube.Client) TokenRequester {
	return func(ctx context.Context, namespace, serviceAccount string, request *authenticationv1.TokenRequest) (*authenticationv1.TokenRequest, error) {
		answer := &authenticationv1.TokenRequest{}
		return answer, c.Create(ctx, kube.ServiceAccounts, namespace, serviceAccount, request, answer, "token")
	}
}

// Options say where volumes are kept and where their content comes from. All fields are required.
type Options struct {
	RootDir       string // the agent's root directory, an absolute path; made if missing
	ClusterDomain string // for hosts files
	Objects       Objects
	Tokens        TokenRequester
	Claims        ClaimSource
	MaxPods       int                        // that the node takes: the shares of the memory for secrets
	NodeLabels    func() map[string]string   // of this node, now
	Allocatable   func() corev1.ResourceList // of this node, now
}

// Keeper keeps the volumes of the pods on this node. It is safe for concurrent use.
type Keeper struct {
	Options
	ctx     context.Context
	pods    string // <root-dir>/pods
	memory  string // <root-dir>/memory
	selinux bool   // the runtime must relabel what we made
	clock   func() moment

	preparing sync.Mutex
	prepared  bool // the directories and the tmpfs are there; guarded by preparing

	mu     sync.Mutex
	places map[types.UID]*place

	refresher refresher
}

// place is what the Keeper knows of one pod. Its fields are guarded by mu, which is held through SetUp, refreshes and
// TearDown, so that they never run together for one pod.
type place struct {
	latest atomic.Pointer[corev1.Pod] // as last heard of; mu is not needed

	mu     sync.Mutex
	gone   bool        // torn down: look the pod up again
	pod    *corev1.Pod // as last set up or refreshed
	ready  map[string]bool
	claims map[string]claimed         // of volumes that are ready
	wrote  map[string]payloadSum      // what a content volume holds now
	uses   map[string]volumelimit.Use // and what that takes
	tokens map[tokenKey]*token
	timer  *time.Timer // next renewal or retry
	tries  int         // failed refreshes in a row

	missing missing // objects that ready volumes show
}

// The parts of a pod's directory. Upstream's modes: readable by root's group, closed to others.
const (
	dirMode     = 0o750
	volumesDir  = "volumes"
	subPathsDir = "volume-subpaths"
)

// New prepares the directories and the shared tmpfs. Background refreshes end with ctx; mounts stay, because running
// containers use them (see UnmountAll).
func New(ctx context.Context, o Options) (*Keeper, error) {
	if !filepath.IsAbs(o.RootDir) {
		return nil, fmt.Errorf("prepare volumes: root directory %q: must be an absolute path", o.RootDir)
	}
	if err := os.MkdirAll(o.RootDir, dirMode); err != nil {
		return nil, fmt.Errorf("prepare volumes: %w", err)
	}
	// The mount table holds real paths; ours must be comparable with them.
	root, err := filepath.EvalSymlinks(o.RootDir)
	if err != nil {
		return nil, fmt.Errorf("prepare volumes: %w", err)
	}
	o.RootDir = root
	k := &Keeper{
		Options: o, ctx: ctx,
		pods: filepath.Join(root, "pods"), memory: filepath.Join(root, "memory"),
		places: map[types.UID]*place{}, clock: clockFrom(time.Now()),
	}
	if err := k.prepareDirs(); shortage.Is(err) {
		slog.Warn("no volumes can be made yet; trying again with each pod", "err", err)
	} else if err != nil {
		return nil, err
	}
	_, err = os.Stat("/sys/fs/selinux/enforce")
	k.selinux = err == nil
	return k, nil
}

// prepareDirs makes what New prepares. On a full disk that has to wait until somebody has freed it, who may be this
// agent.
func (k *Keeper) prepareDirs() error {
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

// SetUp makes every volume of pod, or returns Failures that name those it could not make. It may be called again at
// any time; what is up to date costs no system call. A volume that has content already, from before a restart of the
// agent too, is no failure because its content cannot be refreshed now: its containers may start with what it has, and
// the Keeper goes on trying.
// It waits for the API server, bounded; cancel ctx to wait less.
func (k *Keeper) SetUp(ctx context.Context, pod *corev1.Pod) error {
	if err := errors.Join(checkPod(pod), k.prepareDirs()); err != nil {
		return err
	}
	s := k.lockPlace(pod.UID)
	defer s.mu.Unlock()
	if err := k.Objects.Track(pod); err != nil {
		return err
	}
	first := s.pod == nil
	if first {
		if err := k.prepare(pod.UID); err != nil {
			return err
		}
	}
	s.pod = pod
	s.latest.Store(pod)
	var failures, stale Failures
	for i := range pod.Spec.Volumes {
		v := &pod.Spec.Volumes[i]
		err := k.setUpVolume(ctx, s, v)
		switch {
		case err == nil:
			s.ready[v.Name] = true
		case s.ready[v.Name] || readOnly(v) && hasContent(k.pathOf(pod.UID, v)):
			s.ready[v.Name] = true
			stale = append(stale, Failure{v.Name, err})
		default:
			failures = append(failures, Failure{v.Name, err})
		}
	}
	if stale != nil {
		k.complain(s, stale)
	}
	k.schedule(s, append(stale, failures...))
	if failures != nil {
		return failures
	}
	return nil
}

// Update says what a pod is like now. If its labels, annotations or spec changed, the volumes that show them are
// refreshed in the background. It returns at once; a pod that was never set up is ignored.
func (k *Keeper) Update(pod *corev1.Pod) {
	k.mu.Lock()
	s := k.places[pod.UID]
	k.mu.Unlock()
	if s == nil {
		return
	}
	had := s.latest.Swap(pod)
	if had == nil || had.Generation != pod.Generation || !maps.Equal(had.Labels, pod.Labels) || !maps.Equal(had.Annotations, pod.Annotations) {
		k.Changed(pod.UID)
	}
}

// prepare makes the pod's directories and clears what a crash left half-made.
func (k *Keeper) prepare(uid types.UID) error {
	volumes := filepath.Join(k.podDir(uid), volumesDir)
	if err := os.Mkdir(k.podDir(uid), dirMode); err == nil {
		return os.Mkdir(volumes, dirMode)
	}
	if err := os.MkdirAll(volumes, dirMode); err != nil {
		return fmt.Errorf("make pod directory: %w", err)
	}
	return clearUnfinished(filepath.Join(volumes, emptyDirPlugin))
}

// VolumePath returns where a volume of pod that SetUp made is on the host.
func (k *Keeper) VolumePath(pod *corev1.Pod, name string) (string, error) {
	k.mu.Lock()
	s := k.places[pod.UID]
	k.mu.Unlock()
	if s != nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		for i := range pod.Spec.Volumes {
			if v := &pod.Spec.Volumes[i]; v.Name == name && s.ready[name] {
				if c, ok := s.claims[name]; ok {
					return c.path, nil
				}
				return k.pathOf(pod.UID, v), nil
			}
		}
	}
	return "", fmt.Errorf("volume %q is not set up", name)
}

// lockPlace returns the pod's place, locked.
func (k *Keeper) lockPlace(uid types.UID) *place {
	for {
		k.mu.Lock()
		s := k.places[uid]
		if s == nil {
			s = &place{ready: map[string]bool{}, claims: map[string]claimed{}, wrote: map[string]payloadSum{}, uses: map[string]volumelimit.Use{}, tokens: map[tokenKey]*token{}}
			k.places[uid] = s
		}
		k.mu.Unlock()
		s.mu.Lock()
		if !s.gone {
			return s
		}
		s.mu.Unlock() // TearDown was faster; a static pod may come back under its UID
	}
}
