package csivolume

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/types"

	core "github.com/plimsoll-dev/plimsoll/internal/core/volume"
	hostcsi "github.com/plimsoll-dev/plimsoll/internal/host/csi"
	"github.com/plimsoll-dev/plimsoll/internal/host/mount"
)

// operations are the names of calls in metrics, and blockOperations those for block volumes: the kubelet's, except for
// device_mount, which the kubelet counts to volume_mount and map_volume.
var (
	operations = map[core.Verb]string{
		core.Stage:     "device_mount",
		core.Publish:   "volume_mount",
		core.Unpublish: "volume_unmount",
		core.Unstage:   "unmount_device",
		core.Expand:    "volume_fs_resize",
	}
	blockOperations = map[core.Verb]string{
		core.Stage:     "device_mount",
		core.Publish:   "map_volume",
		core.Unpublish: "unmap_volume",
		core.Unstage:   "unmap_device",
		core.Expand:    "volume_fs_resize",
	}
)

// operation returns a job's name in metrics.
func (j job) operation() string {
	if j.id.Block {
		return blockOperations[j.call.Verb]
	}
	return operations[j.call.Verb]
}

// failures begin the text of Events, as upstream's; blockFailures those of block volumes.
var (
	failures = map[core.Verb]string{
		core.Stage: "MountVolume.MountDevice", core.Publish: "MountVolume.SetUp",
		core.Expand: "MountVolume.NodeExpandVolume",
	}
	blockFailures = map[core.Verb]string{
		core.Stage: "MapVolume.SetUpDevice", core.Publish: "MapVolume.SetUpDevice",
		core.Expand: "MountVolume.NodeExpandVolume",
	}
)

// dirMode is the kubelet's mode of the directories above volumes.
const dirMode = 0o750

// do makes a call, with the records and checks that belong to it.
func (k *Manager) do(j job) (core.Outcome, error) {
	ctx, cancel := context.WithTimeout(k.ctx, k.callMax)
	defer cancel()
	if j.source != nil && j.source.migrated {
		ctx = hostcsi.Migrated(ctx)
	}
	switch {
	case j.id.NFS && j.call.Verb == core.Unpublish:
		return k.unmountNFS(j)
	case j.id.NFS && j.source == nil:
		return core.Unsent, errors.New("the volume's description is not known any more")
	case j.id.NFS:
		return k.mountNFS(j)
	}
	driver, there := k.Drivers.Driver(j.id.Driver)
	if !there {
		return core.Unsent, fmt.Errorf("driver name %s not found in the list of registered CSI drivers", j.id.Driver)
	}
	if j.source == nil && (j.call.Verb == core.Stage || j.call.Verb == core.Publish || j.call.Verb == core.Expand) {
		return core.Unsent, errors.New("the volume's description is not known any more")
	}
	if driver.decides(j) {
		if err := driver.isTheSame(ctx, j.id.Driver); err != nil {
			return core.Unsent, err
		}
	}
	switch j.call.Verb {
	case core.Stage:
		return k.stage(ctx, driver, j)
	case core.Publish:
		return k.publish(ctx, driver, j)
	case core.Unpublish:
		target := k.target(j.id, podOf(j))
		err := unfinish(target, j.id)
		if j.id.Block {
			err = k.leaveMap(j.id.Spec, podOf(j))
		}
		if err != nil {
			return core.Unsent, err
		}
		_, err = driver.Node.NodeUnpublishVolume(ctx, &csi.NodeUnpublishVolumeRequest{
			VolumeId: j.id.Handle, TargetPath: target,
		})
		if j.id.Block {
			return k.unpublishBlock(j.id, podOf(j), err)
		}
		return takenAway(j.call.Verb, target, err, removeEmpty)
	case core.Unstage:
		staging := k.staging(j.id)
		if err := unfinish(staging, j.id); err != nil {
			return core.Unsent, err
		}
		_, err := driver.Node.NodeUnstageVolume(ctx, &csi.NodeUnstageVolumeRequest{
			VolumeId: j.id.Handle, StagingTargetPath: staging,
		})
		if j.id.Block {
			return k.unstageBlock(j.id, err)
		}
		return takenAway(j.call.Verb, staging, err, removeEmpty)
	}
	return k.expand(ctx, driver, j)
}

