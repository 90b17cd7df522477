// Package csivolume has CSI drivers mount the volumes of this node's pods, and the program mount those of kind nfs, as
// core/volume decides.
//
// # Model
//
// Want tells a Manager which pod wants which volume, and Release which pods have ended. The Manager makes the calls
// that a core/volume.Reconciler decides, each in a goroutine of its own, and passes their outcomes back to it. Want and
// Release return at once. The pod is tried again (Options.Changed) when no call for it is on its way any more, or one
// has failed: until then it could not go on.
//
// A record is written beside a volume before the first call that may change the volume, and removed after the last one.
// The records are all that a restarted agent needs (found.go). Directories and records are the kubelet's, so that a
// kubelet can continue with them, and this agent with a kubelet's:
//
//	<root>/plugins/kubernetes.io/csi/<driver>/<sha256 of the handle>/globalmount        staged
//	<root>/plugins/kubernetes.io/csi/<driver>/<sha256 of the handle>/vol_data.json      its record
//	<root>/pods/<uid>/volumes/kubernetes.io~csi/<name>/mount                            published to a pod
//	<root>/pods/<uid>/volumes/kubernetes.io~csi/<name>/vol_data.json                    its record
//
// Block volumes have directories of their own (block.go), and so have those of kind nfs, which have no records
// (nfs.go). One more key in a record, which a kubelet ignores, says that the call has succeeded. A record that a
// kubelet made does not have it, so the call is made again, which drivers must allow.
//
// # Invariants
//
//   - A volume is neither mounted nor taken away at last by a program that says it is another driver than the one that
//     registered at the socket: it may have other data, or none, of that handle.
//   - A call is made after its record was written, and a record is removed after the call that undoes it.
//   - A pod has a volume when the driver has said so, the volume's files have the pod's group, and the record says
//     both.
//   - No lock is held during a call to a driver or the API server, or a wait for a disk.
//   - Secrets and tokens are in requests only: not in records, Events, logs.
//
// It decides nothing about order, repetition or time. It does not attach volumes (a controller does) and does not
// register drivers (Drivers).
package csivolume

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"
	mountutils "k8s.io/mount-utils"

	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
	core "github.com/plimsoll-dev/plimsoll/internal/core/volume"
	"github.com/plimsoll-dev/plimsoll/internal/host/durable"
)

// Driver is a registered driver.
type Driver struct {
	Node csi.NodeClient
	Can  map[csi.NodeServiceCapability_RPC_Type]bool // its node service's capabilities
	// Identity says which driver answers at the socket now, and Said what it answered at the registration; "": nothing,
	// and then it is not asked again.
	Identity csi.IdentityClient
	Said     string
}

// Drivers has the drivers of this node. Its owner calls Manager.DriverChanged.
type Drivers interface {
	// Driver returns the driver of a name, if it is registered.
	Driver(name string) (Driver, bool)
}

// API reads what calls need.
type API interface {
	CSIDriver(ctx context.Context, name string) (*storagev1.CSIDriver, error)
	Attachment(ctx context.Context, name string) (*storagev1.VolumeAttachment, error)
	Secret(ctx context.Context, namespace, name string) (*corev1.Secret, error)
	Token(
		ctx context.Context, namespace, account string, request *authenticationv1.TokenRequest,
	) (*authenticationv1.TokenRequest, error)
	// Grown records in a claim's status that its volume has been expanded on the node.
	Grown(ctx context.Context, namespace, claim string, size unit.Bytes) error
	// Sizes returns the size of a persistent volume, and what the status of its claim says. If cached, both may be older
	// than the last write.
	Sizes(ctx context.Context, claim types.NamespacedName, volume string, cached bool) (size, has unit.Bytes, err error)
}

// Options are what a Manager needs. All are required but Label and Took.
type Options struct {
	RootDir string // the agent's, without symbolic links
	Node    string
	Drivers Drivers
	API     API
	// Label returns the label of files for processes with SELinux options of the API. nil: the kernel has no SELinux, and
	// no volume is mounted with a label.
	Label func(*corev1.SELinuxOptions) (string, error)
	// Share gives a volume to a pod's fsGroup, by its fsGroupChangePolicy.
	Share    func(path string, pod *corev1.Pod) error
	Recorder record.EventRecorder
	// Changed is called when a pod must be tried again. It must return soon.
	Changed func(types.UID)
	// InUse is called when the volumes in use have changed, so that the Node's status is reported. It must return soon.
	InUse func()
	// Took measures an operation: volume_mount, volume_unmount, map_volume, ... Optional.
	Took func(plugin, operation string, migrated bool, took time.Duration, err error)
}

