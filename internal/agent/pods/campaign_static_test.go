package pods

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/plimsoll-dev/plimsoll/internal/agent/staticpods"
)

// manifest is a static pod that there was or is.
type manifest struct {
	key   string // namespace/name
	grace time.Duration
}

// staticDir has the same name wherever the test runs: the uids of static pods follow it, and with them what is drawn
// for them.
func (w *world) staticDir() string { return filepath.Join(filepath.Base(w.logDir), "manifests") }

// watchFiles is the kernel's word on the directory of manifests, to one agent.
func (l *life) watchFiles(context.Context, string) (<-chan struct{}, error) {
	l.w.mu.Lock()
	defer l.w.mu.Unlock()
	if l.w.fails("watch files") {
		return nil, os.ErrPermission
	}
	return l.files, nil
}

// tellFiles tells of a change in the directory: or late, or never. Caller holds mu.
func (w *world) tellFiles() {
	l := w.life
	w.turns["files"]++
	late := time.Duration(0)
	if r := w.dice("files", w.turns["files"]); !w.calm && r.IntN(100) < w.trouble {
		if late = time.Duration(r.IntN(10_000)) * time.Millisecond; r.IntN(2) == 0 {
			return
		}
	}
	time.AfterFunc(late, func() {
		select {
		case l.files <- struct{}{}:
		default:
		}
	})
}

// writeManifest puts a file there, or another in its place. Caller holds mu.
func (h *history) writeManifest() {
	w, r := h.w, h.r
	h.made++
	name := fmt.Sprintf("s%d", r.IntN(2))
	path := filepath.Join(w.staticDir(), name+".yaml")
	grace := []int64{0, 1, 10, 30}[r.IntN(4)]
	policy := restartPolicies[r.IntN(3)]
	hooks := ""
	if r.IntN(3) == 0 {
		hooks = ", lifecycle: {preStop: {exec: {command: [prestop]}}}"
	}
	text := fmt.Sprintf("apiVersion: v1\nkind: Pod\nmetadata: {namespace: ns, name: %s, annotations: {version: v%d}}\n"+
		"spec: {restartPolicy: %s, terminationGracePeriodSeconds: %d, containers: [{name: main, image: \"here:1\"%s}]}\n",
		name, h.made, policy, grace, hooks)
	if r.IntN(3) == 0 { // an editor that takes its time
		_ = os.WriteFile(path, []byte(text[:len(text)/2]), 0o600)
		w.tellFiles()
		w.mu.Unlock()
		h.pass(time.Duration(r.IntN(3_000)) * time.Millisecond)
		w.mu.Lock()
	}
	if os.WriteFile(path, []byte(text), 0o600) != nil {
		return // the directory fails
	}
	pod, err := staticpods.Decode("node-1", path)
	if err != nil {
		panic(err)
	}
	w.say("%s has static pod %s, grace %ds, %s", path, pod.UID, grace, policy)
	w.forsake(path)
	w.files[path] = pod.UID
	w.statics[pod.UID] = &manifest{pod.Namespace + "/" + pod.Name, time.Duration(grace) * time.Second}
	w.tellFiles()
}

// forsake notes that a file no longer has the pod it had. The agent may take a period to see it. Caller holds mu.
func (w *world) forsake(path string) {
	uid, was := w.files[path]
	if !was {
		return
	}
	delete(w.files, path)
	if !w.down {
		w.ordered(uid, staticpods.Period+w.statics[uid].grace)
		w.orderedAt[uid] = time.Now().Add(staticpods.Period)
	}
}

// removeManifest removes one. Caller holds mu.
func (h *history) removeManifest() {
	path := filepath.Join(h.w.staticDir(), fmt.Sprintf("s%d.yaml", h.r.IntN(2)))
	if os.Remove(path) == nil {
		h.w.say("%s is removed", path)
		h.w.forsake(path)
		h.w.tellFiles()
	}
}

// breakDir has a directory of the agent's fail for a while: a file is in its place. Caller holds mu.
func (h *history) breakDir(dir string) {
	w, away := h.w, dir+".away"
	if os.Rename(dir, away) != nil {
		return // it fails already, or is not there
	}
	_ = os.WriteFile(dir, nil, 0o600)
	w.say("%s fails", dir)
	lasts := time.Duration(h.r.IntN(90_000)) * time.Millisecond
	if dir == w.staticDir() { // what has been forsaken may not have been seen, and is not until then
		for uid, by := range w.orders {
			if w.statics[uid] != nil {
				w.orders[uid] = by.Add(lasts + staticpods.Period)
				w.orderedAt[uid] = w.orderedAt[uid].Add(lasts + staticpods.Period)
			}
		}
	}
	time.AfterFunc(lasts, func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.mendDir(dir)
	})
}

// mendDir ends what breakDir began. Caller holds mu.
func (w *world) mendDir(dir string) {
	if _, err := os.Stat(dir + ".away"); err != nil {
		return
	}
	_ = os.Remove(dir)
	if err := os.Rename(dir+".away", dir); err != nil {
		panic(err)
	}
	w.say("%s works again", dir)
}

// judgeTwins finds two versions of a static pod that run at once. Caller holds mu.
func (w *world) judgeTwins(b *box) {
	m := w.statics[b.uid]
	if m == nil {
		return
	}
	for _, o := range w.containers {
		if twin := w.statics[o.uid]; o.uid != b.uid && o.alive && twin != nil && twin.key == m.key {
			w.judged("%s, %s %s, is started while %s, another version of it, runs", b.uid, m.key, b.name, o.uid)
		}
	}
}

// missing says which static pods are not there as they should be, with their mirrors, a while after the trouble ended.
func (w *world) missing() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	var out []string
	for path, uid := range w.files {
		if !w.hasSandbox(uid) && w.api.final[uid] == "" {
			out = append(out, fmt.Sprintf("%s has static pod %s, which has no sandbox", path, uid))
		}
		if mirror := w.mirrorOf(uid); mirror == nil || mirror.Status.Phase == "" {
			out = append(out, fmt.Sprintf("%s has static pod %s, which has no mirror with a status", path, uid))
		}
	}
	return strings.Join(out, "; ")
}

// hasRun reports whether a program of the pod was ever started. Caller holds mu.
func (w *world) hasRun(uid types.UID) bool {
	for run := range w.starts {
		if strings.HasPrefix(run, string(uid)+" ") {
			return true
		}
	}
	return false
}

func (w *world) hasSandbox(uid types.UID) bool {
	for _, s := range w.sandboxes {
		if s.uid == uid {
			return true
		}
	}
	return false
}

func (w *world) mirrorOf(uid types.UID) *corev1.Pod {
	for _, pod := range w.api.pods {
		if pod.Annotations[corev1.MirrorPodAnnotationKey] == string(uid) && pod.DeletionTimestamp == nil {
			return pod
		}
	}
	return nil
}
