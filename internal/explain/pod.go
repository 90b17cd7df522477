package explain

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"

	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler"
	"github.com/plimsoll-dev/plimsoll/internal/journal"
	"github.com/plimsoll-dev/plimsoll/internal/kube"
	"github.com/plimsoll-dev/plimsoll/internal/kube/translate"
)

// Pod is the answer about one pod.
type Pod struct {
	Pod   string `json:"pod"`
	Found bool   `json:"found"` // the API has it

	Phase     string     `json:"phase,omitempty"`
	Reason    string     `json:"reason,omitempty"`  // status.reason, such as Evicted
	Message   string     `json:"message,omitempty"` // status.message
	Scheduler string     `json:"scheduler,omitempty"`
	Created   time.Time  `json:"created,omitzero"`
	Deleting  *time.Time `json:"deleting,omitempty"` // when its deletion was requested
	// Conditions are those that are not as they are for a pod that runs.
	Conditions []Condition `json:"conditions,omitempty"`
	Containers []Container `json:"containers,omitempty"`
	// Verdict is what the core says, if the pod waits for a node; From as in Waiting.
	Verdict *Verdict `json:"verdict,omitempty"`
	From    string   `json:"from,omitempty"`
	Events  []Event  `json:"events,omitempty"` // the newest, the oldest of these first
	// Story is what status, Events and journals say, in order.
	Story []Moment `json:"story"`

	Journal          // what the node's agent recorded; the node is where the pod is
	Notes   []string `json:"notes,omitempty"`
	Unseen  []Unseen `json:"unseen,omitempty"`
}

// Condition is a condition of a pod or a node.
type Condition struct {
	Type    string    `json:"type"`
	Status  string    `json:"status"`
	Since   time.Time `json:"since,omitzero"`
	Reason  string    `json:"reason,omitempty"`
	Message string    `json:"message,omitempty"`
}

// Container is a container of a pod.
type Container struct {
	Name     string `json:"name"`
	State    string `json:"state"`
	Last     string `json:"last,omitempty"` // how it ended last
	Restarts int32  `json:"restarts"`
	Ready    bool   `json:"ready"`
}

// Event is an Event about the pod.
type Event struct {
	Time    time.Time `json:"time"` // of the last one
	Type    string    `json:"type"`
	Reason  string    `json:"reason"`
	Source  string    `json:"source"`
	Count   int32     `json:"count"`
	Message string    `json:"message"`
}

// eventsMax is how many Events are printed at most (chosen: a screen).
const eventsMax = 10

// Pod asks what became of a pod. node is where the pod was, if it is not in the API any more; empty: not known.
func (a *Asker) Pod(ctx context.Context, namespace, name, node string) (*Pod, error) {
	out := &Pod{Pod: namespace + "/" + name, Journal: noJournal(node)}
	object := &corev1.Pod{}
	err := a.Client.Get(ctx, kube.Pods, namespace, name, object)
	if err != nil && !apierrors.IsNotFound(err) {
		return nil, fmt.Errorf("explain pod %s: %w", out.Pod, withRole(err))
	}
	out.Events, err = a.events(ctx, namespace, name, object.UID)
	if err != nil {
		out.Unseen = append(out.Unseen, Unseen{What: "events", Error: err.Error(), Effect: "Events are not shown"})
	}
	if out.Found = object.UID != ""; out.Found {
		out.describe(object)
	}
	of := pod{namespace: namespace, name: name, uid: string(object.UID)}
	asked := a.askSources(ctx, journal.Query{Namespace: namespace, Name: name, UID: of.uid}, out.Created)
	s := &story{has: map[journal.Kind]bool{}, runs: map[string]bool{}}
	asked.addTo(s, of)
	if !out.Found {
		out.Node = cmp.Or(out.Node, asked.lastNode())
		if out.Node == "" && len(out.Events)+len(s.moments) == 0 {
			return nil, a.noSuchPod(ctx, namespace, name)
		}
	}
	if err := a.addJournal(ctx, out, of, node != "" && len(s.moments) == 0); err != nil {
		return nil, err
	}
	s.records("agent on "+out.Node, of, out.Records)
	if out.Found && out.Node == "" && object.DeletionTimestamp == nil && object.Status.Phase == corev1.PodPending {
		if err := a.addVerdict(ctx, out, object); err != nil {
			return nil, err
		}
	}
	if out.Found {
		s.status(object)
	}
	s.events(out.Events)
	a.finish(ctx, out, s, &asked)
	return out, nil
}

