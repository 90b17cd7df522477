package server

import (
	"fmt"
	"net/http"
	"sync"
	"syscall"
	"time"
)

// Bounds on the connections and streams of clients, for a process that may have many descriptors. Chosen: an API server
// with 5,000 nodes has one or two connections to each. A client that follows the logs of every container of a full node
// (110 pods) has some hundred streams. Raising the bounds lets clients use more memory, some 100 KiB per stream.
const (
	connectionsMax   = 4096
	streamsMax       = 1024
	streamsPerPodMax = 256
)

// limits bound the connections and streams of clients.
type limits struct {
	connections   int
	streams       int
	streamsPerPod int // so that clients of one pod leave room for other pods' clients
}

// limitsFor returns the limits for a process that may have that many descriptors. A stream takes two in addition to its
// connection. In total the server leaves half of them to the rest of the agent, above all to what must end a pod.
func limitsFor(files uint64) limits {
	files = min(files, 1<<20)
	l := limits{connections: min(connectionsMax, int(files/4)), streams: min(streamsMax, int(files/8))}
	l.streamsPerPod = min(streamsPerPodMax, (l.streams+3)/4)
	return l
}

// descriptorsMax returns how many descriptors this process may have.
func descriptorsMax() (uint64, error) {
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return 0, fmt.Errorf("read RLIMIT_NOFILE: %w", err)
	}
	return limit.Cur, nil
}

// slots count open streams.
type slots struct {
	limits limits

	mu    sync.Mutex
	total int
	byPod map[string]int // namespace/name; pods without streams are not in it
}

// take takes a slot for a stream to pod (empty: to none), or returns which limit is reached: "node" or "pod".
func (s *slots) take(pod string) (full string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.total >= s.limits.streams {
		return "node"
	}
	if pod != "" {
		if s.byPod[pod] >= s.limits.streamsPerPod {
			return "pod"
		}
		if s.byPod == nil {
			s.byPod = map[string]int{}
		}
		s.byPod[pod]++
	}
	s.total++
	return ""
}

func (s *slots) free(pod string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.total--
	if pod == "" {
		return
	}
	if s.byPod[pod]--; s.byPod[pod] == 0 {
		delete(s.byPod, pod)
	}
}

// slotted runs h with a slot, or refuses the request if none is free.
func (s *Server) slotted(path string, h http.HandlerFunc) http.HandlerFunc {
	open := s.o.Metrics.Streams.WithLabelValues(path)
	return func(w http.ResponseWriter, r *http.Request) {
		pod := ""
		if name := r.PathValue("pod"); name != "" {
			pod = r.PathValue("namespace") + "/" + name
		}
		if full := s.slots.take(pod); full != "" {
			s.o.Metrics.StreamsRefused.WithLabelValues(path, full).Inc()
			most := map[string]int{"node": s.slots.limits.streams, "pod": s.slots.limits.streamsPerPod}[full]
			w.Header().Set("Retry-After", "1")
			http.Error(w,
				fmt.Sprintf("all %d streams of this %s are open (logs, exec, attach, port-forward): end one and try again", most,
					full), http.StatusTooManyRequests)
			return
		}
		defer s.slots.free(pod)
		open.Inc()
		defer open.Dec()
		h(w, r)
	}
}

// stream wraps h as a request of unlimited duration: it is counted, has none of the bounds of ordinary requests, and
// ends with the server.
func (s *Server) stream(path string, h http.HandlerFunc) http.HandlerFunc {
	return s.slotted(path, func(w http.ResponseWriter, r *http.Request) {
		control := http.NewResponseController(w)
		_ = control.SetReadDeadline(time.Time{}) // test recorders have no deadlines
		_ = control.SetWriteDeadline(time.Time{})
		ctx, cancel := joined(r.Context(), s.streams)
		defer cancel()
		h(w, r.WithContext(ctx))
	})
}
