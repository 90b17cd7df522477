package explain

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/plimsoll-dev/plimsoll/internal/journal"
	"github.com/plimsoll-dev/plimsoll/internal/kube/translate"
)

// A Moment is something that happened, by one source.
type Moment struct {
	Time time.Time `json:"time"`
	From string    `json:"from"` // scheduler, lifecycle, agent on n1: their journals; API; or the source of an Event
	What string    `json:"what"`
	UID  string    `json:"uid,omitempty"` // of the pod, if the API does not have it any more
	// More is how often the same happened again after Time, the last time at Until.
	More  int        `json:"more,omitempty"`
	Until *time.Time `json:"until,omitempty"`

	exact bool   // Time has more than full seconds
	stage stage  // orders moments of one second, if not all of them are exact
	same  string // equal for what happens again; empty: it does not
	event string // the reason of an Event; empty: it is none
	run   string // runKey of the start or end of a run; empty: it is none
	text  string // the message of an Event
}

// runKey stands for the start or the end of one run of a container.
func runKey(what, container string, run int) string {
	return fmt.Sprint(what, " ", run, " ", container)
}

// stage is how far a pod has come. The API's times are full seconds, in which a pod may be created, placed and started.
type stage int

const (
	stageCreated stage = iota
	stageDecided
	stageScheduled
	stagePrepared
	stageStarted
	stageReady
	stageEnded
	stageNode
	stageLeaves
)

// story collects Moments.
type story struct {
	moments []Moment
	has     map[journal.Kind]bool // records about the pod that are in it
	preempt bool                  // a record says who preempted the pod
	runs    map[string]bool       // the starts and ends of runs that are in it, as runKey
}

// recordedEvents are the Events that the agent records about what its journal has, too.
var recordedEvents = map[string]journal.Kind{
	"Started": journal.Started,
	"Created": journal.Started,
	"Pulling": journal.Pulled,
	"Killing": journal.Stopped,
	"BackOff": journal.Ended,
}

// textLeast is how long the message of an Event must be to be looked for in records, in bytes. Chosen: shorter ones may
// be part of another text by chance.
const textLeast = 20

// recorded reports whether a record says the same as an Event.
func (s *story) recorded(m *Moment) bool {
	if kind, known := recordedEvents[m.event]; known && s.has[kind] {
		return true
	}
	if m.event == "Pulled" && s.has[journal.Pulled] && strings.HasPrefix(m.text, "Successfully pulled") {
		return true
	}
	return len(m.text) >= textLeast && slices.ContainsFunc(s.moments, func(other Moment) bool {
		return other.exact && strings.Contains(other.What, m.text)
	})
}

// add adds what the API or an Event says, in full seconds.
func (s *story) add(at time.Time, from string, of stage, format string, args ...any) {
	if !at.IsZero() {
		s.moments = append(s.moments, Moment{Time: at, From: from, What: fmt.Sprintf(format, args...), stage: of})
	}
}

// told returns all Moments in order. Of a decision that a journal has, the Event and the condition are left out.
func (s *story) told() []Moment {
	var exact, rough []Moment
	for _, m := range s.moments {
		switch {
		case m.exact:
			exact = append(exact, m)
		case m.run != "" && s.runs[m.run], m.event != "" && s.recorded(&m):
		case m.event == "Scheduled" && s.has[journal.Placed],
			m.event == "FailedScheduling" && s.has[journal.Unschedulable],
			m.event == "Preempted" && s.preempt,
			m.event == "Evicted" && s.has[journal.Eviction]:
		default:
			rough = append(rough, m)
		}
	}
	slices.SortStableFunc(exact, func(a, b Moment) int { return a.Time.Compare(b.Time) })
	slices.SortStableFunc(rough, func(a, b Moment) int {
		return cmp.Or(a.Time.Truncate(time.Second).Compare(b.Time.Truncate(time.Second)), cmp.Compare(a.stage, b.stage))
	})
	out := []Moment{}
	for len(exact)+len(rough) > 0 {
		var next Moment
		if len(exact) == 0 || len(rough) > 0 && before(&rough[0], &exact[0]) {
			next, rough = rough[0], rough[1:]
		} else {
			next, exact = exact[0], exact[1:]
		}
		last := len(out) - 1
		if last >= 0 && next.same != "" && out[last].same == next.same && out[last].From == next.From {
			out[last].More++
			out[last].Until = &next.Time
			continue
		}
		out = append(out, next)
	}
	return out
}

