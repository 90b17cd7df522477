package explain

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Path is where a component that watches the cluster (plimsoll scheduler --explain) says what the core says, to those
// who may read its journal. Parameters: uid of a waiting pod, or node; without any, it is asked about all that wait.
const Path = "/explain"

// askedQuestion is what the core is asked: about one waiting pod, a node, or all that waits.
type askedQuestion struct {
	pod  types.UID
	node *corev1.Node
}

// told is the answer to an askedQuestion: one of these. None: the pod does not wait, or there is no such node.
type told struct {
	Waiting *Waiting    `json:"waiting,omitempty"`
	Pod     *podVerdict `json:"pod,omitempty"`
	Node    *nodeJudged `json:"node,omitempty"`
}

// podVerdict is what the core says about a waiting pod.
type podVerdict struct {
	From    string   `json:"from,omitempty"` // as in Waiting
	Verdict *Verdict `json:"verdict"`
	Notes   []string `json:"notes,omitempty"`
	Unseen  []Unseen `json:"unseen,omitempty"`
}

// nodeJudged is what follows from the cluster for a node.
type nodeJudged struct {
	Judged
	Notes  []string `json:"notes,omitempty"`
	Unseen []Unseen `json:"unseen,omitempty"`
}

// answer asks the core.
func (s *snapshot) answer(q askedQuestion) (out told) {
	switch {
	case q.pod != "":
		out.Pod = s.pod(q.pod)
	case q.node != nil:
		out.Node = s.node(q.node)
	default:
		out.Waiting = s.all()
	}
	return out
}

// askWatcher asks a component that watches the cluster, or, if none answers, the cluster itself. Only about a pod the
// answer may be empty.
func (a *Asker) askWatcher(ctx context.Context, q askedQuestion) (told, error) {
	var unseen []Unseen
	for _, from := range a.Sources {
		if from.explain == nil || a.Judges || a.live != nil {
			continue
		}
		out, err := from.told(ctx, q)
		if err == nil && out != (told{}) {
			return out, nil
		}
		// A component without such answers, or that does not say them to this caller: the journal says so, too.
		var status *statusError
		if err != nil && !(errors.As(err, &status) && (status.code == http.StatusNotFound ||
			status.code == http.StatusForbidden)) {
			unseen = append(unseen, Unseen{What: "what " + from.Name + " has seen", Error: err.Error(),
				Effect: "the cluster was read, which takes longer"})
		}
	}
	s, release, err := a.look(ctx, q)
	if err != nil {
		return told{}, err
	}
	defer release()
	out := s.answer(q)
	switch {
	case len(unseen) == 0:
	case out.Waiting != nil:
		out.Waiting.Unseen = append(out.Waiting.Unseen, unseen...)
	case out.Pod != nil:
		out.Pod.Unseen = append(out.Pod.Unseen, unseen...)
	case out.Node != nil:
		out.Node.Unseen = append(out.Node.Unseen, unseen...)
	}
	return out, nil
}

// told asks a component. The answer is empty if it does not know the pod or the node.
func (s *Source) told(ctx context.Context, q askedQuestion) (out told, err error) {
	parameters := url.Values{}
	switch {
	case q.pod != "":
		parameters.Set("uid", string(q.pod))
	case q.node != nil:
		parameters.Set("node", q.node.Name)
	}
	body, err := s.explain(ctx, parameters)
	if err != nil {
		return told{}, err
	}
	if err := json.Unmarshal(body, &out); err != nil {
		return told{}, fmt.Errorf("read the answer: %w", err)
	}
	if (out.Pod != nil) != (q.pod != "") || (out.Node != nil) != (q.node != nil) ||
		(out.Waiting != nil) != (q.pod == "" && q.node == nil) || out.Pod != nil && out.Pod.Verdict == nil {
		return told{}, nil
	}
	switch {
	case out.Waiting != nil:
		out.Waiting.From = s.Name
	case out.Pod != nil:
		out.Pod.From = s.Name
	case out.Node != nil:
		out.Node.From = s.Name
	}
	return out, nil
}

// Handler answers the Askers of other processes. Before the first lists have come, it answers with status 503.
func (l *Live) Handler() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		out, behind := l.told(types.UID(r.FormValue("uid")), r.FormValue("node"))
		if behind != "" {
			http.Error(w, "not seen yet: "+behind, http.StatusServiceUnavailable)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(out) // an error means that the client is gone
	})
}

// told answers a question about a pod, a node, or all that waits. behind says which first lists have not come yet;
// empty: all have.
func (l *Live) told(pod types.UID, node string) (out told, behind string) {
	s, release := l.look(node)
	defer release()
	if l.start == nil {
		return told{}, "anything"
	}
	if behind = strings.Join(slices.Sorted(maps.Keys(l.behind)), ", "); behind != "" {
		return told{}, behind
	}
	q := askedQuestion{pod: pod}
	if node != "" {
		n := l.nodes[node]
		if n == nil {
			return told{}, ""
		}
		q = askedQuestion{node: n.Node}
	}
	return s.answer(q), ""
}
