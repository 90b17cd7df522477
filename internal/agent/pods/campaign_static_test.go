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

// manifest is a static pod that exists or existed.
type manifest struct {
	key   string // namespace/name
	grace time.Duration
}

// staticDir returns the same name wherever the test runs: the UIDs of static pods depend on it, and so do the random
// draws for them.
func (w *world) staticDir() string { return filepath.Join(filepath.Base(w.logDir), "manifests") }

// watchFiles is the kernel's notification of changes in the directory of manifests, to one agent.
func (l *life) watchFiles(context.Context, string) (<-chan struct{}, error) {
	l.w.mu.Lock()
	defer l.w.mu.Unlock()
	if l.w.fails("watch files") {
		return nil, os.ErrPermission
	}
	return l.files, nil
}

// tellFiles notifies of a change in the directory: in time, late, or never. The caller holds mu.
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

// writeManifest writes a new manifest, or replaces one. The caller holds mu.
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
	if r.IntN(3) == 0 { // a slow editor
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

// forsake records that a file no longer has its former pod. The agent may need a Period to notice. The caller holds mu.
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

// removeManifest removes a manifest. The caller holds mu.
func (h *history) removeManifest() {
	path := filepath.Join(h.w.staticDir(), fmt.Sprintf("s%d.yaml", h.r.IntN(2)))
	if os.Remove(path) == nil {
		h.w.say("%s is removed", path)
		h.w.forsake(path)
		h.w.tellFiles()
	}
}

// breakDir makes a directory of the agent fail for a while: it replaces it by a file. The caller holds mu.
func (h *history) breakDir(dir string) {
	w, away := h.w, dir+".away"
	if os.Rename(dir, away) != nil {
		return // it fails already, or does not exist
	}
	_ = os.WriteFile(dir, nil, 0o600)
	w.say("%s fails", dir)
	lasts := time.Duration(h.r.IntN(90_000)) * time.Millisecond
	if dir == w.staticDir() { // the agent cannot notice forsaken pods until the directory works again
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

// mendDir undoes breakDir. The caller holds mu.
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

// judgeTwins checks that two versions of a static pod do not run at once. The caller holds mu.
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

// missing returns which static pods or mirrors are missing or wrong a while after the trouble ended.
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

// hasRun reports whether a container of the pod was ever started. The caller holds mu.
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
