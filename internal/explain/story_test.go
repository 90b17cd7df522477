package explain

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/plimsoll-dev/plimsoll/internal/core/lifecycle"
	"github.com/plimsoll-dev/plimsoll/internal/journal"
)

// journals are the journals of a scheduler and a lifecycle controller, written as these write them.
type journals struct{ scheduler, lifecycle *journal.Log }

// at is a moment of the story, in milliseconds.
func at(ms int) time.Time {
	return time.Date(2026, 11, 25, 12, 0, 0, 0, time.UTC).Add(time.Duration(ms) * time.Millisecond)
}

func newJournals(t *testing.T) *journals {
	t.Helper()
	dir := t.TempDir() // on disk, so that nothing from before is missing
	scheduler, err := journal.NewLog("scheduler", journal.BytesMax, filepath.Join(dir, "s"))
	if err != nil {
		t.Fatal(err)
	}
	controller, err := journal.NewLog("lifecycle", journal.BytesMax, filepath.Join(dir, "l"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(scheduler.Close(), controller.Close()); err != nil {
			t.Error(err)
		}
	})
	return &journals{scheduler, controller}
}

// sources are journals as an Asker asks them.
func (j *journals) sources(which ...*journal.Log) (out []Source) {
	for _, l := range which {
		out = append(out, Source{
			Name: "of the test",
			Ask:  func(_ context.Context, q journal.Query) (journal.Answer, error) { return l.Find(q) },
		})
	}
	return out
}

// pods returns the pods of a record. The UID of a pod is its namespace and name, as in server.
func pods(names ...string) (out []journal.Pod) {
	for _, name := range names {
		out = append(out, journal.Pod{Namespace: "default", Name: name, UID: "default/" + name})
	}
	return out
}

// tell records a life: web waits, is placed, and its node falls silent; low is preempted for it.
func (j *journals) tell() {
	why := "0/2 nodes are available: 2 Insufficient cpu."
	for i, ms := range []int{120, 1300, 2500} {
		j.scheduler.Note(journal.Note{Time: at(ms), Kind: journal.Unschedulable, Pods: pods("web"), Detail: &journal.Refusal{
			Try: journal.Try{Attempt: i + 1, Waited: time.Duration(ms-100) * time.Millisecond, Nodes: 2},
			Why: why,
		}})
	}
	j.scheduler.Note(journal.Note{Time: at(3100), Kind: journal.Unschedulable, Node: "n1", Pods: pods("web", "low"),
		Detail: &journal.Refusal{
			Try:     journal.Try{Attempt: 4, Waited: 3 * time.Second, Nodes: 2, Priority: 7},
			Why:     why,
			Node:    "n1",
			Victims: []journal.Victim{{Namespace: "default", Name: "low", UID: "default/low"}},
		}})
	j.scheduler.Note(journal.Note{Time: at(4200), Kind: journal.Placed, Node: "n1", Pods: pods("web"),
		Detail: &journal.Placement{
			Try:      journal.Try{Attempt: 5, Waited: 4100 * time.Millisecond, Nodes: 2},
			Node:     "n1",
			Feasible: 1,
			Room:     []journal.Room{{Resource: "cpu", Requested: 1500, Free: 2000, Allocatable: 2000}},
		}})
	silent := lifecycle.Basis{Now: 60e9, Deadline: 60e9, Silent: true, Options: lifecycle.Defaults()}
	j.lifecycle.Note(journal.Note{Time: at(60_000), Kind: journal.OfNode, Node: "n1", Detail: &journal.NodeAction{
		Action: lifecycle.Action{Node: "n1", Unknown: []lifecycle.UnknownCondition{{Type: lifecycle.Ready}}}, Basis: silent}})
	j.lifecycle.Note(journal.Note{Time: at(60_001), Kind: journal.OfNode, Node: "n2", Detail: &journal.NodeAction{
		Action: lifecycle.Action{Node: "n2"}, Basis: silent}})
	j.lifecycle.Note(journal.Note{Time: at(60_002), Kind: journal.OfPod, Node: "n1", Pods: pods("web"),
		Detail: &journal.NodeAction{
			Action: lifecycle.Action{Node: "n1", Pod: &lifecycle.Pod{ID: "default/web"}, Do: lifecycle.MarkNotReady},
			Basis:  silent}})
}