// finish adds what was decided about the pod's node, and completes the story.
func (a *Asker) finish(ctx context.Context, out *Pod, s *story, asked *answers) {
	if out.Node != "" {
		since, until := out.Created, time.Time{}
		if told := s.told(); !out.Found && len(told) > 0 {
			since, until = told[0].Time, told[len(told)-1].Time
		}
		asked.addNode(ctx, s, out.Node, since, until)
	}
	out.Story = s.told()
	out.Notes = append(append(out.Notes, asked.notes...), asked.notAsked()...)
	out.Unseen = append(out.Unseen, asked.unseen...)
	uids := map[string]bool{}
	for i := range out.Story {
		if uid := out.Story[i].UID; uid != "" {
			uids[uid] = true
		}
	}
	if len(uids) > 1 {
		out.Notes = append(out.Notes, fmt.Sprintf("the journals know %d pods of that name, one after another", len(uids)))
	}
}

// describe says what the pod's status says.
func (p *Pod) describe(pod *corev1.Pod) {
	p.Phase = string(pod.Status.Phase)
	p.Reason = pod.Status.Reason
	p.Message = pod.Status.Message
	p.Scheduler = pod.Spec.SchedulerName
	p.Created = pod.CreationTimestamp.Time
	p.Node = cmp.Or(p.Node, pod.Spec.NodeName)
	if t := pod.DeletionTimestamp; t != nil {
		p.Deleting = &t.Time
	}
	for _, c := range pod.Status.Conditions {
		// DisruptionTarget and the conditions of a resize are bad news if they are true
		fine := c.Status == corev1.ConditionTrue && c.Type != corev1.DisruptionTarget &&
			!strings.HasPrefix(string(c.Type), "PodResize")
		ended := pod.Status.Phase == corev1.PodSucceeded && c.Reason == "PodCompleted"
		if !fine && !ended {
			p.Conditions = append(p.Conditions, Condition{Type: string(c.Type), Status: string(c.Status),
				Since: c.LastTransitionTime.Time, Reason: c.Reason, Message: c.Message})
		}
	}
	for _, list := range [][]corev1.ContainerStatus{pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses} {
		for i := range list {
			c := &list[i]
			p.Containers = append(p.Containers, Container{
				Name:     c.Name,
				State:    cmp.Or(stateText(c.State), "not started"),
				Last:     stateText(c.LastTerminationState),
				Restarts: c.RestartCount,
				Ready:    c.Ready,
			})
		}
	}
}

// stateText puts a container's state into words; empty: it has none.
func stateText(s corev1.ContainerState) string {
	because := func(reason, message string) string {
		text := cmp.Or(reason, "no reason given")
		if message = strings.TrimSpace(message); message != "" {
			text += ": " + message
		}
		return text
	}
	switch {
	case s.Waiting != nil:
		return "waits: " + because(s.Waiting.Reason, s.Waiting.Message)
	case s.Running != nil:
		return "runs since " + timeText(s.Running.StartedAt.Time)
	case s.Terminated != nil:
		t := s.Terminated
		text := fmt.Sprintf("ended at %s, exit code %d", timeText(t.FinishedAt.Time), t.ExitCode)
		if t.Signal != 0 {
			text += fmt.Sprintf(", signal %d", t.Signal)
		}
		return text + ", " + because(t.Reason, t.Message)
	}
	return ""
}

// events returns the newest Events about a pod. uid is empty if the API does not have it any more; then only its name
// tells which it is.
func (a *Asker) events(ctx context.Context, namespace, name string, uid types.UID) (out []Event, err error) {
	of := fields.Set{"involvedObject.kind": "Pod", "involvedObject.namespace": namespace, "involvedObject.name": name}
	if uid != "" {
		of["involvedObject.uid"] = string(uid)
	}
	list := &corev1.EventList{}
	o := metav1.ListOptions{FieldSelector: of.AsSelector().String()}
	if err := a.Client.List(ctx, kube.Events, namespace, o, list); err != nil {
		return nil, fmt.Errorf("list events: %w", err)
	}
	for i := range list.Items {
		out = append(out, eventOf(&list.Items[i]))
	}
	slices.SortStableFunc(out, func(a, b Event) int { return a.Time.Compare(b.Time) })
	return out[max(0, len(out)-eventsMax):], nil
}