// before reports whether rough, which has full seconds, comes before exact.
func before(rough, exact *Moment) bool {
	second := exact.Time.Truncate(time.Second)
	if at := rough.Time.Truncate(time.Second); !at.Equal(second) {
		return at.Before(second)
	}
	return rough.stage <= exact.stage
}

// status adds what the object of the pod says.
func (s *story) status(pod *corev1.Pod) {
	fact := translate.SchedulerPod(pod)
	var requests []string
	for _, q := range fact.Requests {
		requests = append(requests, q.Resource+" "+quantity(q.Resource, q.Value))
	}
	s.add(pod.CreationTimestamp.Time, "API", stageCreated, "created: requests %s; priority %d",
		cmp.Or(strings.Join(requests, ", "), "nothing"), fact.Priority)
	for _, c := range pod.Status.Conditions {
		at := c.LastTransitionTime.Time
		switch {
		case c.Type == corev1.PodScheduled && c.Status == corev1.ConditionTrue && !s.has[journal.Placed]:
			s.add(at, "API", stageScheduled, "scheduled: on node %s", pod.Spec.NodeName)
		case c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue:
			s.add(at, "API", stageReady, "ready")
		case c.Type == corev1.DisruptionTarget && c.Status == corev1.ConditionTrue:
			s.add(at, "API", stageLeaves, "about to be ended: %s: %s", c.Reason, c.Message)
		}
	}
	for _, list := range [][]corev1.ContainerStatus{pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses} {
		for i := range list {
			s.container(&list[i])
		}
	}
	if t := pod.DeletionTimestamp; t != nil {
		grace := int64(0)
		if pod.DeletionGracePeriodSeconds != nil {
			grace = *pod.DeletionGracePeriodSeconds
		}
		s.add(t.Add(-time.Duration(grace)*time.Second), "API", stageLeaves, "its deletion was requested, with %d s to end",
			grace)
	}
}

// container adds what the status of a container says: its present run and the one before.
func (s *story) container(c *corev1.ContainerStatus) {
	runs := func(at time.Time, what string, run int32, of stage, text string) {
		before := len(s.moments)
		s.add(at, "API", of, "%s", text)
		for i := range s.moments[before:] {
			s.moments[before+i].run = runKey(what, c.Name, int(run))
		}
	}
	starts := func(at time.Time, run int32, of stage) {
		runs(at, "start", run, of, fmt.Sprintf("container %s starts (run %d)", c.Name, run))
	}
	ended := func(t *corev1.ContainerStateTerminated, run int32, begins, ends stage) {
		starts(t.StartedAt.Time, run, begins)
		text := fmt.Sprintf("container %s ends: exit code %d", c.Name, t.ExitCode)
		if t.Signal != 0 {
			text += fmt.Sprintf(", signal %d", t.Signal)
		}
		if t.Reason != "" {
			text += ", " + t.Reason
		}
		if t.Message != "" {
			text += ": " + t.Message
		}
		runs(t.FinishedAt.Time, "end", run, ends, text)
	}
	if t := c.LastTerminationState.Terminated; t != nil {
		run := c.RestartCount
		if c.State.Waiting != nil { // the next run has not begun
			run++
		}
		ended(t, run, stageScheduled, stagePrepared) // before the next run, if that began in the same second
	}
	switch {
	case c.State.Running != nil:
		starts(c.State.Running.StartedAt.Time, c.RestartCount+1, stageStarted)
	case c.State.Terminated != nil:
		ended(c.State.Terminated, c.RestartCount+1, stageStarted, stageEnded)
	}
}

// events adds Events.
func (s *story) events(list []Event) {
	for _, e := range list {
		m := Moment{
			Time:  e.Time,
			From:  cmp.Or(e.Source, "Event"),
			What:  e.Reason + ": " + e.Message,
			stage: stagePrepared,
			event: e.Reason,
			text:  e.Message,
		}
		if e.Count > 1 {
			m.What += fmt.Sprintf(" (%d times)", e.Count)
		}
		switch e.Reason {
		case "FailedScheduling":
			m.stage = stageDecided
		case "Scheduled":
			m.stage = stageScheduled
		case "Evicted", "Preempted", "Killing", "TaintManagerEviction":
			m.stage = stageLeaves
		case "Started":
			m.stage = stageStarted
		case "BackOff", "Unhealthy":
			m.stage = stageEnded
		}
		s.moments = append(s.moments, m)
	}
}

