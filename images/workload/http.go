package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"
)

// drainTime is how long requests in flight may continue after SIGTERM: well below the default grace period of 30 s.
const drainTime = 5 * time.Second

// A server is the http verb: its answers depend on how long it has run.
type server struct {
	start                 time.Time
	failAfter, readyAfter time.Duration
	out                   process
	end                   chan int // exit codes requested through /exit
}

func serveHTTP(ctx context.Context, p process, flags *flag.FlagSet, args []string) error {
	port := flags.Int("port", 8080, "TCP port")
	s := &server{start: time.Now(), out: p, end: make(chan int, 1)}
	flags.DurationVar(&s.failAfter, "fail-after", 0, "from then on /healthz answers 500 (0: never)")
	flags.DurationVar(&s.readyAfter, "ready-after", 0, "until then /readyz answers 503")
	if err := noArgs(flags, args); err != nil {
		return err
	}
	listener, err := net.Listen("tcp", ":"+strconv.Itoa(*port))
	if err != nil {
		return err
	}
	p.printf("serving HTTP on %s\n", listener.Addr())
	web := &http.Server{Handler: s.routes(), ReadHeaderTimeout: 10 * time.Second}
	failed := make(chan error, 1)
	go func() { failed <- web.Serve(listener) }()
	status := 0
	select {
	case err := <-failed:
		return err
	case status = <-s.end:
	case <-ctx.Done():
		p.printf("stopping\n")
	}
	drain, cancel := context.WithTimeout(context.Background(), drainTime)
	defer cancel()
	if err := web.Shutdown(drain); err != nil && !errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	if status != 0 {
		return exitCode(status)
	}
	return nil
}

func (s *server) routes() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/{$}", s.hello)
	mux.HandleFunc("/env", func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintln(w, strings.Join(os.Environ(), "\n"))
	})
	mux.HandleFunc("/file", s.file)
	mux.HandleFunc("/healthz", func(w http.ResponseWriter, _ *http.Request) {
		s.judge(w, s.failAfter == 0 || time.Since(s.start) < s.failAfter, http.StatusInternalServerError)
	})
	mux.HandleFunc("/readyz", func(w http.ResponseWriter, _ *http.Request) {
		s.judge(w, time.Since(s.start) >= s.readyAfter, http.StatusServiceUnavailable)
	})
	mux.HandleFunc("/exit", s.exit)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.out.printf("%s %s %s from %s (%s)\n", time.Now().UTC().Format(time.RFC3339Nano), r.Method, r.URL, r.RemoteAddr,
			r.UserAgent())
		mux.ServeHTTP(w, r)
	})
}

func (s *server) hello(w http.ResponseWriter, r *http.Request) {
	host, err := os.Hostname()
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	fmt.Fprintf(w, "%s up %s; you are %s\n", host, time.Since(s.start).Round(time.Millisecond), r.RemoteAddr)
}

func (s *server) file(w http.ResponseWriter, r *http.Request) {
	file, err := os.Open(r.FormValue("path"))
	if err != nil {
		http.Error(w, err.Error(), http.StatusNotFound)
		return
	}
	defer file.Close()
	if _, err := io.Copy(w, file); err != nil {
		fmt.Fprintf(s.out.stderr, "serve file: %v\n", err)
	}
}

func (s *server) judge(w http.ResponseWriter, good bool, bad int) {
	up := time.Since(s.start).Round(time.Millisecond)
	if !good {
		http.Error(w, fmt.Sprintf("failing as asked, up %s", up), bad)
		return
	}
	fmt.Fprintf(w, "ok, up %s\n", up)
}

func (s *server) exit(w http.ResponseWriter, r *http.Request) {
	status, err := strconv.Atoi(r.FormValue("code"))
	if err != nil || status < 0 || status > 255 {
		http.Error(w, fmt.Sprintf("code %q: want 0 to 255", r.FormValue("code")), http.StatusBadRequest)
		return
	}
	select {
	case s.end <- status:
	default: // another request was first
	}
}
