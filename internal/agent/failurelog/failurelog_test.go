package failurelog

import (
	"bytes"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// TestLog: a failure is logged when it begins, when its reason changes and once a minute, and so is its end.
func TestLog(t *testing.T) {
	var out bytes.Buffer
	before := slog.Default()
	slog.SetDefault(slog.New(slog.NewTextHandler(&out, nil)))
	t.Cleanup(func() { slog.SetDefault(before) })
	synctest.Test(t, func(t *testing.T) {
		var l Log
		refused, away := errors.New("refused"), errors.New("away")
		for _, step := range []struct {
			name  string
			wait  time.Duration
			do    func()
			lines []string
		}{
			{"the first failure", 0, func() { l.Failed("renew", refused, "node", "n") },
				[]string{"level=WARN msg=renew node=n err=refused"}},
			{"another action", 0, func() { l.Failed("list", refused) }, []string{"level=WARN msg=list err=refused"}},
			{"the same again", 30 * time.Second, func() { l.Failed("renew", refused, "node", "n") }, nil},
			{"another reason", 0, func() { l.Failed("renew", away) }, []string{"level=WARN msg=renew err=away"}},
			{"a minute later", time.Minute, func() { l.Failed("renew", away) }, []string{"level=WARN msg=renew err=away"}},
			{"success", 0, func() { l.Succeeded("renew") }, []string{`level=INFO msg="renew: succeeds again"`}},
			{"success again", 0, func() { l.Succeeded("renew") }, nil},
			{"a failure after success", 0, func() { l.Failed("renew", away) }, []string{"level=WARN msg=renew err=away"}},
		} {
			time.Sleep(step.wait)
			out.Reset()
			step.do()
			var lines []string
			for line := range strings.Lines(out.String()) {
				_, rest, _ := strings.Cut(strings.TrimSpace(line), " ") // without the time
				lines = append(lines, rest)
			}
			if strings.Join(lines, "\n") != strings.Join(step.lines, "\n") {
				t.Errorf("%s: %q, want %q", step.name, lines, step.lines)
			}
		}
	})
}
