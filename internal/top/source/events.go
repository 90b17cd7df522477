package source

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/plimsoll-dev/plimsoll/internal/kube"
	"github.com/plimsoll-dev/plimsoll/internal/top"
)

// decisionsMax is how many decisions are kept of each source (chosen: some screens).
const decisionsMax = 200

// ring has the newest decisions of Events, by their UID: an Event is written again when it happens again.
type ring struct {
	by map[types.UID]top.Decision
}

// add adds a decision. When there are twice as many as are kept, the older half goes: each costs little.
func (r *ring) add(uid types.UID, d top.Decision) {
	if r.by == nil {
		r.by = map[types.UID]top.Decision{}
	}
	r.by[uid] = d
	if len(r.by) < 2*decisionsMax {
		return
	}
	all := r.sorted()
	oldest := all[len(all)-decisionsMax].Time
	for uid, d := range r.by {
		if d.Time.Before(oldest) {
			delete(r.by, uid)
		}
	}
	if len(r.by) >= 2*decisionsMax { // all of the same time
		clear(r.by)
	}
}

// sorted returns the decisions, the newest last.
func (r *ring) sorted() []top.Decision {
	out := make([]top.Decision, 0, len(r.by))
	for _, d := range r.by {
		out = append(out, d)
	}
	slices.SortFunc(out, byTime)
	return out
}

func byTime(a, b top.Decision) int {
	return cmp.Or(a.Time.Compare(b.Time), cmp.Compare(a.About, b.About), cmp.Compare(a.Text, b.Text))
}

// eventsListed is how many Events are listed before the watch begins (chosen: all that a small cluster has).
const eventsListed = 1000

// listEvents reads the Events, if there are few, and returns the version from which to watch. If there are many, it is
// empty: a watch without version sends what there is first, one after the other. Then they need not be in memory
// together: a large cluster has tens of thousands.
func (s *Source) listEvents(ctx context.Context) (version string, err error) {
	ctx, cancel := context.WithTimeout(ctx, 2*answerTime)
	defer cancel()
	list := &corev1.EventList{}
	if err := s.Client.List(ctx, kube.Events, "", metav1.ListOptions{Limit: eventsListed}, list); err != nil {
		return "", err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range list.Items {
		s.events.add(list.Items[i].UID, decisionOf(&list.Items[i]))
	}
	if list.Continue != "" {
		return "", nil
	}
	return list.ResourceVersion, nil
}

// watchEvents keeps the newest Events.
func (s *Source) watchEvents(ctx context.Context, version string) {
	for {
		o := metav1.ListOptions{ResourceVersion: version, AllowWatchBookmarks: true}
		w, err := s.Client.Watch(ctx, kube.Events, "", o)
		if err != nil {
			version = ""
		} else {
			for e := range w.ResultChan() {
				event, is := e.Object.(*corev1.Event)
				if !is { // an error, mostly that the version is too old
					version = ""
					continue
				}
				if version = event.ResourceVersion; e.Type == "ADDED" || e.Type == "MODIFIED" {
					s.mu.Lock()
					s.events.add(event.UID, decisionOf(event))
					s.mu.Unlock()
				}
			}
		}
		if !pause(ctx, retryTime) {
			return
		}
	}
}

func decisionOf(e *corev1.Event) top.Decision {
	last, count := e.LastTimestamp.Time, e.Count
	if e.Series != nil {
		last, count = e.Series.LastObservedTime.Time, e.Series.Count
	}
	for _, other := range []time.Time{e.EventTime.Time, e.CreationTimestamp.Time} {
		if last.IsZero() {
			last = other
		}
	}
	of := e.InvolvedObject
	out := top.Decision{
		Time: last,
		From: cmp.Or(e.ReportingController, e.Source.Component),
		Text: e.Reason + ": " + e.Message,
		Bad:  e.Type == corev1.EventTypeWarning,
	}
	switch {
	case of.Kind == "Pod":
		out.About, out.Pod = of.Namespace+"/"+of.Name, true
	case of.Kind == "Node":
		out.About = of.Name
	case of.Namespace != "":
		out.About = of.Kind + " " + of.Namespace + "/" + of.Name
	default:
		out.About = of.Kind + " " + of.Name
	}
	if count > 1 {
		out.Text += fmt.Sprintf(" (%d times)", count)
	}
	return out
}