// identifyMax bounds the question which driver answers. Chosen: a driver that hangs in that question only is used all
// the same, and each of its volumes waits so long twice.
const identifyMax = 2 * time.Second

// decides reports whether a call begins or ends what a driver has of a volume on this node.
func (d Driver) decides(j job) bool {
	if j.call.Again {
		return false
	}
	stages := !j.id.Inline && d.Can[csi.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME]
	switch j.call.Verb {
	case core.Stage, core.Unstage:
		return true
	case core.Publish, core.Unpublish:
		return !stages
	}
	return false
}

// isTheSame returns an error if no program is at a driver's socket, or one that says that it is another driver than the
// one that registered. One that fails or hangs in this question is not judged here.
func (d Driver) isTheSame(ctx context.Context, name string) error {
	if d.Said == "" {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, identifyMax)
	defer cancel()
	who, err := d.Identity.GetPluginInfo(ctx, &csi.GetPluginInfoRequest{})
	if status.Code(err) == codes.Unavailable {
		return err // the next call could reach the program that comes in its place
	}
	if err != nil || who.GetName() == d.Said {
		return nil
	}
	return fmt.Errorf("the program at the socket of driver %s says now that its name is %.100q, and not %q as it did "+
		"when it registered: volumes of %s wait until it says that again: start that driver there, or have the other one "+
		"register with a socket of its own", name, who.GetName(), d.Said, name)
}

func podOf(j job) types.UID { return types.UID(j.call.Pod) }

// ended translates an answer of a driver.
func ended(verb core.Verb, err error) core.Outcome {
	return core.OutcomeOf(verb, core.Code(status.Code(err)))
}

// unfinish removes from a volume's record that the volume is certainly mounted. If the agent is restarted while the
// call that unmounts the volume is still running, the next agent must not rely on the record.
func unfinish(target string, i id) error {
	if i.Block {
		return nil // its record does not say that the volume is mounted
	}
	r, err := readRecord(target)
	if err != nil || !r.done() {
		return err
	}
	delete(r, keyDone)
	return r.write(target)
}

// takenAway removes what is left of a volume that a driver says it has unmounted. If something is still mounted there,
// the driver is called again.
func takenAway(verb core.Verb, target string, err error, remove func(target string) error) (core.Outcome, error) {
	if err != nil {
		return ended(verb, err), err
	}
	mounted, err := mount.At(target)
	if mounted {
		err = fmt.Errorf("the driver says that it succeeded, and %s is still mounted", target)
	}
	if err == nil {
		err = remove(target)
	}
	if err != nil {
		return core.Unclear, err
	}
	return core.Done, nil
}

// given makes a call that mounts a volume at target. The record is written before the call and completed after it. If
// the call certainly failed, and no earlier call began the same, the record and the directory are removed.
func given(verb core.Verb, target string, r volData, call func() error) (core.Outcome, error) {
	before, err := readRecord(target)
	if err == nil && (before == nil || before.done()) {
		err = r.write(target) // complete only after this call
	}
	if err != nil {
		return core.Unsent, err
	}
	if err := call(); err != nil {
		outcome := ended(verb, err)
		var after *afterwards
		if errors.As(err, &after) {
			return core.Unclear, after.error
		}
		if outcome == core.Failed && before == nil {
			if removal := removeUnmounted(target); removal != nil {
				return core.Unclear, errors.Join(err, removal)
			}
		}
		return outcome, err
	}
	r = maps.Clone(r)
	r[keyDone] = "true"
	if err := r.write(target); err != nil {
		return core.Unclear, err
	}
	return core.Done, nil
}

// afterwards is an error of the agent itself, after it wrote the record or after the driver succeeded.
type afterwards struct{ error }

// removeUnmounted removes a volume's directory and record, unless something is mounted there.
func removeUnmounted(target string) error {
	mounted, err := mount.At(target)
	if err != nil {
		return err
	}
	if mounted {
		return fmt.Errorf("the driver says that it failed, and %s is mounted", target)
	}
	return removeEmpty(target)
}

