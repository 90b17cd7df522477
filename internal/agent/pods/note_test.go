package pods

import (
	"errors"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/plimsoll-dev/plimsoll/internal/agent/podentry"
	"github.com/plimsoll-dev/plimsoll/internal/core/admission"
	"github.com/plimsoll-dev/plimsoll/internal/core/podlife"
	"github.com/plimsoll-dev/plimsoll/internal/journal"
)

// TestNotes: what is decided about a pod is recorded, each decision once, however often it is repeated.
func TestNotes(t *testing.T) {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p", UID: "u"}}
	l, err := journal.NewLog("", 1<<20, "")
	if err != nil {
		t.Fatal(err)
	}
	w := &worker{r: &Runner{Options: Options{Journal: l}}, e: podentry.New("u")}
	w.judged.Basis = &admission.Basis{Checked: true, PodsMax: 3}
	w.noteVerdict(pod, journal.Holds, "WaitingForTermination", "another pod ends")
	w.noteVerdict(pod, journal.Rejects, "OutOfcpu", "no room")
	stop := podlife.Action{Kind: podlife.StopContainer, Container: "c", ID: "1", Why: "its pod ends", Grace: time.Second}
	for range 3 {
		w.noteStops(pod, []podlife.Action{stop, {Kind: podlife.Finish}})
	}
	start := podlife.Action{Kind: podlife.StartContainer, Container: "c"}
	for _, why := range []string{"no device", "no device", strings.Repeat("x", 1<<20), "no device"} {
		w.noteFailure(pod, start, "CreateContainerError", errors.New(why))
	}
	w.noteFailure(pod, start, podlife.ReasonErrImagePull, errors.New("a record of its own"))
	a, err := l.Find(journal.Query{Namespace: "ns", Name: "p", UID: "u"})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, r := range a.Records {
		got = append(got, r.Text[:min(len(r.Text), 60)])
		if len(r.Detail) > 2*textMax {
			t.Errorf("%s: %d bytes", r.Text[:60], len(r.Detail))
		}
	}
	const want = `waits: WaitingForTermination: another pod ends
rejected: OutOfcpu: no room
container c is stopped: its pod ends; it is killed if it run
start c failed: CreateContainerError: no device
start c failed: CreateContainerError: xxxxxxxxxxxxxxxxxxxxxx
start c failed: CreateContainerError: no device`
	if text := strings.Join(got, "\n"); text != want {
		t.Errorf("got\n%s\nwant\n%s", text, want)
	}
	if d := string(a.Records[0].Detail) + string(a.Records[1].Detail); strings.Count(d, `"basis"`) != 1 {
		t.Errorf("what decided is not recorded once: %s", d)
	}
}
