package cluster

import (
	"bytes"
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/plimsoll-dev/plimsoll/internal/cluster/supervise"
)

// watched plays statuses, one for each tick, and returns what was written.
func watched(t *testing.T, v *StatusView, list []Status, end error) (text string, last Status, err error) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var out bytes.Buffer
	v.Out = &out
	ticks := make(chan time.Time, len(list))
	for range list {
		ticks <- time.Time{}
	}
	last, err = v.Watch(ctx, ticks, func(context.Context) (Status, error) {
		if len(list) == 0 {
			cancel()
			return Status{}, end
		}
		s := list[0]
		list = list[1:]
		return s, nil
	})
	return out.String(), last, err
}

// TestWatchedStatus: elsewhere than on a terminal, a status is written when something but uptimes and memory has
// changed; on a terminal, each takes the place of the one before. An interruption is no error.
func TestWatchedStatus(t *testing.T) {
	one := Status{Instance: "i", SupervisorPID: 1, APIServer: "ready", Nodes: []NodeStatus{{Name: "n", Ready: true}},
		Children: []supervise.Status{{Name: "etcd", PID: 7, Uptime: time.Second, ResidentBytes: 1}}}
	older := one
	older.Children = []supervise.Status{{Name: "etcd", PID: 7, Uptime: time.Minute, ResidentBytes: 2}}
	down := one
	down.Nodes = []NodeStatus{{Name: "n", Reason: "silent"}}
	restarted := down
	restarted.Children = []supervise.Status{{Name: "etcd", PID: 8, Restarts: 1}}
	all := []Status{one, older, down, restarted, restarted}
	text, last, err := watched(t, &StatusView{}, all, nil)
	if err != nil || last.differs(restarted) || strings.Count(text, "instance ") != 3 || strings.Contains(text, "\x1b") {
		t.Errorf("%v, %+v\n%s", err, last, text)
	}
	text, _, err = watched(t, &StatusView{Screen: true}, all, nil)
	if err != nil || strings.Count(text, "\x1b[H\x1b[J") != 5 || strings.Count(text, "instance ") != 5 {
		t.Errorf("%v\n%s", err, text)
	}
	names := func(s Status, w io.Writer) error { _, err := io.WriteString(w, s.Instance+"\n"); return err }
	if text, _, err = watched(t, &StatusView{Write: names}, all, nil); err != nil || text != "i\ni\ni\n" {
		t.Errorf("%v, %q", err, text)
	}
	full := func(Status, io.Writer) error { return errors.New("the disk is full") }
	if _, _, err = watched(t, &StatusView{Write: full}, all, nil); err == nil {
		t.Error("a status that cannot be written is no error")
	}
}
