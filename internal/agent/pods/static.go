package pods

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/fsnotify/fsnotify"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/plimsoll-dev/plimsoll/internal/core/podlife"
	"github.com/plimsoll-dev/plimsoll/internal/kube"
	"github.com/plimsoll-dev/plimsoll/internal/kube/manifests"
)

// staticPods runs the pods of a directory of manifests and keeps their mirrors in the API: read-only images that let
// users see them. The directory rules: deleting a mirror does not end its pod, deleting the manifest does.
type staticPods struct {
	r *Runner

	mu      sync.Mutex
	pods    map[string]*corev1.Pod // wanted, by namespace/name
	mirrors map[string]*corev1.Pod // in the API, by namespace/name
	bad     map[string]string      // what is wrong with a file, so that it is said once per content
	synced  bool                   // the API has told every mirror
	whole   bool                   // every file has been read, at one time or another
	known   bool                   // and the pods that they have are here
	wake    chan struct{}
	reflect chan struct{} // wakes who keeps mirrors

	watch func(ctx context.Context, dir string) (changed <-chan struct{}, err error) // watchDir, but in tests
}

// The directory is re-read when it changes and, for file systems that cannot notify, at this period (upstream's
// fileCheckFrequency default).
const staticPeriod = 20 * time.Second

// settle lets an editor finish writing before its file is read.
const settle = 100 * time.Millisecond

// settleLongest bounds how long changes that do not end are waited for (chosen).
const settleLongest = 2 * time.Second

func newStaticPods(r *Runner) *staticPods {
	return &staticPods{
		r: r, pods: map[string]*corev1.Pod{}, mirrors: map[string]*corev1.Pod{}, bad: map[string]string{},
		wake: make(chan struct{}, 1), reflect: make(chan struct{}, 1), watch: watchDir,
	}
}

func key(pod *corev1.Pod) string { return pod.Namespace + "/" + pod.Name }

// poke has pods and mirrors compared with what they should be.
func (s *staticPods) poke() {
	for _, wake := range []chan struct{}{s.wake, s.reflect} {
		select {
		case wake <- struct{}{}:
		default:
		}
	}
}

// told reports whether the directory has told every pod that should be here. Until then a pod that nobody asks for may
// be one of its.
func (s *staticPods) told() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.known || s.r.StaticDir == ""
}

func (s *staticPods) apiSynced() {
	s.mu.Lock()
	s.synced = true
	s.mu.Unlock()
	s.poke()
}

// freed is called when a pod has gone: a new version of a static pod may have waited for it.
func (s *staticPods) freed(types.UID) { s.poke() }

func (s *staticPods) mirrorSeen(mirror *corev1.Pod) {
	s.mu.Lock()
	s.mirrors[key(mirror)] = mirror
	s.mu.Unlock()
	s.poke()
}

func (s *staticPods) mirrorGone(mirror *corev1.Pod) {
	s.mu.Lock()
	if m := s.mirrors[key(mirror)]; m != nil && m.UID == mirror.UID {
		delete(s.mirrors, key(mirror))
	}
	s.mu.Unlock()
	s.poke()
}

// watchDir tells of changes in a directory until ctx ends. It tells, too, where the kernel lost count of them.
func watchDir(ctx context.Context, dir string) (<-chan struct{}, error) {
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		return nil, err
	}
	if err := watcher.Add(dir); err != nil {
		return nil, errors.Join(err, watcher.Close())
	}
	changed := make(chan struct{}, 1)
	go func() {
		defer watcher.Close()
		tellChanges(ctx, watcher, dir, changed)
	}()
	return changed, nil
}

// tellChanges tells of what a watcher sees until ctx ends. It reads errors, too, of which one is that the kernel lost
// count: a watcher waits for ever to tell one.
func tellChanges(ctx context.Context, watcher *fsnotify.Watcher, dir string, changed chan<- struct{}) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-watcher.Events:
		case err := <-watcher.Errors:
			slog.Warn("static pods: changes may have gone unnoticed, reading all", "dir", dir, "err", err)
		}
		select {
		case changed <- struct{}{}:
		default:
		}
	}
}

func (s *staticPods) run(ctx context.Context) {
	var changes <-chan struct{}
	if s.r.StaticDir != "" {
		var err error
		if changes, err = s.watch(ctx, s.r.StaticDir); err != nil {
			slog.Warn(
				"static pods: no change notification, reading every "+staticPeriod.String(), "dir", s.r.StaticDir, "err", err,
			)
		}
	}
	var mirrors sync.WaitGroup
	defer mirrors.Wait()
	mirrors.Go(func() { s.keepMirrors(ctx) })
	tick := time.NewTicker(staticPeriod)
	defer tick.Stop()
	s.read()
	for {
		s.reconcile()
		select {
		case <-ctx.Done():
			return
		case <-changes:
			drain(ctx, changes)
			s.read()
		case <-tick.C:
			s.read()
		case <-s.wake:
		}
	}
}

