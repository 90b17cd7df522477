package console

import (
	"encoding/json"
	"fmt"
	"net/http"
	"time"

	"github.com/plimsoll-dev/plimsoll/internal/explain"
)

// stream is one page that is open.
type stream struct {
	id   string
	news chan struct{} // has a value when there may be something to send

	// guarded by hub.mu
	looks look
	asked uint64 // the version when looks changed, or what they show
	// podWaits says that the pod that is shown waits, so that what is said about it may change without it.
	podWaits bool
}

// look is what a page shows besides the list of nodes. At most one of them is set.
type look struct {
	Node string `json:"node,omitempty"`
	Pod  string `json:"pod,omitempty"` // namespace/name
}

// Bounds of streams. Chosen: a browser opens six connections to a server; a comment keeps a tunnel open, and finds out
// that a page has gone; a story is as old as a person's patience at most.
const (
	streamsMax = 32
	aliveTime  = 15 * time.Second
	againTime  = 5 * time.Second
	sendTime   = 30 * time.Second
)

// message is what a page gets. What is nil has not changed.
type message struct {
	Stream  string            `json:"stream,omitempty"` // first message only: for POST /look
	Health  *Health           `json:"health,omitempty"`
	Rows    []json.RawMessage `json:"rows,omitempty"`
	Gone    []string          `json:"gone,omitempty"`
	Waiting *explain.Waiting  `json:"waiting,omitempty"`
	Node    *NodeView         `json:"node,omitempty"`
	Pod     *PodView          `json:"pod,omitempty"`
}

// events is a stream of server-sent events.
func (h *hub) events(w http.ResponseWriter, r *http.Request) {
	s := &stream{id: newGuard("").token, news: make(chan struct{}, 1)}
	h.mu.Lock()
	full := len(h.streams) >= streamsMax
	if !full {
		h.streams[s] = true
	}
	h.mu.Unlock()
	if full {
		http.Error(w, fmt.Sprintf("%d pages are open: close some", streamsMax), http.StatusServiceUnavailable)
		return
	}
	defer func() {
		h.mu.Lock()
		delete(h.streams, s)
		h.mu.Unlock()
	}()
	h.want()
	w.Header().Set("Content-Type", "text/event-stream")
	out := sender{w: w, control: http.NewResponseController(w)}
	var sent uint64
	m := message{Stream: s.id}
	alive, again := time.NewTicker(aliveTime), time.NewTicker(againTime)
	defer alive.Stop()
	defer again.Stop()
	for {
		var now uint64
		if now = h.fill(r, s, &m, sent); m.empty() {
			sent = now
		} else if out.send(&m) == nil {
			sent = now
		} else {
			return
		}
		m = message{}
		select {
		case <-r.Context().Done():
			return
		case <-s.news:
		case <-again.C:
			h.askAgain(s)
		case <-alive.C:
			if out.comment() != nil {
				return
			}
		}
	}
}

func (m *message) empty() bool {
	return m.Stream == "" && m.Health == nil && len(m.Rows)+len(m.Gone) == 0 && m.Waiting == nil && m.Node == nil &&
		m.Pod == nil
}

// askAgain has the story of the pod that a page shows told again: Events and journals are not watched.
func (h *hub) askAgain(s *stream) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if s.looks.Pod != "" {
		h.version++
		s.asked = h.version
	}
}

// fill adds to m what has changed since a version, and returns the version up to which it did.
func (h *hub) fill(r *http.Request, s *stream, m *message, sent uint64) (now uint64) {
	h.mu.Lock()
	now = h.version
	if h.health.version > sent {
		health := h.health.value
		m.Health = &health
	}
	m.Rows, m.Gone = h.rowsSince(sent)
	if sent == 0 {
		m.Gone = nil
	}
	if h.waiting.value != nil && h.waiting.version > sent {
		m.Waiting = h.waiting.value
	}
	looks, asked := s.looks, s.asked
	h.mu.Unlock()
	switch {
	case looks.Node != "":
		m.Node = h.nodeView(looks.Node, sent, asked)
	case looks.Pod != "" && asked > sent:
		m.Pod = h.podView(r.Context(), looks.Pod)
		h.mu.Lock()
		s.podWaits = m.Pod.About != nil && m.Pod.About.Verdict != nil
		h.mu.Unlock()
	}
	return now
}

// sender writes events.
type sender struct {
	w       http.ResponseWriter
	control *http.ResponseController
}

func (s *sender) send(m *message) error {
	text, err := json.Marshal(m)
	if err != nil {
		return err
	}
	return s.write("data: ", string(text), "\n\n") // JSON has no line breaks
}

func (s *sender) comment() error { return s.write(":\n\n") }

func (s *sender) write(parts ...string) error {
	if err := s.control.SetWriteDeadline(time.Now().Add(sendTime)); err != nil {
		return err
	}
	for _, part := range parts {
		if _, err := s.w.Write([]byte(part)); err != nil {
			return err
		}
	}
	return s.control.Flush()
}

// look notes what a page shows.
func (h *hub) look(w http.ResponseWriter, r *http.Request) {
	var asked struct {
		Stream string `json:"stream"`
		look
	}
	if !readJSON(w, r, &asked) {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	for s := range h.streams {
		if s.id == asked.Stream {
			h.version++
			s.looks, s.podWaits = asked.look, false
			s.asked = h.version
			if asked.Node != "" {
				h.watch(asked.Node)
			}
			select {
			case s.news <- struct{}{}:
			default:
			}
			w.WriteHeader(http.StatusNoContent)
			return
		}
	}
	http.Error(w, "there is no such stream: open it again", http.StatusGone)
}

// readJSON reads the body of a request.
func readJSON(w http.ResponseWriter, r *http.Request, into any) bool {
	d := json.NewDecoder(http.MaxBytesReader(w, r.Body, bodyBytesMax))
	if err := d.Decode(into); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return false
	}
	return true
}
