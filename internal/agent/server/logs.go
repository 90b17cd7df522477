package server

import (
	"bufio"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/plimsoll-dev/plimsoll/internal/agent/podlog"
)

// defaultPodLogs is the kubelet's default of podLogsDir.
const defaultPodLogs = "/var/log/pods"

// containerLogs answers with the log of a container's latest attempt, or, with previous, of the one before.
func (s *Server) containerLogs(w http.ResponseWriter, r *http.Request) {
	t := targetOf(r)
	q, problems := logOptionsOf(r.URL.Query(), time.Now())
	if len(problems) > 0 {
		http.Error(w, "invalid request: "+strings.Join(problems, "; "), http.StatusUnprocessableEntity)
		return
	}
	pod, err := s.find(t)
	if err != nil {
		http.Error(w, err.Error(), http.StatusNotFound)
		return
	}
	if !hasContainer(pod, t.container) {
		http.Error(w, fmt.Sprintf("container %q not found in pod %q", t.container, t.pod), http.StatusNotFound)
		return
	}
	c, err := s.o.Pods.Container(t.namespace, t.pod, t.container, pod.UID, q.previous)
	if err == nil && (c.ID == "" || c.LogPath == "") {
		err = fmt.Errorf("container %q in pod %q is waiting to start", t.container, t.pod)
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	o := q.Options
	o.Root = s.o.Config.PodLogsDir
	if o.Root == "" {
		o.Root = defaultPodLogs
	}
	o.Running = func() bool {
		now, err := s.o.Pods.Container(t.namespace, t.pod, t.container, pod.UID, false)
		return err == nil && now.ID == c.ID && now.State == Running
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	out := &logWriter{w: w, buf: bufio.NewWriterSize(w, 16<<10), control: http.NewResponseController(w)}
	o.Flush = out.flush
	if err := podlog.Read(r.Context(), c.LogPath, o, out); err != nil && r.Context().Err() == nil {
		slog.Info("container log ends early", "container", c.ID, "path", c.LogPath, "err", err)
		if !out.started {
			http.Error(w, err.Error(), http.StatusBadRequest)
		}
	}
}

// logWriter buffers entries and sends them when the reader has no more, so that a busy log needs few packets and a
// quiet one has no delay.
type logWriter struct {
	w       http.ResponseWriter
	buf     *bufio.Writer
	control *http.ResponseController
	started bool // the status was sent, so an error can no longer change it
}

func (l *logWriter) Write(p []byte) (int, error) {
	l.started = true
	return l.buf.Write(p)
}

func (l *logWriter) flush() error {
	l.started = true
	if err := l.buf.Flush(); err != nil {
		return err
	}
	return l.control.Flush() // also sends the header: a follower of a quiet container sees that it is connected
}

func hasContainer(pod *corev1.Pod, name string) bool {
	for _, c := range pod.Spec.Containers {
		if c.Name == name {
			return true
		}
	}
	for _, c := range pod.Spec.InitContainers {
		if c.Name == name {
			return true
		}
	}
	for _, c := range pod.Spec.EphemeralContainers {
		if c.Name == name {
			return true
		}
	}
	return false
}

type logQuery struct {
	podlog.Options
	previous bool
}

// logOptionsOf reads the parameters of PodLogOptions v1 from a query, and tail, an older spelling. It returns every
// problem.
func logOptionsOf(q url.Values, now time.Time) (o logQuery, problems []string) {
	number := func(name string, least int64) *int64 {
		text := q.Get(name)
		if text == "" {
			return nil
		}
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil || n < least {
			problems = append(problems, fmt.Sprintf("%s: %q: want a number of at least %d", name, text, least))
			return nil
		}
		return &n
	}
	flag := func(name string) bool {
		v, there := q[name]
		return there && (len(v) == 0 || v[0] != "false" && v[0] != "0")
	}
	if tail := q.Get("tail"); tail != "" {
		q.Set("tailLines", tail)
		if tail == "all" {
			q.Del("tailLines")
		}
	}
	o.Follow = flag("follow")
	o.Timestamps = flag("timestamps")
	o.previous = flag("previous")
	o.Tail = number("tailLines", 0)
	if n := number("limitBytes", 1); n != nil {
		o.LimitBytes = *n
	}
	if n := number("sinceSeconds", 1); n != nil {
		o.Since = now.Add(-time.Duration(*n) * time.Second)
		if *n > int64(now.Unix()) {
			o.Since = time.Time{} // before 1970, or longer than a Duration: everything
		}
	}
	if text := q.Get("sinceTime"); text != "" {
		at, err := time.Parse(time.RFC3339, text)
		if err != nil {
			problems = append(problems, fmt.Sprintf("sinceTime: %q: want RFC 3339", text))
		}
		if q.Get("sinceSeconds") != "" {
			problems = append(problems, "at most one of sinceTime or sinceSeconds may be specified")
		}
		o.Since = at
	}
	switch stream := q.Get("stream"); stream {
	case "", corev1.LogStreamAll:
	case corev1.LogStreamStdout:
		o.Stream = podlog.Stdout
	case corev1.LogStreamStderr:
		o.Stream = podlog.Stderr
	default:
		problems = append(problems, fmt.Sprintf("stream: %q: want All, Stdout or Stderr", stream))
	}
	if o.Stream != podlog.Both && o.Tail != nil {
		problems = append(problems, "tailLines and a specific stream are mutually exclusive")
	}
	return o, problems
}

// Logs returns the logs of the running containers, for a podlog.Rotator.
func Logs(pods Pods) []podlog.Log {
	var logs []podlog.Log
	eachContainer(pods, func(_ *corev1.Pod, _ string, c Container) {
		if c.State == Running && c.LogPath != "" {
			logs = append(logs, podlog.Log{Container: c.ID, Path: c.LogPath})
		}
	})
	return logs
}

// eachContainer calls visit for the latest attempt of every container of every pod that the runtime has.
func eachContainer(pods Pods, visit func(pod *corev1.Pod, name string, c Container)) {
	for _, pod := range pods.List() {
		one := func(name string) {
			if c, err := pods.Container(pod.Namespace, pod.Name, name, pod.UID, false); err == nil {
				visit(pod, name, c)
			}
		}
		for i := range pod.Spec.InitContainers {
			one(pod.Spec.InitContainers[i].Name)
		}
		for i := range pod.Spec.Containers {
			one(pod.Spec.Containers[i].Name)
		}
		for i := range pod.Spec.EphemeralContainers {
			one(pod.Spec.EphemeralContainers[i].Name)
		}
	}
}
