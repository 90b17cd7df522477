// Package userns assigns IDs of the host to pods with hostUsers: false. core/userns decides which.
//
// # Model
//
// The range of IDs of a pod is in the file <root-dir>/pods/<uid>/userns, in the kubelet's format, so that a node can
// change from the kubelet to this agent and back with its pods running. The file is on the disk before the container
// runtime gets the IDs. Open reads the files of all pods before any pod gets new IDs. So no crash makes two pods have
// the same IDs: either the file exists, or the IDs were never used.
//
// The agent calls Of for every sandbox and container of a pod, and gets the same answer until it calls Release, when no
// container of the pod is left.
//
// # What it does not do
//
// It does not change the owners of files. Volumes are mounted idmapped, so that a pod sees their files with its own
// IDs: a file of the host's root belongs to root in the pod. runtimehandler and host/idmap know whether the runtime and
// the kernel support that.
package userns

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/plimsoll-dev/plimsoll/internal/core/userns"
	"github.com/plimsoll-dev/plimsoll/internal/host/durable"
)

// Users knows the IDs of pods. It is safe for concurrent use.
type Users struct {
	dir string // of pods
	why error  // why no pod can have a user namespace; nil: pods can

	mu     sync.Mutex // guards ranges, and the files
	ranges *userns.Ranges
}

// Lacking returns the Users of a node on which no pod can have a user namespace.
func Lacking(why error) *Users { return &Users{why: why} }

// Open reads the ranges of the pods of a directory. A file that cannot be read is no error: until its pod is gone, no
// other pod gets new ids.
func Open(dir string, config userns.Config) (*Users, error) {
	ranges, err := userns.New(config)
	if err != nil {
		return nil, err
	}
	u := &Users{dir: dir, ranges: ranges}
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	for _, e := range entries {
		if !e.IsDir() {
			continue
		}
		if err := u.recall(e.Name()); err != nil {
			slog.Warn("user ids of an earlier pod not known; no pod gets new ones until it is gone", "pod", e.Name(), "err", err)
		}
	}
	return u, nil
}

// recall records the range in a pod's file; if there is no file, the pod has no range. The caller holds mu, or no other
// goroutine has u yet.
func (u *Users) recall(pod string) error {
	have, err := read(u.path(pod))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		u.ranges.Release(pod)
		return nil
	case err != nil:
		u.ranges.Unknown(pod, err.Error())
		return err
	}
	return u.ranges.Record(pod, have)
}

func (u *Users) path(pod string) string { return filepath.Join(u.dir, pod, fileName) }

// Wants reports whether a pod requests a user namespace.
func Wants(pod *corev1.Pod) bool { return pod.Spec.HostUsers != nil && !*pod.Spec.HostUsers }

// Of returns a pod's user namespace for the runtime; nil: it has the host's. The pod's directory must exist.
func (u *Users) Of(pod *corev1.Pod) (*runtimeapi.UserNamespace, error) {
	if !Wants(pod) {
		return nil, nil
	}
	have, err := u.take(string(pod.UID))
	if err != nil {
		return nil, fmt.Errorf("create user namespace: %w", err)
	}
	ids := func() []*runtimeapi.IDMapping {
		return []*runtimeapi.IDMapping{{HostId: have.First, ContainerId: 0, Length: have.Length}}
	}
	return &runtimeapi.UserNamespace{Mode: runtimeapi.NamespaceMode_POD, Uids: ids(), Gids: ids()}, nil
}

func (u *Users) take(pod string) (userns.Range, error) {
	if u.why != nil {
		return userns.Range{}, u.why
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	if have, ok := u.ranges.Of(pod); ok {
		return have, nil
	}
	if err := u.recall(pod); err != nil { // the file may exist or be readable by now
		return userns.Range{}, err
	}
	have, fresh, err := u.ranges.Take(pod)
	if err != nil || !fresh {
		return have, err
	}
	if err := write(u.path(pod), have); err != nil {
		return userns.Range{}, errors.Join(err, u.forget(pod))
	}
	return have, nil
}

// Release is called when no container of a pod is left: other pods may get its IDs.
func (u *Users) Release(uid types.UID) {
	if u.why != nil {
		return
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	if err := u.forget(string(uid)); err != nil {
		slog.Warn("ids of a pod that is gone stay taken", "pod", uid, "err", err)
	}
}

// forget removes a pod's file, and then frees its IDs. If the file cannot be removed, its IDs stay taken. The caller
// holds mu.
func (u *Users) forget(pod string) error {
	if err := durable.Remove(u.path(pod)); err != nil {
		u.ranges.Unknown(pod, err.Error())
		return err
	}
	u.ranges.Release(pod)
	return nil
}

// getsubidsMax bounds a run of getsubids, which may ask a server (chosen).
const getsubidsMax = 10 * time.Second

// owner is the user whose subordinate IDs pods get, as in the kubelet.
const owner = "kubelet"

// ConfigOfHost returns which IDs pods of this machine may have: the subordinate IDs of the user "kubelet", if there is
// such a user and a program getsubids; otherwise all IDs from perPod on. pods is how many pods the node may have.
func ConfigOfHost(ctx context.Context, perPod uint32, pods int) (userns.Config, error) {
	config := userns.Default(perPod, pods)
	var unknown user.UnknownUserError
	if _, err := user.Lookup(owner); errors.As(err, &unknown) {
		return config, nil
	} else if err != nil {
		return config, fmt.Errorf("look up user %q: %w", owner, err)
	}
	program, err := exec.LookPath("getsubids")
	if errors.Is(err, exec.ErrNotFound) {
		return config, nil
	} else if err != nil {
		return config, err
	}
	ctx, cancel := context.WithTimeout(ctx, getsubidsMax)
	defer cancel()
	users, err := exec.CommandContext(ctx, program, owner).Output()
	if err != nil {
		return config, fmt.Errorf("getsubids %s: %w", owner, err)
	}
	groups, err := exec.CommandContext(ctx, program, "-g", owner).Output()
	if err != nil {
		return config, fmt.Errorf("getsubids -g %s: %w", owner, err)
	}
	if string(users) != string(groups) {
		const want = "subordinate ids of user %q: users %.200q, groups %.200q: want the same"
		return config, fmt.Errorf(want, owner, users, groups)
	}
	if config.First, config.Length, err = parseSubordinate(string(users)); err != nil {
		return config, fmt.Errorf("subordinate ids of user %q: %w", owner, err)
	}
	return config, config.Check()
}
