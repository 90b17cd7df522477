package server

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
)

// check is one of the things that /healthz looks at.
type check struct {
	name string
	err  func() error
}

// checks are upstream's: ping answers while the server does, log while writing logs does not block (it cannot here:
// slog writes where it is called), syncloop while the agent's loop makes progress.
func (s *Server) checks() []check {
	fine := func() error { return nil }
	healthy := s.o.Healthy
	if healthy == nil {
		healthy = fine
	}
	return []check{{"ping", fine}, {"log", fine}, {"syncloop", healthy}}
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

// healthOnly is what healthzPort serves.
func (s *Server) healthOnly() http.Handler {
	mux := http.NewServeMux()
	s.healthRoutes(func(pattern string, h http.HandlerFunc) { mux.HandleFunc(pattern, bounded(h)) })
	return mux
}

// health answers "ok", or a line per check where one failed or verbose asks for it. Reasons are left to the checks' own
// paths: this one may be open to more people.
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
