package server

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"regexp/syntax"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/plimsoll-dev/plimsoll/internal/host/journalctl"
)

// This file answers questions about the logs of the machine's services (enableSystemLogQuery; KEP-2258).

const (
	// queryMax bounds an answer (kubelet: the same).
	queryMax = 30 * time.Second
	// tailLinesMax and servicesMax bound a question (kubelet: the same).
	tailLinesMax = 100_000
	servicesMax  = 4
)

// systemLogRoutes serves the machine's log directory. os.Root keeps every path and symbolic link inside it.
func (s *Server) systemLogRoutes(answer, stream func(string, http.HandlerFunc)) {
	if on := s.o.Config.EnableSystemLogHandler; on != nil && !*on {
		answer("GET /logs/", refuse("logs endpoint is disabled.", http.StatusMethodNotAllowed))
		return
	}
	dir := s.o.LogDir
	if dir == "" {
		dir = "/var/log"
	}
	logs := func(w http.ResponseWriter, r *http.Request) {
		root, err := os.OpenRoot(dir)
		if err != nil {
			http.Error(w, "open log directory: "+err.Error(), http.StatusNotFound)
			return
		}
		defer root.Close()
		if isTrue(s.o.Config.EnableSystemLogQuery) && s.askedLogs(w, r, root) {
			return
		}
		http.StripPrefix("/logs", http.FileServerFS(root.FS())).ServeHTTP(w, r)
	}
	stream("GET /logs", logs) // a redirection to the other would lead clients of the API server's proxy elsewhere
	stream("GET /logs/", logs)
}

// serviceQuery is a question: services or one file, and which entries.
type serviceQuery struct {
	services []string
	files    []string
	options  bool // the entries are restricted
	journalctl.Query
}

// askedLogs answers r if it is a question, and returns whether it was one.
func (s *Server) askedLogs(w http.ResponseWriter, r *http.Request, root *os.Root) bool {
	q, problems := parseLogQuery(r.URL.Query())
	switch {
	case len(problems) > 0:
		http.Error(w, strings.Join(problems, "; "), http.StatusBadRequest)
		return true
	case q == nil:
		return false
	case r.URL.Path != "/logs/" && r.URL.Path != "/logs":
		http.Error(w, "path not allowed in query mode", http.StatusNotAcceptable)
		return true
	}
	if problems := q.check(); len(problems) > 0 {
		http.Error(w, strings.Join(problems, "; "), http.StatusNotAcceptable)
		return true
	}
	if len(q.files) == 1 {
		name := strings.TrimPrefix(filepath.ToSlash(q.files[0]), "/")
		if _, err := root.Stat(name); err != nil {
			http.Error(w, fmt.Sprintf("query: %.200q: %v", name, err), http.StatusNotAcceptable)
		} else {
			http.ServeFileFS(w, r, root.FS(), name)
		}
		return true
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	ctx, cancel := context.WithTimeout(r.Context(), queryMax)
	defer cancel()
	q.copyServices(ctx, w, root)
	return true
}

// parseLogQuery reads the parameters; nil: there are none.
func parseLogQuery(values url.Values) (q *serviceQuery, problems []string) {
	q = &serviceQuery{}
	for _, one := range values["query"] {
		switch {
		case strings.ContainsAny(one, `/\`):
			q.files = append(q.files, one)
		case strings.TrimSpace(one) != "":
			q.services = append(q.services, one)
		}
	}
	asked := len(values["query"]) > 0
	if asked && len(q.files)+len(q.services) == 0 {
		problems = append(problems, "query: may not be empty")
	}
	for name, to := range map[string]*time.Time{"sinceTime": &q.Since, "untilTime": &q.Until} {
		if text := values.Get(name); text != "" {
			var err error
			if *to, err = time.Parse(time.RFC3339, text); err != nil {
				problems = append(problems, fmt.Sprintf("%s: %.100q: want RFC 3339", name, text))
			}
			q.options = true
		}
	}
	for name, to := range map[string]**int{"boot": &q.Boot, "tailLines": &q.Lines} {
		if text := values.Get(name); text != "" {
			n, err := strconv.Atoi(text)
			if err != nil {
				problems = append(problems, fmt.Sprintf("%s: %.100q: want a number", name, text))
			}
			*to, q.options = &n, true
		}
	}
	if q.Grep = values.Get("pattern"); q.Grep != "" {
		q.options = true
	}
	if !asked && !q.options {
		return nil, problems
	}
	return q, problems
}

// check returns what is wrong with the question as a whole.
func (q *serviceQuery) check() (problems []string) {
	bad := func(format string, args ...any) { problems = append(problems, fmt.Sprintf(format, args...)) }
	switch {
	case len(q.files)+len(q.services) == 0:
		bad("query: cannot be empty with options")
	case len(q.files) > 0 && len(q.services) > 0:
		bad("query: cannot specify a file and service")
	case len(q.files) > 1:
		bad("query: cannot specify more than one file")
	case len(q.files) == 1 && q.options:
		bad("query: cannot specify file with options")
	case len(q.services) > servicesMax:
		bad("query: %d services: want %d at most", len(q.services), servicesMax)
	}
	for _, name := range q.services {
		if err := journalctl.CheckUnit(name); err != nil {
			bad("query: %.100q: %v", name, err)
		}
	}
	if !q.Since.IsZero() && !q.Until.IsZero() && q.Since.After(q.Until) {
		bad("untilTime: must be after `sinceTime`")
	}
	if q.Boot != nil && *q.Boot > 0 {
		bad("boot: %d: must be less than 1", *q.Boot)
	}
	if q.Lines != nil && (*q.Lines < 0 || *q.Lines > tailLinesMax) {
		bad("tailLines: %d: want 0 to %d", *q.Lines, tailLinesMax)
	}
	if _, err := syntax.Parse(q.Grep, syntax.Perl); err != nil {
		bad("pattern: %.100q: %v", q.Grep, err)
	}
	return problems
}

// copyServices writes the entries of services that log to systemd's journal, and the files of the others. What goes
// wrong is a line of the answer, as in the kubelet.
func (q *serviceQuery) copyServices(ctx context.Context, w io.Writer, root *os.Root) {
	inJournal, err := journalctl.Services(ctx, q.services)
	if err != nil {
		inJournal = nil // without a journal there may be files
	}
	if len(inJournal) > 0 {
		q.Units = inJournal
		if err := journalctl.Copy(ctx, w, q.Query); err != nil {
			_, _ = fmt.Fprintf(w, "\nerror: journal output not available: %v\n", err)
		}
	}
	for _, name := range q.services {
		switch {
		case slices.Contains(inJournal, name):
		case q.options:
			_, _ = fmt.Fprintf(w, "\noptions present and query resolved to log files for %v\n"+
				"try without specifying options\n", name)
		default:
			copyServiceFile(w, root, name)
		}
	}
}

// copyServiceFile writes the first file that a service's log may be in.
func copyServiceFile(w io.Writer, root *os.Root, name string) {
	for _, path := range []string{name, name + ".log", filepath.Join(name, name+".log")} {
		info, err := root.Stat(path)
		if errors.Is(err, os.ErrNotExist) || err == nil && !info.Mode().IsRegular() {
			continue
		}
		var file *os.File
		if err == nil {
			file, err = root.Open(path)
		}
		if err == nil {
			_, err = io.Copy(w, file)
			_ = file.Close() // it was only read
		}
		if err != nil {
			_, _ = fmt.Fprintf(w, "\nerror getting log for %s: %v\n", name, err)
		}
		return
	}
	_, _ = fmt.Fprintf(w, "\nlog not found for %s\n", name)
}