// addJournal adds what the node's agent recorded about the pod. If it is required, its absence is an error.
func (a *Asker) addJournal(ctx context.Context, out *Pod, of pod, required bool) error {
	if out.Node == "" {
		return nil
	}
	if out.Found && !required {
		node := &corev1.Node{}
		if err := a.Client.Get(ctx, kube.Nodes, "", out.Node, node); err != nil {
			out.Unseen = append(out.Unseen, Unseen{What: "node " + out.Node, Error: err.Error(), Effect: journalUnseen})
			return nil
		} else if !translate.OurAgent(node) {
			out.Notes = append(out.Notes, fmt.Sprintf("node %s is run by a kubelet, which keeps no journal: what it did is "+
				"told as far as Events and status say it", out.Node))
			return nil
		}
	}
	found, err := askJournal(ctx, a.Client, journalQuestion{namespace: of.namespace, pod: of.name, uid: of.uid,
		node: out.Node, newest: a.Newest})
	switch {
	case err == nil:
		out.Journal = found
		out.Notes = append(out.Notes, gaps("the agent on "+out.Node, found.all, out.Created)...)
	case required && len(out.Events) == 0:
		return err
	default:
		out.Unseen = append(out.Unseen, Unseen{What: "the journal of node " + out.Node, Error: err.Error(),
			Effect: journalUnseen})
	}
	return nil
}

const journalUnseen = "evictions are shown as far as Events and the status say"

// addVerdict adds what the core says about a waiting pod.
func (a *Asker) addVerdict(ctx context.Context, out *Pod, pod *corev1.Pod) error {
	told, err := a.askWatcher(ctx, askedQuestion{pod: pod.UID})
	if err != nil {
		out.Unseen = append(out.Unseen, Unseen{What: "the cluster", Error: err.Error(),
			Effect: "what nodes say about the pod is not known"})
		return nil
	}
	if told.Pod == nil {
		return errors.New("explain pod " + out.Pod + ": it has changed while the cluster was read: ask again")
	}
	out.From, out.Verdict = told.Pod.From, told.Pod.Verdict
	out.Notes = append(out.Notes, told.Pod.Notes...)
	out.Unseen = append(out.Unseen, told.Pod.Unseen...)
	return nil
}

// pod says what the core says about one waiting pod; nil: it does not wait.
func (s *snapshot) pod(uid types.UID) *podVerdict {
	p := s.waiting[scheduler.PodID(uid)]
	if p == nil {
		return nil
	}
	out := &podVerdict{Verdict: &Verdict{NotJudged: s.notJudged(&p.fact)}}
	if out.Verdict.NotJudged == "" {
		answer := s.world.Ask(p.fact)
		*out.Verdict = verdictOf(&answer)
	}
	out.Notes = s.notes(map[scheduler.PodID]*waitingPod{p.fact.ID: p})
	out.Unseen = s.unseen
	return out
}

// Table returns the answer for people.
func (p *Pod) Table() []byte {
	var out bytes.Buffer
	switch {
	case !p.Found:
		fmt.Fprintf(&out, "Pod %s is not in the API any more.\n", p.Pod)
	case p.Node == "":
		fmt.Fprintf(&out, "Pod %s waits for a node since %s; its scheduler is %s.\n", p.Pod, timeText(p.Created), p.Scheduler)
	default:
		fmt.Fprintf(&out, "Pod %s is on node %s: %s.\n", p.Pod, p.Node,
			strings.Join(slices.DeleteFunc([]string{p.Phase, p.Reason}, func(s string) bool { return s == "" }), ", "))
	}
	if p.Message != "" {
		fmt.Fprintf(&out, "  %s\n", oneLine(p.Message))
	}
	if p.Deleting != nil {
		fmt.Fprintf(&out, "Its deletion was requested; it must have ended by %s.\n", timeText(*p.Deleting))
	}
	if p.Verdict != nil {
		unspoken := 0 // pods
		if !slices.ContainsFunc(p.Conditions, func(c Condition) bool { return c.Type == string(corev1.PodScheduled) }) {
			unspoken = 1
		}
		p.Verdict.write(&out, unspoken, 1)
	}
	writeConditions(&out, p.Conditions)
	if len(p.Containers) > 0 {
		table := newTable(&out)
		fmt.Fprintln(table, "\nCONTAINER\tREADY\tRESTARTS\tSTATE")
		for _, c := range p.Containers {
			fmt.Fprintf(table, "%s\t%v\t%d\t%s\n", c.Name, c.Ready, c.Restarts, oneLine(c.State))
			if c.Last != "" {
				fmt.Fprintf(table, "\t\t\tbefore: %s\n", oneLine(c.Last))
			}
		}
		table.Flush()
	}
	writeStory(&out, p.Story)
	p.writeRecords(&out)
	writeUnseen(&out, p.Notes, p.Unseen)
	return out.Bytes()
}

func writeConditions(out *bytes.Buffer, list []Condition) {
	if len(list) == 0 {
		return
	}
	table := newTable(out)
	fmt.Fprintln(table, "\nCONDITION\tSTATUS\tSINCE\tREASON\tMESSAGE")
	for _, c := range list {
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\n", c.Type, c.Status, timeText(c.Since), c.Reason,
			oneLine(c.Message))
	}
	table.Flush()
}