// Manager manages the volumes of drivers on this node. It is safe for concurrent use.
type Manager struct {
	Options
	ctx   context.Context
	begun time.Time
	looks chan struct{} // one value for each claim that is being read

	mounter mountutils.MounterForceUnmounter // of NFS
	nfsType string                           // the constant nfsType; tests set another type of file system
	callMax time.Duration                    // core.CallMax; tests set a shorter time

	mu      sync.Mutex
	r       *core.Reconciler
	volumes map[core.Name]*known
	timer   *time.Timer
	inUse   []core.Name // the volumes in use when Options.InUse was called last
	telling bool        // what Told received last, as the next field
	growing []types.NamespacedName
}

// known is what calls need to know of a volume. It is guarded by Manager.mu.
type known struct {
	id     id
	source *Source // as last wanted; nil: it was found after a restart, and no pod has wanted it yet
	spec   core.Spec
	pods   map[types.UID]*want
}

// want is a pod that has or wants a volume.
type want struct {
	id     id          // of an inline volume: with the pod
	pod    *corev1.Pod // nil: it was found after a restart, and the pod has not wanted it yet
	source *Source
	outer  string // the volume's name in the pod
	failed string // why the last call for the pod failed
}

// looksMax is how many claims are read at the same time: a whole group (core/volume, lookTogether), since answers that
// come together cost fewer wake-ups. Measured: 20 reads each 5 s take 0.0010 to 0.0012 cores so, and 0.0015 two by two.
const looksMax = 20

// New returns a Manager that knows the volumes that earlier agents left. Its calls end with ctx.
func New(ctx context.Context, o Options) (*Manager, error) {
	k := &Manager{Options: o, ctx: ctx, begun: time.Now(), r: core.New(), volumes: map[core.Name]*known{}}
	k.looks = make(chan struct{}, looksMax)
	k.mounter = mountutils.NewWithoutSystemd("").(mountutils.MounterForceUnmounter)
	k.nfsType = nfsType
	k.callMax = core.CallMax
	if err := k.find(); err != nil {
		return nil, fmt.Errorf("find volumes of drivers: %w", err)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.inUse, _ = k.r.InUse() // the first report of the Node has them
	k.step()
	return k, nil
}

// now returns the core's monotonic time; never 0.
func (k *Manager) now() unit.Instant { return unit.Instant(time.Second).Add(time.Since(k.begun)) }

// Place is where a volume is.
type Place struct {
	Path     string // a directory, or a block device
	ReadOnly bool
	Block    bool
	Labelled bool // it is mounted with the SELinux label of the pod's containers
}

// WaitingError says why a volume is not mounted yet. The pod is tried again when that changes, and has Events about it.
type WaitingError struct{ Why string }

func (e *WaitingError) Error() string { return e.Why }

// Want has a volume mounted for a pod, and returns where it is. A WaitingError means that it is not mounted yet.
func (k *Manager) Want(ctx context.Context, pod *corev1.Pod, outer string, source *Source) (Place, error) {
	labelled := *source // a copy: a call that is still running may read the caller's
	source = &labelled
	spec, err := k.specOf(ctx, pod, outer, source)
	if err != nil {
		return Place{}, err
	}
	place := Place{
		Path:     k.target(source.id, pod.UID),
		ReadOnly: source.readOnly,
		Block:    source.Block,
		Labelled: source.label != "",
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	name := source.id.name(pod.UID)
	v := k.known(name, source.id)
	v.source, v.spec = source, spec
	w := v.pods[pod.UID]
	if w == nil {
		w = &want{}
		v.pods[pod.UID] = w
	}
	w.id = source.id
	w.pod = pod
	w.source = source
	w.outer = outer
	k.r.Want(k.now(), core.Pod(pod.UID), name, k.withDriver(spec, source))
	if slices.Contains(k.growing, source.claim) {
		k.tell()
	}
	k.step()
	if why := k.r.Waits(k.now(), core.Pod(pod.UID), name); why != core.None {
		return Place{}, &WaitingError{Why: because(string(why), w.failed)}
	}
	return place, nil
}

func because(why, failed string) string {
	if failed == "" {
		return why
	}
	return why + ": " + failed
}

func (k *Manager) known(name core.Name, id id) *known {
	v := k.volumes[name]
	if v == nil {
		v = &known{id: id, pods: map[types.UID]*want{}}
		k.volumes[name] = v
	}
	return v
}

// Release unmounts the volumes of a pod whose containers have ended. It reports whether nothing is left. Otherwise the
// pod is tried again (Options.Changed) when nothing is left.
func (k *Manager) Release(uid types.UID) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.r.Release(core.Pod(uid))
	k.step()
	return k.r.Released(core.Pod(uid))
}

// Known is called when all pods of the node are known: volumes that none of them has or wants are unmounted.
func (k *Manager) Known() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.r.Known()
	k.step()
}