// records adds what a journal has about a pod, or about its node.
func (s *story) records(from string, of pod, list []journal.Record) {
	for _, r := range list {
		m := Moment{Time: r.Time, From: from, What: r.Text, exact: true, stage: stageNode, UID: of.uidOf(r)}
		switch r.Kind {
		case journal.Intent:
			continue // the record of the eviction follows it
		case journal.Eviction:
			m.stage = stageLeaves
			m.What = of.evicted(r)
		case journal.Placed:
			m.stage = stageDecided
		case journal.Failed:
			if m.stage = stageDecided; r.By == "" {
				m.stage = stageStarted
			}
		case journal.Admitted, journal.Pulled:
			m.stage = stagePrepared
		case journal.Started, journal.Ended:
			s.ran(r)
			if m.stage = stageStarted; r.Kind == journal.Ended {
				m.stage = stageEnded
			}
		case journal.Probed, journal.OutOfMemory:
			m.stage = stageReady
		case journal.Stopped:
			m.stage = stageLeaves
		case journal.Preempted:
			m.stage = stageLeaves
			if len(r.Pods) > 0 && !of.is(r.Pods[0]) {
				m.stage = stagePrepared
				m.What = r.Pods[0].Namespace + "/" + r.Pods[0].Name + " " + r.Text
			}
		case journal.Unschedulable:
			m.stage = stageDecided
			if len(r.Pods) > 0 && !of.is(r.Pods[0]) {
				m.stage = stageLeaves
				m.What = preempted(r)
				s.preempt = true
				break
			}
			m.same = whyOf(r)
		}
		s.has[r.Kind] = true
		s.moments = append(s.moments, m)
	}
}

// ran notes that a record has the start or the end of a run.
func (s *story) ran(r journal.Record) {
	var d journal.Start // an End has these two as well
	if json.Unmarshal(r.Detail, &d) == nil {
		s.runs[runKey(string(r.Kind), d.Container, d.Run)] = true
	}
}

// pod is the pod that a story is about; without a name, it is about a node.
type pod struct {
	namespace, name string
	uid             string // empty: the API does not have it
}

func (p pod) is(other journal.Pod) bool {
	return other.Namespace == p.namespace && other.Name == p.name && (p.uid == "" || other.UID == p.uid)
}

// uidOf returns the UID of the pod of that name in a record, if the API does not have it.
func (p pod) uidOf(r journal.Record) string {
	if p.uid != "" || p.name == "" {
		return ""
	}
	for _, of := range r.Pods {
		if p.is(of) {
			return of.UID
		}
	}
	return ""
}

// evicted says what a decision of an agent was about the pod.
func (p pod) evicted(r journal.Record) string {
	for _, of := range r.Pods {
		if p.is(of) && of.Message != "" {
			return "evicted: " + of.Message + " (" + r.Text + ")"
		}
	}
	return r.Text
}

// preempted says for whom a pod was preempted.
func preempted(r journal.Record) string {
	var d journal.Refusal
	if json.Unmarshal(r.Detail, &d) != nil {
		return "preempted for " + r.Pods[0].Namespace + "/" + r.Pods[0].Name
	}
	text := fmt.Sprintf("preempted on %s for %s/%s of priority %d: %s", d.Node, r.Pods[0].Namespace, r.Pods[0].Name,
		d.Priority, d.Why)
	if len(d.Victims) > 1 {
		text += fmt.Sprintf(" (one of %d)", len(d.Victims))
	}
	return text
}

// whyOf returns why a pod fits nowhere, for a pod that preempts nobody.
func whyOf(r journal.Record) string {
	var d journal.Refusal
	if json.Unmarshal(r.Detail, &d) != nil || len(d.Victims) > 0 {
		return ""
	}
	return d.Why
}

// gaps returns what of a journal is missing. since is from when on decisions are wanted; zero: not known.
func gaps(from string, a journal.Answer, since time.Time) (out []string) {
	switch {
	case a.Since.IsZero() || !since.IsZero() && !a.Since.After(since.Add(time.Second)): // the API has full seconds
	case a.First > 1:
		out = append(out, fmt.Sprintf("the journal of %s begins at %s: older decisions were dropped", from,
			timeText(a.Since)))
	default:
		out = append(out, fmt.Sprintf("the journal of %s begins at %s, when it started: what was decided before is not in it",
			from, timeText(a.Since)))
	}
	if a.Missing > 0 {
		out = append(out, fmt.Sprintf("the journal of %s lacks %s: its disk was full, too slow or failed", from,
			countOf(int(a.Missing), "decision", "decisions")))
	}
	if a.Waiting > 0 {
		out = append(out, fmt.Sprintf("the journal of %s has %s in memory only: its disk cannot be written now", from,
			countOf(int(a.Waiting), "decision", "decisions")))
	}
	if a.Damaged > 0 {
		out = append(out, fmt.Sprintf("the journal of %s has %s", from,
			countOf(a.Damaged, "damaged line", "damaged lines")))
	}
	return out
}

