package volume

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/plimsoll-dev/plimsoll/internal/agent/csivolume"
	"github.com/plimsoll-dev/plimsoll/internal/agent/poddir"
	"github.com/plimsoll-dev/plimsoll/internal/host/mount"
)

// TearDown removes everything of a pod: its mounts, volumes, secrets, hosts file and termination logs. Its containers
// must have ended. It is idempotent and needs no earlier SetUp, so it also removes what an earlier agent made. After an
// error it may be called again; what was not unmounted is not removed.
func (k *Manager) TearDown(ctx context.Context, uid types.UID) error {
	return k.tearDown(ctx, uid, true)
}

// Release removes a pod's volumes, mounts and secrets, but not its directory with the termination logs. It is for a pod
// whose containers have ended for good while the pod still exists in the API. TearDown follows when the pod is deleted.
func (k *Manager) Release(ctx context.Context, uid types.UID) error {
	return k.tearDown(ctx, uid, false)
}

func (k *Manager) tearDown(ctx context.Context, uid types.UID, whole bool) (err error) {
	if err := checkElement("pod uid", string(uid)); err != nil {
		return err
	}
	s := k.lockPod(uid)
	defer s.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return err
	}
	if k.Usage != nil {
		k.Usage.Gone(uid)
	}
	pod := k.podDir(uid)
	if k.CSI != nil {
		// Drivers unmount what they have mounted; what the agent mounted of that goes first.
		if err := mount.UnmountBelow(filepath.Join(pod, poddir.SubPaths)); err != nil {
			return fmt.Errorf("tear down pod %s: %w", uid, err)
		}
		if !k.CSI.Release(uid) {
			return fmt.Errorf("tear down pod %s: %w", uid, &csivolume.WaitingError{Why: "drivers are unmounting its volumes"})
		}
	}
	s.gone = true
	if s.timer != nil {
		s.timer.Stop()
	}
	k.mu.Lock()
	delete(k.byPod, uid)
	k.mu.Unlock()
	k.Objects.Untrack(uid)
	if k.Bundles != nil {
		k.Bundles.Untrack(uid)
	}
	if k.Certificates != nil {
		k.Certificates.Untrack(uid)
	}

	begun := time.Now()
	defer func() {
		for name := range s.ready {
			if v := volumeNamed(s.pod, name); v != nil && !s.claims[name].byCSI {
				k.measure(pluginOf(s, v), "volume_unmount", begun, err)
			}
		}
	}()
	if err := mount.UnmountBelow(pod); err != nil {
		return fmt.Errorf("tear down pod %s: %w", uid, err)
	}
	dirs := []string{pod}
	if !whole {
		dirs = []string{filepath.Join(pod, poddir.Volumes), filepath.Join(pod, poddir.SubPaths)}
	}
	// Secrets first: trouble with a disk must not let them outlive their pod.
	for _, dir := range append([]string{k.memoryDir(uid)}, dirs...) {
		if err := removeTree(dir); err != nil {
			return fmt.Errorf("tear down pod %s: %w", uid, err)
		}
	}
	return nil
}

// Orphans returns the pods that have files here and are not in known, sorted. The caller makes sure that none of their
// containers runs, and tears them down. What interrupted removals left is removed at once.
func (k *Manager) Orphans(known map[types.UID]bool) ([]types.UID, error) {
	found := map[types.UID]bool{}
	var problems []error
	if k.CSI != nil {
		k.CSI.Known()
	}
	for _, dir := range []string{k.pods, k.memory} {
		entries, err := os.ReadDir(dir)
		if os.IsNotExist(err) {
			continue // not created yet because the disk is full
		}
		if err != nil {
			problems = append(problems, err)
			continue
		}
		for _, e := range entries {
			switch {
			case strings.HasPrefix(e.Name(), removing):
				problems = append(problems, removeTree(filepath.Join(dir, e.Name())))
			case e.IsDir() && checkElement("pod uid", e.Name()) == nil && !known[types.UID(e.Name())]:
				found[types.UID(e.Name())] = true
			}
		}
	}
	orphans := make([]types.UID, 0, len(found))
	for uid := range found {
		orphans = append(orphans, uid)
	}
	slices.Sort(orphans)
	return orphans, errors.Join(problems...)
}
