package csivolume

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/plimsoll-dev/plimsoll/internal/agent/poddir"
	core "github.com/plimsoll-dev/plimsoll/internal/core/volume"
	"github.com/plimsoll-dev/plimsoll/internal/host/durable"
	"github.com/plimsoll-dev/plimsoll/internal/host/loop"
	"github.com/plimsoll-dev/plimsoll/internal/host/mount"
)

// Block volumes have directories of their own, the same as the kubelet's:
//
//	<root>/plugins/kubernetes.io/csi/volumeDevices/staging/<pv>              for the driver, when it is staged
//	<root>/plugins/kubernetes.io/csi/volumeDevices/publish/<pv>/<uid>        the device, published to a pod
//	<root>/plugins/kubernetes.io/csi/volumeDevices/<pv>/data/vol_data.json   the record of the volume
//	<root>/pods/<uid>/volumeDevices/kubernetes.io~csi/<pv>                   a link to the device
//
// The link is created before the first call for the pod and removed after the last one, as the records of other volumes
// are. A volume that is found after a restart of the agent is published again: neither link nor record says whether the
// device is still the right one, since the machine may have restarted, too.

// blockNames are names of persistent volumes that are not allowed, since they are names of the directories above.
var blockNames = map[string]bool{"staging": true, "publish": true}

func (k *Manager) blockDir(elements ...string) string {
	return filepath.Join(append([]string{k.RootDir, StagingDir, volumeDevices}, elements...)...)
}

func (k *Manager) link(i id, uid types.UID) string {
	return filepath.Join(poddir.Of(k.RootDir, uid), poddir.Devices, poddir.CSI, i.Spec)
}

// blockRecord returns a path whose sibling is the record of a block volume.
func (k *Manager) blockRecord(spec string) string { return k.blockDir(spec, "data", "device") }

// keepRecord writes the record of a block volume unless it exists.
func (k *Manager) keepRecord(i id) error {
	anchor := k.blockRecord(i.Spec)
	if r, err := readRecord(anchor); r != nil || err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(anchor), dirMode); err != nil {
		return err
	}
	return k.publishRecord(i).write(anchor)
}

// stageBlock has a driver stage a block volume.
func (k *Manager) stageBlock(i id, call func() error) (core.Outcome, error) {
	if err := errors.Join(k.keepRecord(i), os.MkdirAll(k.staging(i), dirMode)); err != nil {
		return core.Unsent, err
	}
	err := call()
	return ended(core.Stage, err), err
}

