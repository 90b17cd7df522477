package server

import (
	"bufio"
	"errors"
	"net"
	"net/http"
	"net/http/pprof"
	"path"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/plimsoll-dev/plimsoll/internal/agent/stats"
	"github.com/plimsoll-dev/plimsoll/internal/journal"
	"github.com/plimsoll-dev/plimsoll/internal/kube/authn"
	"github.com/plimsoll-dev/plimsoll/internal/kube/serving"
)

// routes returns the handler: authentication, bounds and metrics around a table of endpoints.
func (s *Server) routes() (http.Handler, error) {
	mux := http.NewServeMux()
	answer := func(pattern string, h http.HandlerFunc) { mux.HandleFunc(pattern, bounded(h)) }
	stream := func(pattern string, h http.HandlerFunc) { mux.HandleFunc(pattern, s.stream(rootOf(pattern), h)) }
	both := func(on func(string, http.HandlerFunc), p string, h http.HandlerFunc) {
		on("GET "+p, h)
		on("POST "+p, h)
	}

	s.healthRoutes(answer)
	answer("GET /pods", s.pods)
	answer("GET /pods/{$}", s.pods)
	both(answer, "/stats/summary", s.summary)
	answer("GET "+journal.Path, s.journal)
	if err := s.metricRoutes(mux); err != nil {
		return nil, err
	}

	c := s.o.Config
	if c.EnableDebuggingHandlers != nil && !*c.EnableDebuggingHandlers {
		off := refuse("Debug endpoints are disabled.", http.StatusMethodNotAllowed)
		for _, p := range []string{"/run/", "/exec/", "/attach/", "/portForward/", "/containerLogs/", "/runningpods/",
			"/debug/pprof/", "/debug/flags/", "/logs/", "/configz", "/checkpoint/", "/statusz", "/flagz"} {
			answer(p, off)
		}
		return s.guarded(s.traced(s.counted(mux))), nil
	}
	stream("GET /containerLogs/{namespace}/{pod}/{container}", s.containerLogs)
	for _, p := range []string{"/{namespace}/{pod}/{container}", "/{namespace}/{pod}/{uid}/{container}"} {
		both(stream, "/exec"+p, s.exec)
		both(stream, "/attach"+p, s.attach)
		answer("POST /run"+p, s.slotted("run", s.run)) // a command, like exec's
	}
	both(stream, "/portForward/{namespace}/{pod}", s.portForward)
	both(stream, "/portForward/{namespace}/{pod}/{uid}", s.portForward)
	answer("GET /runningpods", s.runningPods)
	answer("GET /runningpods/{$}", s.runningPods)
	answer("GET /configz", s.configz)
	stream("POST /checkpoint/{namespace}/{pod}/{container}", s.checkpoint)
	answer("GET /statusz", s.statusz)
	answer("GET /flagz", s.flagz)
	if on := c.EnableDebugFlagsHandler; s.o.SetVerbosity == nil || on != nil && !*on {
		answer("PUT /debug/flags/v", refuse("flags endpoint is disabled.", http.StatusMethodNotAllowed))
	} else {
		answer("PUT /debug/flags/v", s.verbosity)
	}
	s.systemLogRoutes(answer, stream)
	s.profileRoutes(answer, stream)
	return s.guarded(s.traced(s.counted(mux))), nil
}

// guarded passes a request on if the guard authenticates and authorizes it.
func (s *Server) guarded(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		// The guard authorizes by path prefix, the mux routes by path: both must see the same path.
		if clean := path.Clean(r.URL.Path); clean != r.URL.Path && clean+"/" != r.URL.Path {
			http.Error(w, "path is not clean: "+strconv.Quote(serving.Brief(r.URL.Path))+"; use "+
				strconv.Quote(serving.Brief(clean)), http.StatusBadRequest)
			return
		}
		who, err := s.guard.Admit(r)
		if refusal := (*authn.Refusal)(nil); errors.As(err, &refusal) {
			name := ""
			if who != nil {
				name = who.Name
			}
			s.refusals.Log(r, refusal.Status, name, refusal)
			if refusal.Status == http.StatusServiceUnavailable {
				w.Header().Set("Retry-After", "1")
			}
			http.Error(w, serving.Brief(refusal.Text), refusal.Status)
			return
		} else if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		serving.Admitted(r.Context())
		next.ServeHTTP(w, r)
	})
}

// traced adds spans, if they are wanted.
func (s *Server) traced(next http.Handler) http.Handler {
	if s.o.Trace == nil {
		return next
	}
	return s.o.Trace(next)
}