func (k *Manager) stage(ctx context.Context, driver Driver, j job) (core.Outcome, error) {
	target := k.staging(j.id)
	publishContext, err := k.publishContext(ctx, j)
	if err != nil {
		return core.Unsent, err
	}
	secrets, err := k.secrets(ctx, j.source.stageSecret)
	if err != nil {
		return core.Unsent, fmt.Errorf("fetching NodeStageSecretRef failed: %w", err)
	}
	call := func() error {
		_, err := driver.Node.NodeStageVolume(ctx, &csi.NodeStageVolumeRequest{
			VolumeId:          j.id.Handle,
			PublishContext:    publishContext,
			StagingTargetPath: target,
			VolumeCapability:  capability(driver, j),
			Secrets:           secrets,
			VolumeContext:     j.source.attributes,
		})
		return err
	}
	if j.id.Block {
		return k.stageBlock(j.id, call)
	}
	if err := os.MkdirAll(filepath.Dir(target), dirMode); err != nil {
		return core.Unsent, err
	}
	return given(core.Stage, target, stageRecord(j.id).withLabel(j.source.label), func() error {
		// The agent makes this directory, by CSI's specification, and the driver that of a published volume.
		if err := os.Mkdir(target, dirMode); err != nil && !errors.Is(err, fs.ErrExist) {
			return &afterwards{err}
		}
		return call()
	})
}

func (k *Manager) publish(ctx context.Context, driver Driver, j job) (core.Outcome, error) {
	if j.pod == nil {
		return core.Unsent, errors.New("the pod is not known any more")
	}
	s := j.source
	target := k.target(j.id, j.pod.UID)
	object, err := k.object(ctx, j.id.Driver)
	if err != nil {
		return core.Unsent, err
	}
	publishContext, err := k.publishContext(ctx, j)
	if err != nil {
		return core.Unsent, err
	}
	secrets, err := k.secrets(ctx, s.publish)
	if err != nil {
		return core.Unsent, fmt.Errorf("fetching NodePublishSecretRef failed: %w", err)
	}
	attributes := maps.Clone(s.attributes)
	if object.Spec.PodInfoOnMount != nil && *object.Spec.PodInfoOnMount {
		attributes = merge(attributes, podInfo(j.pod, s.Inline))
	}
	tokens, err := k.tokens(ctx, object, j.pod)
	if err != nil {
		return core.Unsent, err
	}
	if object.Spec.ServiceAccountTokenInSecrets != nil && *object.Spec.ServiceAccountTokenInSecrets {
		secrets = merge(secrets, tokens)
	} else {
		attributes = merge(attributes, tokens)
	}
	if err := os.MkdirAll(filepath.Dir(target), dirMode); err != nil {
		return core.Unsent, err
	}
	request := &csi.NodePublishVolumeRequest{
		VolumeId:         j.id.Handle,
		PublishContext:   publishContext,
		TargetPath:       target,
		VolumeCapability: capability(driver, j),
		Readonly:         s.readOnly,
		Secrets:          secrets,
		VolumeContext:    attributes,
	}
	if !s.Inline && driver.Can[csi.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME] {
		request.StagingTargetPath = k.staging(j.id)
	}
	call := func() error {
		if _, err := driver.Node.NodePublishVolume(ctx, request); err != nil {
			return err
		}
		if _, err := os.Lstat(target); errors.Is(err, fs.ErrNotExist) && !j.id.Block && !j.call.Again {
			return &afterwards{fmt.Errorf("the driver says that it succeeded, and %s does not exist", target)}
		}
		if !takesGroup(driver, s, j.pod, policyOf(object)) || j.call.Again {
			return nil
		}
		if err := k.Share(target, j.pod); err != nil {
			return &afterwards{fmt.Errorf("applyFSGroup failed for vol %s: %w", j.id.Handle, err)}
		}
		return nil
	}
	switch {
	case j.call.Again:
		err := call()
		return ended(core.Publish, err), err
	case j.id.Block:
		return k.publishBlock(j.id, j.pod, call)
	}
	return given(core.Publish, target, k.publishRecord(j.id).withLabel(s.label), call)
}