// life is what the API has of it.
const life = `
apiVersion: v1
kind: Pod
metadata: {name: web, creationTimestamp: "2026-11-25T12:00:00Z"}
spec: {nodeName: n1, priority: 7, containers: [{name: app, image: i, resources: {requests: {cpu: 1500m}}}]}
status:
  phase: Running
  conditions:
  - {type: PodScheduled, status: "True", lastTransitionTime: "2026-11-25T12:00:04Z"}
  - {type: Ready, status: "True", lastTransitionTime: "2026-11-25T12:00:30Z"}
  containerStatuses:
  - name: app
    image: i
    imageID: ""
    restartCount: 1
    ready: true
    lastState:
      terminated: {exitCode: 3, reason: Error, startedAt: "2026-11-25T12:00:05Z", finishedAt: "2026-11-25T12:00:20Z"}
    state: {running: {startedAt: "2026-11-25T12:00:30Z"}}
---
apiVersion: v1
kind: Event
metadata: {name: e1, namespace: default}
involvedObject: {kind: Pod, namespace: default, name: web, uid: default/web}
type: Warning
reason: FailedScheduling
message: what the journal says, too
count: 3
lastTimestamp: "2026-11-25T12:00:02Z"
source: {component: default-scheduler}
---
apiVersion: v1
kind: Event
metadata: {name: e2, namespace: default}
involvedObject: {kind: Pod, namespace: default, name: web, uid: default/web}
type: Normal
reason: Pulled
message: image i was there
lastTimestamp: "2026-11-25T12:00:04Z"
source: {component: kubelet}
---
apiVersion: v1
kind: Node
metadata: {name: n1}
status: {nodeInfo: {kubeletVersion: v1.36.3}}
`

// storyOf asks about a pod and returns its story, a line each.
func storyOf(t *testing.T, a *Asker, name string) (lines string, answer *Pod) {
	t.Helper()
	answer, err := a.Pod(t.Context(), "default", name, "")
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range answer.Story {
		more := ""
		if m.More > 0 {
			more = fmt.Sprintf(" +%d until %v", m.More, m.Until.Sub(at(0)))
		}
		lines += fmt.Sprintf("%v %s: %s%s\n", m.Time.Sub(at(0)), m.From, m.What, more)
	}
	return lines, answer
}

func TestStory(t *testing.T) {
	s := newServer(t)
	s.add(life)
	j := newJournals(t)
	j.tell()
	const created, waits, room, placed = "0s API: created: requests cpu 1500m; priority 7\n",
		"120ms scheduler: 0/2 nodes are available: 2 Insufficient cpu. (try 1, 20ms after it came) +2 until 2.5s\n",
		"3.1s scheduler: 0/2 nodes are available: 2 Insufficient cpu. Preempts on n1: default/low " +
			"(try 4, 3s after it came)\n",
		"4.2s scheduler: placed on n1: 1 of 2 nodes fit; cpu: 1500m requested, 2 free of 2 (try 5, 4.1s after it came)\n"
	const runs = "4s kubelet: Pulled: image i was there\n" +
		"5s API: container app starts (run 1)\n" +
		"20s API: container app ends: exit code 3, Error\n" +
		"30s API: container app starts (run 2)\n" +
		"30s API: ready\n"
	const silent, notReady = "1m0s lifecycle: node n1: Ready becomes Unknown: no sign of life for 50s\n",
		"1m0.002s lifecycle: marked not ready on n1: its node gave no sign of life for 50s\n"
	const events = "2s default-scheduler: FailedScheduling: what the journal says, too (3 times)\n" +
		"4s API: scheduled: on node n1\n"
	for _, c := range []struct {
		name    string
		sources []Source
		want    string
		missing string // what the notes say
	}{
		{"all", j.sources(j.scheduler, j.lifecycle), created + waits + room + placed + runs + silent + notReady, ""},
		{"scheduler", j.sources(j.scheduler), created + waits + room + placed + runs,
			"no journal of the lifecycle controller"},
		{"lifecycle", j.sources(j.lifecycle), created + events + runs + silent + notReady, "no journal of the scheduler"},
		{"none", nil, created + events + runs, "no journal of the lifecycle controller and of the scheduler"},
	} {
		t.Run(c.name, func(t *testing.T) {
			a := askerOf(t, s, "")
			a.Sources = c.sources
			got, answer := storyOf(t, a, "web")
			if got != c.want {
				t.Errorf("got\n%swant\n%s", got, c.want)
			}
			notes := strings.Join(answer.Notes, "\n")
			if c.missing != "" && !strings.Contains(notes, c.missing) ||
				!strings.Contains(notes, "node n1 is run by a kubelet") {
				t.Errorf("notes: %s", notes)
			}
			if text := string(answer.Table()); !strings.Contains(text, "TIME ") ||
				!strings.Contains(text, "container app starts") {
				t.Error(text)
			}
		})
	}
	t.Run("a pod that is gone", func(t *testing.T) {
		a := askerOf(t, s, "")
		a.Sources = j.sources(j.scheduler, j.lifecycle)
		got, answer := storyOf(t, a, "low")
		const want = "3.1s scheduler: preempted on n1 for default/web of priority 7: 0/2 nodes are available: " +
			"2 Insufficient cpu.\n"
		if got != want || answer.Story[0].UID != "default/low" {
			t.Errorf("got\n%swant\n%s", got, want)
		}
		if _, err := a.Pod(t.Context(), "default", "nobody", ""); err == nil {
			t.Error("an answer about a pod that nobody knows")
		}
	})
	t.Run("a node", func(t *testing.T) {
		a := askerOf(t, s, "")
		a.Sources = j.sources(j.lifecycle)
		answer, err := a.Node(t.Context(), "n1")
		if err != nil || len(answer.Story) != 1 || !strings.Contains(string(answer.Table()), "Ready becomes Unknown") {
			t.Errorf("%+v, %v", answer, err)
		}
	})
}

