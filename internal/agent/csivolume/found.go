package csivolume

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"github.com/plimsoll-dev/plimsoll/internal/agent/poddir"
	core "github.com/plimsoll-dev/plimsoll/internal/core/volume"
	"github.com/plimsoll-dev/plimsoll/internal/host/durable"
	"github.com/plimsoll-dev/plimsoll/internal/host/mount"
	"github.com/plimsoll-dev/plimsoll/internal/host/untrusted"
)

// recordFile is the kubelet's name of a record. Its content is one JSON object of strings:
//
//	{"driverName":"d","volumeHandle":"h"}                                               of a staged volume
//	{"attachmentID":"csi-...","driverName":"d","nodeName":"n","specVolID":"pv",
//	 "volumeHandle":"h","volumeLifecycleMode":"Persistent"}                             of a published one
//
// Either has the SELinux label with which the volume is mounted, if it has one.
const recordFile = "vol_data.json"

// keyDone is the key that this agent adds when the call has succeeded.
const keyDone = "plimsoll.dev/done"

// keyLabel is the kubelet's key of the SELinux label.
const keyLabel = "seLinuxMountContext"

// recordMax bounds a record in bytes. Chosen: a handle has at most about 4 KiB, and a name 253 bytes.
const recordMax = 64 << 10

// volData is what is in a record.
type volData map[string]string

func (r volData) done() bool { return r[keyDone] == "true" }

func (r volData) id() id {
	return id{
		Driver: r["driverName"],
		Handle: r["volumeHandle"],
		Spec:   r["specVolID"],
		Inline: r["volumeLifecycleMode"] == "Ephemeral",
	}
}

// stageRecord and publishRecord return what the kubelet would write.
func stageRecord(i id) volData { return volData{"driverName": i.Driver, "volumeHandle": i.Handle} }

func (k *Manager) publishRecord(i id) volData {
	mode := "Persistent"
	if i.Inline {
		mode = "Ephemeral"
	}
	return volData{
		"specVolID":           i.Spec,
		"volumeHandle":        i.Handle,
		"driverName":          i.Driver,
		"nodeName":            k.Node,
		"volumeLifecycleMode": mode,
		"attachmentID":        k.attachment(i),
	}
}

// withLabel adds the SELinux label with which the volume is mounted, if there is one.
func (r volData) withLabel(label string) volData {
	if label != "" {
		r[keyLabel] = label
	}
	return r
}

// write writes the record of the volume that is at target.
func (r volData) write(target string) error {
	text, err := json.Marshal(r)
	if err != nil {
		return err
	}
	return durable.Write(filepath.Join(filepath.Dir(target), recordFile), text)
}

// readRecord returns the record of the volume at target; nil if there is none.
func readRecord(target string) (volData, error) {
	path := filepath.Join(filepath.Dir(target), recordFile)
	text, err := untrusted.Read(path, recordMax)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	r := volData{}
	if err := json.Unmarshal(text, &r); err != nil {
		return nil, fmt.Errorf("read %s: %w", path, err)
	}
	if i := r.id(); checkNames(i.Driver, i.Handle) != nil {
		return nil, fmt.Errorf("read %s: driver name %q, volume handle %q: want both", path, i.Driver, i.Handle)
	}
	return r, nil
}

// find passes to the core the volumes that earlier agents left, by the records. A record that cannot be read is left
// alone, and so is its volume, since it is not known which driver to call.
func (k *Manager) find() error {
	points, err := mount.Below(filepath.Join(k.RootDir, StagingDir), filepath.Join(k.RootDir, poddir.Pods))
	if err != nil {
		return err
	}
	staged, _ := filepath.Glob(filepath.Join(k.RootDir, StagingDir, "*", "*"))
	for _, dir := range staged {
		target := filepath.Join(dir, "globalmount")
		if filepath.Base(filepath.Dir(dir)) == volumeDevices {
			continue
		}
		if r := k.readFound(target); r != nil {
			i := r.id()
			name := i.name("")
			k.known(name, i)
			spec := core.Spec{Driver: i.Driver, Stages: true, Attaches: true, Label: r[keyLabel]}
			k.r.Found(name, spec, stateOf(r, target, points))
		}
	}
	published, _ := filepath.Glob(filepath.Join(k.RootDir, poddir.Pods, "*", poddir.Volumes, poddir.CSI, "*"))
	for _, dir := range published {
		target := filepath.Join(dir, "mount")
		uid := types.UID(filepath.Base(filepath.Dir(filepath.Dir(filepath.Dir(dir)))))
		if r := k.readFound(target); r != nil {
			i := r.id()
			i.Spec = filepath.Base(dir)
			name := i.name(uid)
			k.known(name, i).pods[uid] = &want{id: i}
			spec := core.Spec{Driver: i.Driver, Stages: k.hasStage(i), Attaches: !i.Inline, Label: r[keyLabel]}
			k.r.FoundPublished(name, core.Pod(uid), spec, stateOf(r, target, points))
		}
	}
	k.findNFS(points)
	k.findBlock()
	return nil
}

func (k *Manager) hasStage(i id) bool {
	_, err := os.Lstat(filepath.Join(filepath.Dir(k.staging(i)), recordFile))
	return !i.Inline && err == nil
}

// readFound returns the record of a volume that may be at target. A crash may have left an unfinished record, and
// directories before the first or after the last record: they are removed if they are empty.
func (k *Manager) readFound(target string) volData {
	dir := filepath.Dir(target)
	_ = os.Remove(filepath.Join(dir, "."+recordFile+".new")) // usually there is none
	r, err := readRecord(target)
	switch {
	case err != nil:
		slog.Error("volume of a driver is left as it is: its record cannot be read", "err", err)
	case r == nil:
		_ = os.Remove(target) // it stays if it is mounted or has content
		_ = os.Remove(dir)
	}
	return r
}

// stateOf returns how certain it is that a volume is at target. The record says what was, and the mount table what is.
func stateOf(r volData, target string, points []string) core.State {
	if r.done() && slices.Contains(points, target) {
		return core.Yes
	}
	return core.Uncertain
}