// bounded limits an ordinary request in size and time.
func bounded(h http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		control, end := http.NewResponseController(w), time.Now().Add(answerTime)
		_ = control.SetReadDeadline(end) // test recorders have no deadlines
		_ = control.SetWriteDeadline(end)
		r.Body = http.MaxBytesReader(w, r.Body, bodyBytesMax)
		h(w, r)
	}
}

// longRunning are the requests with the kubelet's metric label long_running.
var longRunning = map[string]bool{"exec": true, "attach": true, "portforward": true, "debug": true}

// counted measures requests under the kubelet's names. Paths that do not exist count as "other", so that a client
// cannot create labels.
func (s *Server) counted(mux *http.ServeMux) http.Handler {
	m := s.o.Metrics
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		root := "other"
		if _, pattern := mux.Handler(r); pattern != "" {
			root = rootOf(pattern)
		}
		labels := []string{r.Method, root, "readwrite", strconv.FormatBool(longRunning[root])}
		start := time.Now()
		m.HTTPRequests.WithLabelValues(labels...).Inc()
		m.HTTPInFlight.WithLabelValues(labels...).Inc()
		defer func() {
			m.HTTPInFlight.WithLabelValues(labels...).Dec()
			m.HTTPDuration.WithLabelValues(labels...).Observe(time.Since(start).Seconds())
		}()
		mux.ServeHTTP(w, r)
	})
}

// rootOf returns the first element of a route's path; for metrics the first two, as in the kubelet.
func rootOf(pattern string) string {
	_, p, _ := strings.Cut(pattern, "/")
	root, rest, _ := strings.Cut(p, "/")
	if second, _, _ := strings.Cut(rest, "/"); root == "metrics" && second != "" {
		return root + "/" + second
	}
	return root
}

func refuse(text string, status int) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) { http.Error(w, text, status) }
}

// metricRoutes serves the metrics. Usage, and pods by state, are collected at the time of the request.
func (s *Server) metricRoutes(mux *http.ServeMux) error {
	if err := s.o.Metrics.Registry.Register(running{s.o.Pods}); err != nil {
		return err
	}
	if err := s.o.Metrics.Registry.Register(s.servingTTL()); err != nil {
		return err
	}
	mux.HandleFunc("GET /metrics/cadvisor", bounded(s.cadvisor))
	slis := newSLIs()
	mux.HandleFunc("GET /metrics/slis", bounded(func(w http.ResponseWriter, r *http.Request) {
		slis.record(s.checks())
		promhttp.HandlerFor(slis.registry, promhttp.HandlerOpts{}).ServeHTTP(w, r)
	}))
	for p, g := range map[string]func(*http.Request) prometheus.Gatherer{
		"/metrics":          func(*http.Request) prometheus.Gatherer { return s.o.Metrics.Registry },
		"/metrics/probes":   func(*http.Request) prometheus.Gatherer { return s.o.Metrics.Probes },
		"/metrics/resource": func(r *http.Request) prometheus.Gatherer { return s.usage(r, stats.Swap, resourceFamilies) },
	} {
		mux.HandleFunc("GET "+p, bounded(func(w http.ResponseWriter, r *http.Request) {
			promhttp.HandlerFor(g(r), promhttp.HandlerOpts{ErrorHandling: promhttp.ContinueOnError}).ServeHTTP(w, r)
		}))
	}
	return nil
}

func (s *Server) profileRoutes(answer, stream func(string, http.HandlerFunc)) {
	if on := s.o.Config.EnableProfilingHandler; on != nil && !*on {
		answer("GET /debug/pprof/", refuse("profiling endpoint is disabled.", http.StatusMethodNotAllowed))
		return
	}
	stream("GET /debug/pprof/", pprof.Index)
	stream("GET /debug/pprof/profile", pprof.Profile) // ?seconds= may ask for longer than answerTime
	stream("GET /debug/pprof/trace", pprof.Trace)
	answer("GET /debug/pprof/cmdline", pprof.Cmdline)
	both := func(h http.HandlerFunc) {
		answer("GET /debug/pprof/symbol", h)
		answer("POST /debug/pprof/symbol", h)
	}
	both(pprof.Symbol)
}

// hijack takes the connection from w, with what the client has already sent on it.
func hijack(w http.ResponseWriter) (net.Conn, *bufio.ReadWriter, error) {
	return http.NewResponseController(w).Hijack()
}