// TestOneSecond: a container that fails and starts again within one second is told in order.
func TestOneSecond(t *testing.T) {
	s := newServer(t)
	s.add(strings.NewReplacer("12:00:20Z", "12:00:05Z", "12:00:30Z", "12:00:05Z").Replace(life))
	got, _ := storyOf(t, askerOf(t, s, ""), "web")
	const want = "5s API: container app starts (run 1)\n" +
		"5s API: container app ends: exit code 3, Error\n" +
		"5s API: container app starts (run 2)\n" +
		"5s API: ready\n"
	if !strings.HasSuffix(got, want) {
		t.Errorf("got\n%s", got)
	}
}

// TestAgentsStory: what the agent's journal says of containers is not repeated from status and Events; what it does not
// have is told as they say it.
func TestAgentsStory(t *testing.T) {
	s := newServer(t)
	s.add(life)
	for name, event := range map[string]string{"e3": "Started: Container started", "e4": "Failed: no such device 12:1f"} {
		reason, message, _ := strings.Cut(event, ": ")
		s.add(strings.NewReplacer("e2", name, "Pulled", reason, "image i was there", message).Replace(
			strings.Split(life, "---\n")[2]))
	}
	l, err := journal.NewLog("", journal.BytesMax, filepath.Join(t.TempDir(), journal.OfPods))
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	}()
	note := func(ms int, kind journal.Kind, d journal.Detail) {
		l.Note(journal.Note{Time: at(ms), Kind: kind, Pods: pods("web"), Detail: d})
	}
	note(4500, journal.Admitted, &journal.Admission{Verdict: journal.Admits})
	note(5200, journal.Failed, &journal.Failure{What: "start app", Error: "Error: no such device 12:1f"})
	note(5300, journal.Started, &journal.Start{Container: "app", Run: 1})
	note(20_100, journal.Ended, &journal.End{Container: "app", Run: 1, Code: 3, Ran: 14800 * time.Millisecond})
	a := askerOf(t, s, "")
	a.Sources = (&journals{}).sources(l)
	got, _ := storyOf(t, a, "web")
	const want = "4s API: scheduled: on node n1\n" +
		"4s kubelet: Pulled: image i was there\n" +
		"4.5s agent: admitted\n" +
		"5.2s agent: start app failed: Error: no such device 12:1f\n" +
		"5.3s agent: container app starts (run 1)\n" +
		"20.1s agent: container app ends (run 1) after 14.8s: exit code 3\n" +
		"30s API: container app starts (run 2)\n" +
		"30s API: ready\n"
	if !strings.HasSuffix(got, want) {
		t.Errorf("got\n%swant\n%s", got, want)
	}
}

// TestGaps: what a journal lacks is said, and what cannot be read is named.
func TestGaps(t *testing.T) {
	s := newServer(t)
	s.add(life)
	a := askerOf(t, s, "")
	answer := func(a journal.Answer) Source {
		return Source{Name: "s", Ask: func(context.Context, journal.Query) (journal.Answer, error) { return a, nil }}
	}
	for want, from := range map[string]Source{
		"the journal of scheduler (s) begins at 2026-11-25T12:00:09Z: older decisions were dropped": answer(journal.Answer{
			By: "scheduler", Since: at(9000), First: 9, Last: 20}),
		"the journal of scheduler (s) begins at 2026-11-25T12:00:09Z, when it started": answer(journal.Answer{
			By: "scheduler", Since: at(9000)}),
		"the journal of scheduler (s) lacks 3 decisions: its disk was full": answer(journal.Answer{
			By: "scheduler", Missing: 3}),
		"the journal of scheduler (s) has 1 decision in memory only: its disk": answer(journal.Answer{
			By: "scheduler", Waiting: 1}),
		"the journal of scheduler (s) has 1 damaged line": answer(journal.Answer{By: "scheduler", Damaged: 1}),
		"Not seen: the journal /none":                     FileSource("/none"),
	} {
		a.Sources = []Source{from}
		_, got := storyOf(t, a, "web")
		if text := string(got.Table()); !strings.Contains(text, want) {
			t.Errorf("%q is not in\n%s", want, text)
		}
	}
	a.Sources = []Source{answer(journal.Answer{By: "scheduler", Since: at(500), First: 2})}
	if _, got := storyOf(t, a, "web"); strings.Contains(strings.Join(got.Notes, ""), "begins at") {
		t.Errorf("nothing is missing: %v", got.Notes)
	}
}

func TestBadAddresses(t *testing.T) {
	a := askerOf(t, newServer(t), "")
	for _, address := range []string{"http://s:10259", "https://", "https://s:1/metrics", "https://%zz"} {
		if _, err := URLSource(address, a.Client.RESTConfig(), ""); err == nil {
			t.Errorf("%s is taken", address)
		}
	}
}