// DriverChanged is called when a driver has registered or has gone.
func (k *Manager) DriverChanged(name string) {
	_, there := k.Drivers.Driver(name)
	k.mu.Lock()
	defer k.mu.Unlock()
	for volume, v := range k.volumes {
		for uid, w := range v.pods {
			if there && v.id.Driver == name && w.source != nil && k.r.Wants(core.Pod(uid), volume) {
				k.r.Want(k.now(), core.Pod(uid), volume, k.withDriver(v.spec, w.source))
			}
		}
	}
	k.r.Driver(name, there)
	k.step()
}

// NodeStatus receives what the API server has of the Node.
func (k *Manager) NodeStatus(status *corev1.NodeStatus) {
	var attached, reported []core.Name
	for _, a := range status.VolumesAttached {
		attached = append(attached, core.Name(a.Name))
	}
	for _, name := range status.VolumesInUse {
		reported = append(reported, core.Name(name))
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.r.Attached(attached)
	k.r.Reported(reported)
	k.step()
}

// Told receives whether others tell this node of claims whose volumes are to grow, and those of which they say it now.
func (k *Manager) Told(claims []types.NamespacedName, telling bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.growing = claims
	k.telling = telling
	k.tell()
	k.step()
}

// tell passes on which of the node's volumes are to grow. The caller holds mu.
func (k *Manager) tell() {
	var names []core.Name
	for name, v := range k.volumes {
		if v.source != nil && slices.Contains(k.growing, v.source.claim) {
			names = append(names, name)
		}
	}
	k.r.Told(k.telling, names)
}

// VolumesInUse returns the volumes in use for the Node's status, given those in it now. Until all pods are known, it
// removes none.
func (k *Manager) VolumesInUse(now []corev1.UniqueVolumeName) []corev1.UniqueVolumeName {
	k.mu.Lock()
	names, known := k.r.InUse()
	k.mu.Unlock()
	var all []corev1.UniqueVolumeName
	for _, name := range names {
		all = append(all, corev1.UniqueVolumeName(name))
	}
	if !known {
		all = append(all, now...)
		slices.Sort(all)
		all = slices.Compact(all)
	}
	return all
}

// step carries out what the core decides. The caller holds mu.
func (k *Manager) step() {
	if k.ctx.Err() != nil {
		return
	}
	d := k.r.Step(k.now())
	for _, c := range d.Calls {
		v := k.volumes[c.Volume]
		j := job{call: c, id: v.id, source: v.source}
		if w := v.pods[types.UID(c.Pod)]; w != nil {
			j.id, j.pod = w.id, w.pod
			if w.source != nil {
				j.source = w.source
			}
		}
		go k.carryOut(j)
	}
	for _, n := range d.Notices {
		k.notice(n)
	}
	for _, look := range d.Looks {
		if v := k.volumes[look.Volume]; v.source != nil {
			go k.look(k.ctx, look, v.source)
		}
	}
	if k.timer != nil {
		k.timer.Stop()
		k.timer = nil
	}
	if !d.Wake.IsZero() {
		k.timer = time.AfterFunc(d.Wake.Sub(k.now()), func() {
			k.mu.Lock()
			defer k.mu.Unlock()
			k.step()
		})
	}
	if names, _ := k.r.InUse(); !slices.Equal(names, k.inUse) {
		k.inUse = names
		go k.Options.InUse()
	}
}

// job is a call with its inputs.
type job struct {
	call   core.Call
	id     id
	pod    *corev1.Pod // nil: not known any more
	source *Source     // nil: not known any more; calls that unmount need none
}

// carryOut makes a call and records how it ended.
func (k *Manager) carryOut(j job) {
	begun := time.Now()
	outcome, err := k.do(j)
	if k.Took != nil && !j.call.Again {
		migrated := j.source != nil && j.source.migrated
		k.Took(j.id.plugin(), j.operation(), migrated, time.Since(begun), err)
	}
	if err != nil {
		slog.Warn("volume: call of a driver failed", "call", j.operation(), "driver", j.id.Driver,
			"volume", j.id.Spec, "uid", j.call.Pod, "err", err)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.r.Ended(k.now(), j.call.ID, j.call.Volume, outcome)
	k.told(j, err)
	k.step()
	k.forget(j.call.Volume)
	pod := core.Pod(j.call.Pod)
	if pod != "" && !j.call.Again && (err != nil || !k.r.Calls(pod)) {
		go k.Options.Changed(types.UID(j.call.Pod))
	}
}

// told stores why a call failed, and records an Event about it.
func (k *Manager) told(j job, err error) {
	v := k.volumes[j.call.Volume]
	w := v.pods[types.UID(j.call.Pod)]
	if w == nil || j.call.Verb == core.Unpublish {
		return
	}
	w.failed = ""
	if err == nil || j.pod == nil || k.ctx.Err() != nil {
		return
	}
	w.failed = err.Error()
	text, reason := failures[j.call.Verb], "FailedMount"
	if j.id.Block {
		text, reason = blockFailures[j.call.Verb], "FailedMapVolume"
	}
	if j.call.Verb == core.Expand {
		reason = "FileSystemResizeFailed"
	}
	k.Recorder.Event(j.pod, corev1.EventTypeWarning, reason, fmt.Sprintf("%s failed for volume %q : %v", text, j.id.Spec,
		err))
}

// forget drops volumes that the core does not know any more.
func (k *Manager) forget(name core.Name) {
	v := k.volumes[name]
	pods := k.r.Pods(name)
	if pods == nil && !k.r.Has(name) {
		delete(k.volumes, name)
		return
	}
	maps.DeleteFunc(v.pods, func(uid types.UID, _ *want) bool { return !slices.Contains(pods, core.Pod(uid)) })
}

// notice records an Event about what a pod waits for, in upstream's words.
func (k *Manager) notice(n core.Notice) {
	v := k.volumes[n.Volume]
	w := v.pods[types.UID(n.Pod)]
	if w == nil || w.pod == nil {
		return
	}
	text := fmt.Sprintf("MountVolume.SetUp failed for volume %q : %s", w.id.Spec, n.Why)
	switch {
	case n.Late:
		text = k.late(w.pod)
	case n.Why == core.NoDriver:
		const lacks = "MountVolume.SetUp failed for volume %q : driver name %s not found in the list of " +
			"registered CSI drivers"
		text = fmt.Sprintf(lacks, w.id.Spec, w.id.Driver)
	}
	k.Recorder.Event(w.pod, corev1.EventTypeWarning, "FailedMount", text)
}

// late returns the text about the volumes that a pod waits for.
func (k *Manager) late(pod *corev1.Pod) string {
	unmounted, unattached := []string{}, []string{}
	for name, v := range k.volumes {
		w := v.pods[pod.UID]
		if w == nil || w.pod == nil {
			continue
		}
		switch k.r.Waits(k.now(), core.Pod(pod.UID), name) {
		case core.None:
			continue
		case core.NotAttached, core.NotReported:
			unattached = append(unattached, w.outer)
		}
		unmounted = append(unmounted, w.outer)
	}
	slices.Sort(unmounted)
	slices.Sort(unattached)
	return fmt.Sprintf("Unable to attach or mount volumes: unmounted volumes=%v, unattached volumes=%v, "+
		"failed to process volumes=[]: context deadline exceeded", unmounted, unattached)
}

// removeEmpty removes what may be left of a volume's directory if it is empty: its target, its record, and the
// directory.
func removeEmpty(target string) error {
	dir := filepath.Dir(target)
	for _, path := range []string{target, filepath.Join(dir, recordFile), dir} {
		if err := durable.Remove(path); err != nil {
			return err
		}
	}
	return nil
}