// expand has a driver expand the file system of a volume, and records the new size in the claim.
func (k *Manager) expand(ctx context.Context, driver Driver, j job) (core.Outcome, error) {
	s := j.source
	request := &csi.NodeExpandVolumeRequest{
		VolumeId:         j.id.Handle,
		VolumePath:       k.target(j.id, podOf(j)),
		CapacityRange:    &csi.CapacityRange{RequiredBytes: int64(j.call.Size)},
		VolumeCapability: capability(driver, j),
	}
	if driver.Can[csi.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME] {
		request.StagingTargetPath = k.staging(j.id)
	}
	secrets, err := k.secrets(ctx, s.expandSecret)
	if err != nil {
		return core.Unsent, fmt.Errorf("fetching NodeExpandSecretRef failed: %w", err)
	}
	request.Secrets = secrets
	if _, err := driver.Node.NodeExpandVolume(ctx, request); err != nil {
		return ended(core.Expand, err), err
	}
	if err := k.API.Grown(ctx, s.claim.Namespace, s.claim.Name, j.call.Size); err != nil {
		return core.Unclear, fmt.Errorf("record the size of claim %s: %w", s.claim, err)
	}
	if j.pod != nil {
		const text = "MountVolume.NodeExpandVolume succeeded for volume %q"
		k.Recorder.Eventf(j.pod, corev1.EventTypeNormal, "FileSystemResizeSuccessful", text, s.Spec)
	}
	return core.Done, nil
}

// publishContext returns what drivers need of a controller's attachment of the volume; nothing for volumes that are not
// attached.
func (k *Manager) publishContext(ctx context.Context, j job) (map[string]string, error) {
	if j.source.Inline {
		return nil, nil
	}
	object, err := k.object(ctx, j.id.Driver)
	if err != nil {
		return nil, err
	}
	if object.Spec.AttachRequired != nil && !*object.Spec.AttachRequired {
		return nil, nil
	}
	name := k.attachment(j.id)
	a, err := k.API.Attachment(ctx, name)
	switch {
	case err != nil:
		return nil, fmt.Errorf("volume %s has GET error for volume attachment %s: %w", j.id.Handle, name, err)
	case a.DeletionTimestamp != nil:
		return nil, errors.New("volume attachment is being deleted")
	case !a.Status.Attached:
		return nil, fmt.Errorf("volume %s is not attached for volume attachment %s", j.id.Handle, name)
	}
	return a.Status.AttachmentMetadata, nil
}

func (k *Manager) secrets(ctx context.Context, ref *corev1.SecretReference) (map[string]string, error) {
	if ref == nil {
		return nil, nil
	}
	secret, err := k.API.Secret(ctx, ref.Namespace, ref.Name)
	if err != nil {
		return nil, err
	}
	out := map[string]string{}
	for key, value := range secret.Data {
		out[key] = string(value)
	}
	return out, nil
}

// tokens returns the service account tokens of a pod that a driver requests, under the key that CSI drivers expect.
func (k *Manager) tokens(ctx context.Context, object *storagev1.CSIDriver, pod *corev1.Pod) (map[string]string, error) {
	if len(object.Spec.TokenRequests) == 0 {
		return nil, nil
	}
	out := map[string]authenticationv1.TokenRequestStatus{}
	for _, r := range object.Spec.TokenRequests {
		request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{
			Audiences:         []string{},
			ExpirationSeconds: r.ExpirationSeconds,
			BoundObjectRef: &authenticationv1.BoundObjectReference{
				APIVersion: "v1", Kind: "Pod", Name: pod.Name, UID: pod.UID,
			},
		}}
		if r.Audience != "" {
			request.Spec.Audiences = []string{r.Audience}
		}
		answer, err := k.API.Token(ctx, pod.Namespace, pod.Spec.ServiceAccountName, request)
		if err != nil {
			return nil, fmt.Errorf("request service account token for audience %q: %w", r.Audience, err)
		}
		out[r.Audience] = answer.Status
	}
	text, err := json.Marshal(out)
	return map[string]string{"csi.storage.k8s.io/serviceAccount.tokens": string(text)}, err
}