// publishBlock has a driver publish a block volume to a pod, and checks that it did.
func (k *Manager) publishBlock(i id, pod *corev1.Pod, call func() error) (core.Outcome, error) {
	target, link := k.target(i, pod.UID), k.link(i, pod.UID)
	err := errors.Join(
		k.keepRecord(i), os.MkdirAll(filepath.Dir(target), dirMode), os.MkdirAll(filepath.Dir(link), dirMode))
	if err == nil {
		err = os.Symlink(target, link)
	}
	if err != nil && !errors.Is(err, fs.ErrExist) {
		return core.Unsent, err
	}
	if err := call(); err != nil {
		return ended(core.Publish, err), err
	}
	var st unix.Stat_t
	if err := unix.Stat(target, &st); err != nil {
		return core.Unclear, fmt.Errorf("the driver says that it succeeded: %s: %w", target, err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFBLK {
		return core.Unclear, fmt.Errorf("the driver says that it succeeded, and %s is no block device", target)
	}
	const text = "MapVolume.MapPodDevice succeeded for volume %q globalMapPath %q"
	k.Recorder.Eventf(pod, corev1.EventTypeNormal, "SuccessfulMountVolume", text, i.Spec, target)
	return core.Done, nil
}

// leaveMap removes a kubelet's second path to a published device, and the loop device with which the kubelet keeps it
// open.
func (k *Manager) leaveMap(spec string, uid types.UID) error {
	path := k.blockDir(spec, "dev", string(uid))
	if _, err := os.Lstat(path); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	devices, err := loop.Of(path)
	for _, device := range devices {
		err = errors.Join(err, loop.Detach(device))
	}
	if err != nil {
		return err
	}
	if err := mount.UnmountBelow(path); err != nil {
		return err
	}
	return durable.Remove(path)
}

// unpublishBlock removes what is left of a block volume after a driver has unpublished it from a pod.
func (k *Manager) unpublishBlock(i id, uid types.UID, err error) (core.Outcome, error) {
	outcome, err := takenAway(core.Unpublish, k.target(i, uid), err, durable.Remove)
	if err != nil {
		return outcome, err
	}
	if err := durable.Remove(k.link(i, uid)); err != nil {
		return core.Unclear, err
	}
	if _, err := os.Lstat(k.staging(i)); err == nil {
		return core.Done, nil // it must still be unstaged
	}
	return core.Done, k.dropRecord(i.Spec)
}

// unstageBlock removes what is left of a block volume after a driver has unstaged it.
func (k *Manager) unstageBlock(i id, err error) (core.Outcome, error) {
	outcome, err := takenAway(core.Unstage, k.staging(i), err, durable.Remove)
	if err != nil {
		return outcome, err
	}
	if err := k.dropRecord(i.Spec); err != nil {
		return core.Unclear, err
	}
	return core.Done, nil
}

// dropRecord removes the record of a block volume, unless a pod has the volume.
func (k *Manager) dropRecord(spec string) error {
	if err := durable.Remove(k.blockDir("publish", spec)); errors.Is(err, unix.ENOTEMPTY) {
		return nil
	} else if err != nil {
		return err
	}
	for _, elements := range [][]string{{"data", recordFile}, {"data"}, {"dev"}, {}} {
		if err := durable.Remove(k.blockDir(append([]string{spec}, elements...)...)); err != nil {
			return err
		}
	}
	return nil
}

// findBlock passes to the core the block volumes that earlier agents left.
func (k *Manager) findBlock() {
	ids := map[string]id{}
	dirs, _ := filepath.Glob(k.blockDir("*"))
	for _, dir := range dirs {
		spec := filepath.Base(dir)
		if blockNames[spec] {
			continue
		}
		r := k.readFound(k.blockRecord(spec))
		if r == nil {
			_ = os.Remove(dir) // what has content stays
			continue
		}
		i := r.id()
		i.Spec, i.Block = spec, true
		ids[spec] = i
	}
	links, _ := filepath.Glob(filepath.Join(k.RootDir, poddir.Pods, "*", poddir.Devices, poddir.CSI, "*"))
	used := map[string]bool{}
	for _, link := range links {
		spec := filepath.Base(link)
		uid := types.UID(filepath.Base(filepath.Dir(filepath.Dir(filepath.Dir(link)))))
		i, known := ids[spec]
		if !known {
			slog.Error("block volume of a driver is left as it is: it has no record", "volume", spec, "uid", uid)
			continue
		}
		used[spec] = true
		k.known(i.name(uid), i).pods[uid] = &want{id: i}
		k.r.FoundPublished(i.name(uid), core.Pod(uid), k.specOfFound(i), core.Uncertain)
	}
	for spec, i := range ids {
		switch _, err := os.Lstat(k.staging(i)); {
		case err == nil:
			k.known(i.name(""), i)
			k.r.Found(i.name(""), k.specOfFound(i), core.Uncertain)
		case !used[spec]: // a crash came between the record and the first call, or after the last one
			if err := k.dropRecord(spec); err != nil {
				slog.Warn("record of a block volume not removed", "volume", spec, "err", err)
			}
		}
	}
}

func (k *Manager) specOfFound(i id) core.Spec {
	_, err := os.Lstat(k.staging(i))
	return core.Spec{Driver: i.Driver, Stages: err == nil, Attaches: true}
}

// blockCapability describes a block volume to its driver.
func blockCapability(driver Driver, s *Source) *csi.VolumeCapability {
	return &csi.VolumeCapability{
		AccessMode: &csi.VolumeCapability_AccessMode{Mode: accessMode(driver, s.mode())},
		AccessType: &csi.VolumeCapability_Block{Block: &csi.VolumeCapability_BlockVolume{}},
	}
}

// look reads a claim's sizes again: a request for a larger volume changes the claim and the persistent volume. Nearly
// always they are what is known, and then a read of etcd is spared. If others told that the volume is to grow, etcd is
// read.
func (k *Manager) look(ctx context.Context, look core.Look, s *Source) {
	select {
	case k.looks <- struct{}{}:
		defer func() { <-k.looks }()
	case <-ctx.Done():
		return
	}
	name := look.Volume
	size, has, err := k.API.Sizes(ctx, s.claim, s.Spec, !look.Told)
	if err == nil && !look.Told && (size != s.size || has != s.has) {
		size, has, err = k.API.Sizes(ctx, s.claim, s.Spec, false)
	}
	if err != nil {
		slog.Warn("size of a claim not read", "claim", s.claim, "err", err)
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	v := k.volumes[name]
	if v == nil || size == s.size && has == s.has {
		return
	}
	if size > has && !slices.Contains(k.growing, s.claim) { // otherwise the volume has grown without the node
		k.r.Missed()
	}
	for uid, w := range v.pods {
		if w.source == nil || !k.r.Wants(core.Pod(uid), name) {
			continue
		}
		grown := *w.source
		grown.size, grown.has = size, has
		w.source = &grown
		v.source = &grown
		k.r.Want(k.now(), core.Pod(uid), name, k.withDriver(v.spec, &grown))
	}
	k.step()
}
