package server

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
)

// check is one of the checks of /healthz.
type check struct {
	name string
	err  func() error
}

// checks returns the kubelet's checks. ping succeeds while the server answers. log succeeds while writing logs does not
// block; here it cannot, since slog writes synchronously. syncloop succeeds while the agent's loop makes progress.
func (s *Server) checks() []check {
	fine := func() error { return nil }
	healthy := s.o.Healthy
	if healthy == nil {
		healthy = fine
	}
	return []check{
		{name: "ping", err: fine},
		{name: "log", err: fine},
		{name: "syncloop", err: healthy},
	}
}

// healthRoutes serves /healthz, with verbose and exclude, and /healthz/<check>.
func (s *Server) healthRoutes(answer func(string, http.HandlerFunc)) {
	checks := s.checks()
	all := func(w http.ResponseWriter, r *http.Request) { health(w, r, checks) }
	answer("GET /healthz", all)
	answer("GET /healthz/{$}", all)
	for _, c := range checks {
		answer("GET /healthz/"+c.name, func(w http.ResponseWriter, _ *http.Request) {
			if err := c.err(); err != nil {
				http.Error(w, "internal server error: "+err.Error(), http.StatusInternalServerError)
				return
			}
			fmt.Fprint(w, "ok")
		})
	}
}

// healthOnly returns the handler for healthzPort.
func (s *Server) healthOnly() http.Handler {
	mux := http.NewServeMux()
	s.healthRoutes(func(pattern string, h http.HandlerFunc) { mux.HandleFunc(pattern, bounded(h)) })
	return mux
}

// health answers "ok", or a line per check if one failed or verbose asks for it. The reasons are only on the checks'
// own paths, since more clients may have access to this one.
func health(w http.ResponseWriter, r *http.Request, checks []check) {
	exclude := r.URL.Query()["exclude"]
	var lines strings.Builder
	failed := false
	for _, c := range checks {
		switch {
		case slices.Contains(exclude, c.name):
			fmt.Fprintf(&lines, "[+]%s excluded: ok\n", c.name)
		case c.err() != nil:
			failed = true
			fmt.Fprintf(&lines, "[-]%s failed: reason withheld\n", c.name)
		default:
			fmt.Fprintf(&lines, "[+]%s ok\n", c.name)
		}
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	if failed {
		http.Error(w, lines.String()+"healthz check failed", http.StatusInternalServerError)
		return
	}
	if _, verbose := r.URL.Query()["verbose"]; verbose {
		fmt.Fprint(w, lines.String()+"healthz check passed\n")
		return
	}
	fmt.Fprint(w, "ok")
}