// podInfo returns what drivers with podInfoOnMount receive about a pod.
func podInfo(pod *corev1.Pod, inline bool) map[string]string {
	return map[string]string{
		"csi.storage.k8s.io/pod.name":            pod.Name,
		"csi.storage.k8s.io/pod.namespace":       pod.Namespace,
		"csi.storage.k8s.io/pod.uid":             string(pod.UID),
		"csi.storage.k8s.io/serviceAccount.name": pod.Spec.ServiceAccountName,
		"csi.storage.k8s.io/ephemeral":           strconv.FormatBool(inline),
	}
}

func merge(into, from map[string]string) map[string]string {
	if into == nil {
		into = map[string]string{}
	}
	maps.Copy(into, from)
	return into
}

// capability describes the volume to its driver. Drivers that set the group of files themselves receive the group.
func capability(driver Driver, j job) *csi.VolumeCapability {
	if j.id.Block {
		return blockCapability(driver, j.source)
	}
	m := &csi.VolumeCapability_MountVolume{FsType: j.source.fsType, MountFlags: j.source.mountOptions}
	if label := j.source.label; label != "" {
		m.MountFlags = append(slices.Clone(m.MountFlags), labelOption(label))
	}
	if group := groupOf(j.pod); group != nil && driver.Can[csi.NodeServiceCapability_RPC_VOLUME_MOUNT_GROUP] {
		m.VolumeMountGroup = strconv.FormatInt(*group, 10)
	}
	return &csi.VolumeCapability{
		AccessMode: &csi.VolumeCapability_AccessMode{Mode: accessMode(driver, j.source.mode())},
		AccessType: &csi.VolumeCapability_Mount{Mount: m},
	}
}

// accessMode translates an access mode. Only drivers with the capability SINGLE_NODE_MULTI_WRITER distinguish several
// pods of a node from one pod.
func accessMode(driver Driver, mode corev1.PersistentVolumeAccessMode) csi.VolumeCapability_AccessMode_Mode {
	tells := driver.Can[csi.NodeServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER]
	switch {
	case mode == corev1.ReadOnlyMany:
		return csi.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY
	case mode == corev1.ReadWriteMany:
		return csi.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER
	case mode == corev1.ReadWriteOnce && tells:
		return csi.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER
	case mode == corev1.ReadWriteOncePod && tells:
		return csi.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER
	case mode == corev1.ReadWriteOnce, mode == corev1.ReadWriteOncePod:
		return csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER
	}
	return csi.VolumeCapability_AccessMode_UNKNOWN
}

func groupOf(pod *corev1.Pod) *int64 {
	if pod == nil || pod.Spec.SecurityContext == nil {
		return nil
	}
	return pod.Spec.SecurityContext.FSGroup
}

func policyOf(object *storagev1.CSIDriver) storagev1.FSGroupPolicy {
	if policy := object.Spec.FSGroupPolicy; policy != nil {
		return *policy
	}
	return storagev1.ReadWriteOnceWithFSTypeFSGroupPolicy // the API's default
}

// takesGroup reports whether the agent gives a volume's files to the pod's group, by the driver's policy.
func takesGroup(driver Driver, s *Source, pod *corev1.Pod, policy storagev1.FSGroupPolicy) bool {
	switch {
	case groupOf(pod) == nil, s.readOnly, s.Block, policy == storagev1.NoneFSGroupPolicy:
		return false
	case driver.Can[csi.NodeServiceCapability_RPC_VOLUME_MOUNT_GROUP]:
		return false
	case policy == storagev1.FileFSGroupPolicy:
		return true
	case s.fsType == "":
		return false
	case s.Inline:
		return true
	}
	return slices.Contains(s.modes, corev1.ReadWriteOnce) || slices.Contains(s.modes, corev1.ReadWriteOncePod)
}
