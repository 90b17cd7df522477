package agent

import (
	"context"
	"log/slog"
	"path/filepath"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/plimsoll-dev/plimsoll/internal/agent/imagepull"
	"github.com/plimsoll-dev/plimsoll/internal/agent/pods"
	"github.com/plimsoll-dev/plimsoll/internal/agent/probe"
	"github.com/plimsoll-dev/plimsoll/internal/journal"
)

// decisionsMemory bounds what the agent keeps in memory of its journal of pods, in bytes. Chosen: some hundred records,
// which the disk may be late for. With more, more of them survive a slow disk.
const decisionsMemory = 160 << 10

// openJournal opens the agent's two journals. That of evictions is written before pods are killed; that of pods is
// written in the background, so that no pod waits for it.
func (a *Agent) openJournal(context.Context) (err error) {
	dir := filepath.Join(a.o.RootDir, "journal")
	if a.journal, err = journal.Open(dir, journal.BytesMax); err != nil {
		return err
	}
	if a.decisions, err = journal.NewLog("", decisionsMemory, filepath.Join(dir, journal.OfPods)); err != nil {
		return err
	}
	a.metrics.Registry.MustRegister(a.journal.Measurements("evictions"), a.decisions.Measurements("pods"))
	return nil
}

func (a *Agent) closeJournal() {
	if err := a.decisions.Close(); err != nil {
		slog.Warn("journal of pods not closed", "err", err)
	}
	if a.journal == nil {
		return
	}
	if err := a.journal.Close(); err != nil {
		slog.Warn("journal not closed", "err", err)
	}
}

// findDecisions answers from both journals.
func (a *Agent) findDecisions(q journal.Query) (journal.Answer, error) {
	found, err := a.journal.Find(q)
	if err != nil {
		return found, err
	}
	about, err := a.decisions.Find(q)
	if err != nil {
		return found, err
	}
	found.Add(about)
	return found, nil
}

// note records a decision about a pod. It does not wait.
func (a *Agent) note(pod *corev1.Pod, kind journal.Kind, detail journal.Detail) {
	a.decisions.Note(journal.Note{Time: time.Now(), Kind: kind, Pods: pods.JournalPod(pod), Detail: detail})
}

// notePull records an attempt to pull an image.
func (a *Agent) notePull(p imagepull.Pull) {
	out := &journal.Pull{
		Container: p.Container,
		Image:     p.Image,
		Registry:  imagepull.Registry(p.Image),
		ID:        p.ID,
		Bytes:     p.Bytes,
		Waited:    p.Waited,
		Took:      p.Took,
	}
	if p.Err != nil {
		out.Error = pods.Cut(p.Err.Error())
	}
	a.note(p.Pod, journal.Pulled, out)
}

// noteProbe records that probes changed what follows for a container.
func (a *Agent) noteProbe(t probe.Turn) {
	a.note(t.Pod, journal.Probed, &journal.Probe{
		Container: t.Container,
		Probe:     t.Probe,
		Failed:    t.Failed,
		Times:     t.Times,
		Output:    pods.Cut(t.Output),
	})
}
