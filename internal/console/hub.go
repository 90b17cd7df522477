package console

import (
	"context"
	"encoding/json"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/plimsoll-dev/plimsoll/internal/console/view"
	"github.com/plimsoll-dev/plimsoll/internal/explain"
	"github.com/plimsoll-dev/plimsoll/internal/version"
)

// hub turns changes of the cluster into what streams send.
type hub struct {
	ctx   context.Context // ends with the console
	asker *explain.Asker
	live  *explain.Live
	now   func() time.Time

	mu      sync.Mutex // guards what follows
	version uint64     // counts changes
	rows    map[string]rowAt
	newest  uint64 // the version of the newest row
	waiting at[*explain.Waiting]
	stale   bool // waiting is older than the cluster
	health  at[Health]
	streams map[*stream]bool
	watched map[string]*watched // nodes that somebody looks at, or did a while ago
	grounds map[string]*ground  // by node; what questions about it were answered from

	wanted chan struct{} // has a value when waiting should be computed
}

// at is a value and the version in which it changed.
type at[T any] struct {
	version uint64
	value   T
}

// rowAt is the row of a node as JSON; nil: the node is gone.
type rowAt struct {
	version uint64
	text    json.RawMessage
}

// Health is how the console's own view of the cluster is.
type Health struct {
	Server  string `json:"server"`
	Version string `json:"version"` // of this program
	// Error is why the API server does not answer; then what is shown is as old as Since.
	Error  string    `json:"error,omitempty"`
	Since  time.Time `json:"since,omitzero"`
	Behind []string  `json:"behind,omitempty"` // kinds of objects that have not been listed yet
}

func (h *Health) equal(other *Health) bool {
	return h.Error == other.Error && h.Since.Equal(other.Since) && slices.Equal(h.Behind, other.Behind)
}

func newHub(ctx context.Context, a *explain.Asker, now func() time.Time) *hub {
	return &hub{
		ctx:     ctx,
		asker:   a,
		live:    explain.NewLive(a),
		now:     now,
		rows:    map[string]rowAt{},
		stale:   true,
		streams: map[*stream]bool{},
		watched: map[string]*watched{},
		grounds: map[string]*ground{},
		wanted:  make(chan struct{}, 1),
	}
}

// run follows the cluster until ctx ends.
func (h *hub) run(ctx context.Context) error {
	var all sync.WaitGroup
	defer all.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	all.Go(func() { h.follow(ctx) })
	all.Go(func() { h.judge(ctx) })
	all.Go(func() { h.ping(ctx) })
	return h.live.Run(ctx)
}

// gatherTime is how long changes are gathered before they are sent. Chosen: far below the second in which a change is
// to be seen, and long enough that the thousand changes of a rollout are some messages.
const gatherTime = 100 * time.Millisecond

// follow turns changes into rows.
func (h *hub) follow(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-h.live.Changed():
		}
		if !sleep(ctx, gatherTime) {
			return
		}
		c := h.live.Take()
		behind := h.live.Behind()
		h.mu.Lock()
		h.version++
		for _, name := range c.Nodes {
			h.rowChanged(name)
			if w := h.watched[name]; w != nil {
				w.changed = h.version
			}
		}
		for s := range h.streams {
			if c.Pods[s.looks.Pod] {
				s.asked = h.version
			}
		}
		h.stale = h.stale || c.Waits
		h.setHealth(func(x *Health) { x.Behind = behind })
		h.wake()
		h.mu.Unlock()
		h.want()
	}
}

// rowChanged makes the row of a node anew. h.mu is locked.
func (h *hub) rowChanged(name string) {
	var text json.RawMessage
	if room, known := h.live.Room(name); known {
		text, _ = json.Marshal(view.RowOf(room)) // numbers and strings
	}
	if before, had := h.rows[name]; string(before.text) != string(text) || !had {
		h.rows[name], h.newest = rowAt{version: h.version, text: text}, h.version
	}
}

// setHealth changes the health. h.mu is locked.
func (h *hub) setHealth(change func(*Health)) {
	was := h.health.value
	change(&h.health.value)
	h.health.value.Server, h.health.value.Version = h.asker.Client.Host(), version.Plimsoll()
	if h.health.version == 0 || !was.equal(&h.health.value) {
		h.health.version = h.version
	}
}

// wake makes every stream look for what is new. h.mu is locked.
func (h *hub) wake() {
	for s := range h.streams {
		select {
		case s.news <- struct{}{}:
		default:
		}
	}
}

// want asks for the answer about waiting pods.
func (h *hub) want() {
	select {
	case h.wanted <- struct{}{}:
	default:
	}
}

// restShare is how many times as long as it took judge rests after an answer. Chosen: however large the cluster is,
// judging it takes a fifth of a CPU at most, and an answer that takes 100 ms is shown within a second of a change.
const restShare = 4

// judge keeps the answer about waiting pods current, while somebody looks.
func (h *hub) judge(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-h.wanted:
		}
		h.mu.Lock()
		due := h.stale && len(h.streams) > 0
		h.stale = h.stale && !due
		h.mu.Unlock()
		if !due {
			continue
		}
		began := h.now()
		answer, err := h.asker.Waiting(ctx)
		took := h.now().Sub(began)
		if err != nil {
			continue // the Live answers without errors
		}
		for i := range answer.Groups {
			answer.Groups[i].Pods = answer.Groups[i].Pods[:min(len(answer.Groups[i].Pods), groupPodsMax)]
		}
		h.mu.Lock()
		h.version++
		h.waiting = at[*explain.Waiting]{version: h.version, value: answer}
		for s := range h.streams {
			if s.podWaits {
				s.asked = h.version
			}
		}
		h.wake()
		h.mu.Unlock()
		if !sleep(ctx, restShare*took) {
			return
		}
	}
}

// groupPodsMax is how many pods of a group are named (chosen: more than anybody reads).
const groupPodsMax = 200

// pingTime is how often the API server is asked whether it answers (chosen: a person waits that long for a warning).
const pingTime = 5 * time.Second

// ping notes when the API server does not answer, while somebody looks.
func (h *hub) ping(ctx context.Context) {
	for sleep(ctx, pingTime) {
		h.mu.Lock()
		idle := len(h.streams) == 0
		h.mu.Unlock()
		if idle {
			continue
		}
		err := h.asker.Client.Ready(ctx)
		h.mu.Lock()
		h.version++
		h.setHealth(func(x *Health) {
			switch {
			case err == nil:
				x.Error, x.Since = "", time.Time{}
			case x.Error == "":
				x.Error, x.Since = err.Error(), h.now()
			}
		})
		h.wake()
		h.mu.Unlock()
	}
}

// sleep returns false if ctx ended.
func sleep(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}

// rowsSince returns the rows that changed after a version, by name, and the names of nodes that are gone. h.mu is
// locked.
func (h *hub) rowsSince(version uint64) (rows []json.RawMessage, gone []string) {
	if h.newest <= version {
		return nil, nil
	}
	for _, name := range slices.Sorted(maps.Keys(h.rows)) {
		switch r := h.rows[name]; {
		case r.version <= version:
		case r.text == nil:
			gone = append(gone, name)
		default:
			rows = append(rows, r.text)
		}
	}
	return rows, gone
}