// drain waits for a quiet moment, though not for ever: somebody may write there all the time.
func drain(ctx context.Context, changes <-chan struct{}) {
	longest := time.After(settleLongest)
	for {
		select {
		case <-ctx.Done():
			return
		case <-longest:
			return
		case <-changes:
		case <-time.After(settle):
			return
		}
	}
}

// read reads the directory. A file that cannot be read or decoded keeps the pod it had: a half-written edit must not
// end a running pod. Nor may a directory or file that fails while the agent starts: see told.
func (s *staticPods) read() {
	if s.r.StaticDir == "" {
		return
	}
	files, err := os.ReadDir(s.r.StaticDir)
	if err != nil {
		if !os.IsNotExist(err) {
			slog.Error("static pods: directory not read, keeping what runs", "dir", s.r.StaticDir, "err", err)
			return
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		s.whole = true // there are none
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	before, wanted, whole := s.pods, map[string]*corev1.Pod{}, true
	for _, f := range files {
		path := filepath.Join(s.r.StaticDir, f.Name())
		if f.IsDir() || strings.HasPrefix(f.Name(), ".") {
			continue
		}
		pod, err := s.decode(path)
		if err != nil {
			whole = whole && !unread(err)
			if s.bad[path] != err.Error() {
				slog.Error("static pod refused", "file", path, "err", err)
				s.bad[path] = err.Error()
			}
			for k, old := range before {
				if old.Annotations[annotationPath] == path {
					wanted[k] = old
				}
			}
			continue
		}
		delete(s.bad, path)
		if twin := wanted[key(pod)]; twin != nil {
			slog.Error(
				"static pod refused: another file has a pod of this name", "file", path, "pod", key(pod), "other",
				twin.Annotations[annotationPath],
			)
			continue
		}
		wanted[key(pod)] = pod
	}
	s.pods = wanted
	s.whole = s.whole || whole
}

// unread tells a file that is there and could not be read from one whose content is wrong.
func unread(err error) bool {
	var failed *fs.PathError
	return errors.As(err, &failed) && !errors.Is(err, fs.ErrNotExist)
}

// annotationPath remembers in memory which file a static pod came from.
const annotationPath = "plimsoll.dev/config.path"

func (s *staticPods) decode(path string) (*corev1.Pod, error) {
	const fileMax = 3 << 20 // the API server's own limit of a request is 3 MiB
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if info.Mode()&fs.ModeType != 0 || info.Size() > fileMax {
		return nil, fmt.Errorf(
			"want a regular file of at most %d bytes, have %v of %d", fileMax, info.Mode().Type(), info.Size(),
		)
	}
	body, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	pod, err := manifests.DecodePod(body)
	if err != nil {
		return nil, err
	}
	return s.complete(pod, path, body)
}

// complete makes a static pod of a manifest: bound here, named after the node, with a uid that follows its content.
func (s *staticPods) complete(pod *corev1.Pod, path string, body []byte) (*corev1.Pod, error) {
	sum := sha256.Sum256([]byte(s.r.Node + "\x00" + path + "\x00" + string(body)))
	hash := hex.EncodeToString(sum[:16])
	pod.UID = types.UID(hash)
	pod.Name += "-" + strings.ToLower(s.r.Node)
	if pod.Namespace == "" {
		pod.Namespace = metav1.NamespaceDefault
	}
	pod.Spec.NodeName = s.r.Node
	annotations := map[string]string{
		annotationFile: hash, annotationSource: "file", annotationPath: path,
		annotationSeen: time.Now().Format(time.RFC3339Nano),
	}
	for k, v := range pod.Annotations {
		if _, ours := annotations[k]; !ours {
			annotations[k] = v
		}
	}
	pod.Annotations = annotations
	pod.CreationTimestamp = metav1.Now()
	// A static pod has nowhere else to go: no taint evicts it.
	pod.Spec.Tolerations = append(
		pod.Spec.Tolerations, corev1.Toleration{Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute},
	)
	manifests.DefaultPod(pod)
	if err := manifests.CheckStaticPod(pod); err != nil {
		return nil, err
	}
	return pod, nil
}

// reconcile starts what the directory has and ends what it no longer has.
func (s *staticPods) reconcile() {
	wanted := s.wanted()
	live := s.endUnwanted(wanted)
	for _, pod := range slices.SortedFunc(maps.Values(wanted), s.r.inOrder) {
		if uid, busy := live[key(pod)]; busy && uid != pod.UID {
			continue // the version before it must have gone first
		}
		if e := s.r.entryOf(pod.UID); e == nil || e.object() == nil {
			s.r.take(pod, true)
		}
	}
	s.mu.Lock()
	first := s.whole && !s.known
	s.known = s.whole
	s.mu.Unlock()
	if first {
		s.r.sourceTold()
	}
	select {
	case s.reflect <- struct{}{}:
	default:
	}
}

// wanted are the pods that the directory has, by namespace/name.
func (s *staticPods) wanted() map[string]*corev1.Pod {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.pods)
}

// endUnwanted orders the end of static pods that the directory no longer has and returns those that still are here, as
// live does.
func (s *staticPods) endUnwanted(wanted map[string]*corev1.Pod) map[string]types.UID {
	now, _ := s.r.now()
	for _, e := range s.r.entries() {
		e.mu.Lock()
		pod := e.pod
		if pod == nil || !e.static {
			e.mu.Unlock()
			continue
		}
		w := wanted[key(pod)]
		going := e.stop != nil && e.stop.Remove // else it was rejected or evicted, and stays until its manifest goes
		end := (w == nil || w.UID != e.uid) && !going
		if end {
			e.orderStop(now, e.grace(), podlife.StopOrder{Remove: true})
		}
		e.mu.Unlock()
		if end {
			s.r.kick(e)
		}
	}
	return s.live(wanted)
}

// live returns the static pods that are here, by name: of two with one name that which is not wanted. A pod of which
// only the runtime knows may be one, too: a version of before this agent.
func (s *staticPods) live(wanted map[string]*corev1.Pod) map[string]types.UID {
	live := map[string]types.UID{}
	for _, e := range s.r.entries() {
		e.mu.Lock()
		pod, static, k := e.pod, e.static, e.fallback.namespace+"/"+e.fallback.name
		e.mu.Unlock()
		if pod != nil {
			k = key(pod)
		}
		if pod != nil && !static {
			continue
		}
		if w := wanted[k]; live[k] == "" || w != nil && live[k] == w.UID {
			live[k] = e.uid
		}
	}
	return live
}

// keepMirrors has the API show the static pods. It waits for the API server; what starts and ends them does not.
func (s *staticPods) keepMirrors(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.reflect:
		}
		wanted := s.wanted()
		s.reconcileMirrors(ctx, wanted, s.live(wanted))
	}
}