// answers are what the sources answered, by whose journal it is.
type answers struct {
	by     map[string][]answered
	notes  []string
	unseen []Unseen
}

type answered struct {
	journal.Answer
	from Source
}

// askSources asks every source.
func (a *Asker) askSources(ctx context.Context, q journal.Query, since time.Time) answers {
	out := answers{by: map[string][]answered{}}
	for _, from := range a.Sources {
		found, err := from.Ask(ctx, q)
		if err != nil {
			out.unseen = append(out.unseen, Unseen{What: "the journal " + from.Name, Error: err.Error(),
				Effect: "what it would say is missing"})
			continue
		}
		by := cmp.Or(found.By, "agent")
		out.by[by] = append(out.by[by], answered{found, from})
		out.notes = append(out.notes, gaps(fmt.Sprintf("%s (%s)", by, from.Name), found, since)...)
	}
	return out
}

// addTo adds the records about a pod to s.
func (a *answers) addTo(s *story, of pod) {
	for _, by := range slices.Sorted(maps.Keys(a.by)) {
		for _, found := range a.by[by] {
			s.records(by, of, found.Records)
		}
	}
}

// lastNode returns the node on which the pod was placed last; empty: not known.
func (a *answers) lastNode() (node string) {
	var at time.Time
	for _, found := range a.by["scheduler"] {
		for _, r := range found.Records {
			if r.Kind == journal.Placed && r.Time.After(at) {
				at, node = r.Time, r.Node
			}
		}
	}
	return node
}

// addNode adds what the lifecycle controller decided about the node of a pod between two times; until may be zero.
func (a *answers) addNode(ctx context.Context, s *story, node string, since, until time.Time) {
	for _, found := range a.by["lifecycle"] {
		about, err := found.from.Ask(ctx, journal.Query{Node: node})
		if err != nil {
			a.unseen = append(a.unseen, Unseen{What: "the journal " + found.from.Name, Error: err.Error(),
				Effect: "what it would say of the node is missing"})
			continue
		}
		var list []journal.Record
		for _, r := range about.Records {
			if len(r.Pods) == 0 && r.Node == node && !r.Time.Before(since) && (until.IsZero() || !r.Time.After(until)) {
				list = append(list, r)
			}
		}
		s.records("lifecycle", pod{}, list)
	}
}

// notAsked says of which parts no journal was asked.
func (a *answers) notAsked() []string {
	var parts []string
	for by, name := range map[string]string{"scheduler": "the scheduler", "lifecycle": "the lifecycle controller"} {
		if len(a.by[by]) == 0 {
			parts = append(parts, name)
		}
	}
	if len(parts) == 0 {
		return nil
	}
	slices.Sort(parts)
	return []string{fmt.Sprintf("no journal of %s was read: what was decided there is told as far as Events and status "+
		"say it (--journal names one; upstream's parts keep none)", strings.Join(parts, " and of "))}
}

// storyMax is how many Moments are printed at most (chosen: a long screen). Programs get all.
const storyMax = 50

// writeStory prints Moments.
func writeStory(out *bytes.Buffer, list []Moment) {
	if len(list) == 0 {
		return
	}
	table := newTable(out)
	fmt.Fprintln(table, "\nTIME\tFROM\tWHAT")
	if left := len(list) - storyMax; left > 0 {
		fmt.Fprintf(table, "\t\t(%d earlier ones are left out; -o json has them)\n", left)
		list = list[left:]
	}
	for i := range list {
		m := &list[i]
		at := timeText(m.Time)
		if m.exact {
			at = m.Time.UTC().Format("2006-01-02T15:04:05.000Z07:00")
		}
		what := oneLine(m.What)
		if m.More > 0 {
			what += fmt.Sprintf(" (and %d times more, until %s)", m.More, timeText(*m.Until))
		}
		fmt.Fprintf(table, "%s\t%s\t%s\n", at, oneLine(m.From), what)
	}
	table.Flush()
}
