package agent

import (
	"fmt"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/plimsoll-dev/plimsoll/internal/agent/imagepull"
	"github.com/plimsoll-dev/plimsoll/internal/agent/metrics"
	"github.com/plimsoll-dev/plimsoll/internal/agent/probe"
	"github.com/plimsoll-dev/plimsoll/internal/core/admission"
	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
	"github.com/plimsoll-dev/plimsoll/internal/journal"
)

// life notes what is decided about a pod that starts, fails once and starts again.
func life(a *Agent, l *ledger, pod *corev1.Pod) {
	basis := admission.PressureBasis(admission.Applicant{}, nil)
	rejection := l.check(pod, nil, nil, nil, basis)
	a.note(pod, journal.Admitted, &journal.Admission{
		Verdict: journal.Admits,
		Judged:  journal.Judged{Basis: basis, Rejection: rejection},
	})
	a.notePull(imagepull.Pull{Pod: pod, Container: "app", Image: "registry.example.com/team/app:1.2.3", Took: time.Second})
	for run := range 2 {
		id := fmt.Sprintf("containerd://%064d", run)
		a.note(pod, journal.Started, &journal.Start{Container: "app", Run: run + 1, ID: id})
		a.noteProbe(probe.Turn{Pod: pod, Container: "app", Probe: "Readiness", Times: 1})
		a.note(pod, journal.Ended, &journal.End{
			Container: "app",
			Run:       run + 1,
			ID:        id,
			Code:      1,
			Reason:    "Error",
			Waits:     "CrashLoopBackOff: back-off 10s restarting failed container=app pod=" + pod.Name,
		})
	}
}

// TestDecisionsAreBounded: however many pods come and go, the agent keeps little in memory, and both journals answer as
// one.
func TestDecisionsAreBounded(t *testing.T) {
	a := &Agent{o: Options{RootDir: t.TempDir()}, metrics: metrics.New("n")}
	if err := a.openJournal(t.Context()); err != nil {
		t.Fatal(err)
	}
	l := newLedger(resourcesOf(50_000, unit.GiB, 50_000))
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	for i := range 5000 {
		pod := onePod("100m", "64Mi")
		pod.UID, pod.Name = types.UID(fmt.Sprint("u", i)), fmt.Sprint("p", i)
		life(a, l, pod)
	}
	if _, err := a.journal.Append(journal.Record{
		Time: time.Now(), Kind: journal.Eviction, Pods: []journal.Pod{{Name: "p4999", UID: "u4999"}},
	}); err != nil {
		t.Fatal(err)
	}
	found, err := a.findDecisions(journal.Query{Name: "p4999"})
	if err != nil || len(found.Records) != 9 || found.Records[0].Kind != journal.Admitted ||
		found.Records[8].Kind != journal.Eviction || found.Last != 40_000 || found.Missing > 39_000 {
		t.Errorf("found %+v, %v", found, err)
	}
	a.closeJournal() // all is written: what is kept is what was not dropped
	l = newLedger(l.resources)
	runtime.GC()
	runtime.ReadMemStats(&after)
	runtime.KeepAlive(l)
	runtime.KeepAlive(a)
	kept := int64(after.HeapAlloc) - int64(before.HeapAlloc)
	t.Logf("%d KiB are kept of 40,000 records", kept>>10)
	if kept > 512<<10 {
		t.Errorf("%d bytes are kept of 40,000 records: want at most half a mebibyte", kept)
	}
	copied, err := journal.Read(filepath.Join(a.o.RootDir, "journal"), journal.Query{Name: "p4999"})
	if err != nil || len(copied.Records) != 9 {
		t.Errorf("in the directory: %+v, %v", copied, err)
	}
}

// BenchmarkAdmissionNote is what recording costs an admission: it adds the difference of the two.
func BenchmarkAdmissionNote(b *testing.B) {
	for _, noted := range []bool{false, true} {
		b.Run(fmt.Sprintf("noted=%v", noted), func(b *testing.B) {
			a := &Agent{o: Options{RootDir: b.TempDir()}, metrics: metrics.New("n")}
			if err := a.openJournal(b.Context()); err != nil {
				b.Fatal(err)
			}
			node := admission.NewNode(scheduler.Node{Name: "n", PodsMax: 110, Allocatable: []scheduler.Amount{
				{Resource: scheduler.CPU, Value: 4000}, {Resource: scheduler.Memory, Value: 1 << 33},
			}})
			pod := onePod("100m", "64Mi")
			asked := translateCandidate(pod)
			b.ReportAllocs()
			for b.Loop() {
				var basis *admission.Basis
				if noted {
					basis = admission.PressureBasis(asked.Applicant, nil)
					node.AddTo(basis, asked.Pod)
				}
				rejection := node.Check(asked.Pod)
				if noted {
					a.note(pod, journal.Admitted, &journal.Admission{
						Verdict: journal.Admits,
						Judged:  journal.Judged{Basis: basis, Rejection: rejection},
					})
				}
			}
			a.closeJournal()
		})
	}
}