// reconcileMirrors creates missing mirrors, and deletes those of other content and of pods that are gone. The mirror of
// a pod that is ending stays and shows its end: live are the static pods that still are here.
func (s *staticPods) reconcileMirrors(ctx context.Context, wanted map[string]*corev1.Pod, live map[string]types.UID) {
	s.mu.Lock()
	synced := s.synced
	mirrors := make(map[string]*corev1.Pod, len(s.mirrors))
	for k, m := range s.mirrors {
		mirrors[k] = m
	}
	s.mu.Unlock()
	if !synced {
		return
	}
	retry := false
	for k, m := range mirrors {
		pod := wanted[k]
		if pod != nil && m.Annotations[annotationMirror] == string(pod.UID) && m.DeletionTimestamp == nil {
			s.r.mirrored(pod.UID, m)
			continue
		}
		if uid, here := live[k]; here && m.Annotations[annotationMirror] == string(uid) && m.DeletionTimestamp == nil {
			continue
		}
		if err := s.r.report.DeleteObject(ctx, m); err != nil {
			slog.Warn("static pods: mirror not deleted, trying again", "pod", k, "err", err)
			retry = true
		}
	}
	for k, pod := range wanted {
		if mirrors[k] != nil {
			continue
		}
		if err := s.createMirror(ctx, pod); err != nil {
			slog.Warn("static pods: mirror not created, trying again", "pod", k, "err", err)
			retry = true
		}
	}
	if retry {
		time.AfterFunc(5*time.Second, s.poke)
	}
}

// createMirror posts the image of a static pod. The API server admits it only with the node as its owner.
func (s *staticPods) createMirror(ctx context.Context, pod *corev1.Pod) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	node := &corev1.Node{}
	if err := s.r.Client.Get(ctx, kube.Nodes, "", s.r.Node, node); err != nil {
		return fmt.Errorf("read node %s: %w", s.r.Node, err)
	}
	mirror := pod.DeepCopy()
	mirror.UID, mirror.ResourceVersion, mirror.CreationTimestamp = "", "", metav1.Time{}
	mirror.Status = corev1.PodStatus{}
	delete(mirror.Annotations, annotationPath)
	mirror.Annotations[annotationMirror] = string(pod.UID)
	controller := true
	mirror.OwnerReferences = []metav1.OwnerReference{
		{APIVersion: "v1", Kind: "Node", Name: node.Name, UID: node.UID, Controller: &controller},
	}
	err := s.r.Client.Create(ctx, kube.Pods, mirror.Namespace, "", mirror, &corev1.Pod{})
	if apierrors.IsAlreadyExists(err) {
		return nil // the watch will show it
	}
	return err
}

// mirrored tells a static pod's entry about its mirror, to which its status is written.
func (r *Runner) mirrored(uid types.UID, mirror *corev1.Pod) {
	e := r.entryOf(uid)
	if e == nil {
		return
	}
	e.mu.Lock()
	fresh := e.mirror == nil || e.mirror.UID != mirror.UID
	if fresh {
		e.report.Replaced(mirror)
	}
	e.mirror = mirror
	e.mu.Unlock()
	if fresh {
		r.report.Enqueue(e.report)
	}
}
