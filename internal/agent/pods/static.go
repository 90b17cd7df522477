package pods

import (
	"context"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/plimsoll-dev/plimsoll/internal/agent/staticpods"
)

// staticRunner implements staticpods.Runner.
type staticRunner struct{ r *Runner }

var _ staticpods.Runner = staticRunner{}

// newStatic prepares the source of static pods. watch is nil, except in tests.
func newStatic(
	r *Runner, watch func(ctx context.Context, dir string) (changed <-chan struct{}, err error),
) *staticpods.Source {
	return staticpods.New(staticpods.Options{
		Node:   r.Node,
		Dir:    r.StaticDir,
		Client: r.Client,
		Runner: staticRunner{r},
		Watch:  watch,
		Refused: func(path string, err error) {
			node := &corev1.ObjectReference{Kind: "Node", Name: r.Node, UID: types.UID(r.Node)}
			text := strings.ToValidUTF8(fmt.Sprintf("%s: %v", path, err), "?")
			r.Recorder.Event(node, corev1.EventTypeWarning, "StaticPodRefused", text[:min(len(text), refusedMax)])
		},
	})
}

// refusedMax bounds the text of an Event about a manifest, in bytes: the API's limit for the note of events.k8s.io.
const refusedMax = 1024

func (s staticRunner) Start(pod *corev1.Pod) {
	if e := s.r.entryOf(pod.UID); e == nil || e.Object() == nil {
		s.r.take(pod, true)
	}
}

// Stop has a static pod removed, unless it is being removed already. A pod that was rejected or evicted has a stop
// order too, but it stays until Stop is called.
func (s staticRunner) Stop(uid types.UID) {
	e := s.r.entryOf(uid)
	if e == nil {
		return
	}
	now, _ := s.r.now()
	if e.RemoveStatic(now) {
		s.r.resync(e)
	}
}

func (s staticRunner) Here() (here []staticpods.Here) {
	for _, e := range s.r.entries() {
		if known, may := e.MayBeStatic(); may {
			here = append(here, staticpods.Here{UID: e.UID(), Name: e.Name(), Static: known})
		}
	}
	return here
}

// Mirrored has the pod's status written to its mirror.
func (s staticRunner) Mirrored(uid types.UID, mirror *corev1.Pod) {
	e := s.r.entryOf(uid)
	if e == nil {
		return
	}
	if e.SetMirror(mirror) {
		s.r.report.Enqueue(e.Report())
	}
}

func (s staticRunner) DeleteMirror(ctx context.Context, mirror *corev1.Pod) error {
	return s.r.report.DeleteObject(ctx, mirror)
}

func (s staticRunner) Order(a, b *corev1.Pod) int { return s.r.inOrder(a, b) }

func (s staticRunner) StaticSynced() { s.r.sourceSynced() }
