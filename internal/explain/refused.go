package explain

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"

	"github.com/plimsoll-dev/plimsoll/internal/kube"
)

// Refused is an owner whose pods the API server does not accept, by a quota or another rule. Such pods do not exist:
// only Events of their owner tell about them, for as long as the API keeps Events (an hour).
type Refused struct {
	Owner   string    `json:"owner"` // kind and NAMESPACE/NAME
	Count   int32     `json:"count"` // how often
	Last    time.Time `json:"last"`
	Message string    `json:"message"` // of the last time

	namespace, name string
}

// refused returns the owners in a namespace whose last attempt to create a pod failed; all namespaces if it is empty.
func (a *Asker) refused(ctx context.Context, namespace string) ([]Refused, error) {
	last := map[string]*Refused{}
	err := a.creations(ctx, namespace, "FailedCreate", func(r Refused) {
		if of := last[r.Owner]; of != nil {
			r.Count += of.Count
			if of.Last.After(r.Last) {
				r.Last, r.Message = of.Last, of.Message
			}
		}
		last[r.Owner] = &r
	})
	if err == nil && len(last) > 0 {
		err = a.creations(ctx, namespace, "SuccessfulCreate", func(r Refused) {
			if of := last[r.Owner]; of != nil && !of.Last.After(r.Last) {
				delete(last, r.Owner)
			}
		})
	}
	out := []Refused{}
	for _, r := range last {
		out = append(out, *r)
	}
	slices.SortFunc(out, func(a, b Refused) int { return strings.Compare(a.Owner, b.Owner) })
	return out, err
}

// creations visits the Events of owners with a reason.
func (a *Asker) creations(ctx context.Context, namespace, reason string, visit func(Refused)) error {
	list := &corev1.EventList{}
	o := metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("reason", reason).String()}
	if err := a.Client.List(ctx, kube.Events, namespace, o, list); err != nil {
		return fmt.Errorf("list events: %w", err)
	}
	for i := range list.Items {
		e := &list.Items[i]
		of := e.InvolvedObject
		one := eventOf(e)
		visit(Refused{
			Owner:     of.Kind + " " + of.Namespace + "/" + of.Name,
			Count:     one.Count,
			Last:      one.Time,
			Message:   one.Message,
			namespace: of.Namespace,
			name:      of.Name,
		})
	}
	return nil
}

// eventOf returns what is told of an Event.
func eventOf(e *corev1.Event) Event {
	last := e.LastTimestamp.Time
	count := max(e.Count, 1)
	if e.Series != nil {
		last, count = e.Series.LastObservedTime.Time, e.Series.Count
	}
	if last.IsZero() {
		last = e.EventTime.Time
	}
	return Event{
		Time:    last,
		Type:    e.Type,
		Reason:  e.Reason,
		Source:  cmp.Or(e.ReportingController, e.Source.Component),
		Count:   count,
		Message: e.Message,
	}
}

// ownsName reports whether name may be that of a pod of the owner, or of what owns the owner: a Deployment owns
// ReplicaSets NAME-HASH.
func (r *Refused) ownsName(name string) bool {
	return r.name == name || strings.HasPrefix(name, r.name+"-") || strings.HasPrefix(r.name, name+"-")
}

// noSuchPod is the error about a pod of which nothing is known.
func (a *Asker) noSuchPod(ctx context.Context, namespace, name string) error {
	refused, err := a.refused(ctx, namespace)
	for i := range refused {
		if r := &refused[i]; err == nil && r.ownsName(name) {
			return fmt.Errorf("explain pod %s/%s: the API has no such pod: %s", namespace, name, r.text())
		}
	}
	return fmt.Errorf("explain pod %s/%s: the API has no such pod, and no Event or journal about one; "+
		"check the namespace, or name the node where it was: --node", namespace, name)
}

func (r *Refused) text() string {
	return fmt.Sprintf("%s cannot create pods (%s, last at %s): %s", r.Owner, countOf(int(r.Count), "attempt", "attempts"),
		timeText(r.Last), oneLine(r.Message))
}

func writeRefused(out *bytes.Buffer, list []Refused) {
	for i := range list {
		fmt.Fprintf(out, "\n%s\n", list[i].text())
	}
}
