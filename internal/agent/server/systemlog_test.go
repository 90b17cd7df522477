package server

import (
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/plimsoll-dev/plimsoll/test/cost"
)

// TestSystemLogQuery: files of services, and what is wrong with a question. TestWatchdog of test/e2e/lab asks a real
// journal.
func TestSystemLogQuery(t *testing.T) {
	on := true
	r := newRig(t, func(o *Options) {
		o.Config.EnableSystemLogQuery = &on
		for name, text := range map[string]string{"one.log": "of one\n", "two/two.log": "of two\n", "three": "of three\n"} {
			path := filepath.Join(o.LogDir, name)
			if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.Symlink("/etc/passwd", filepath.Join(o.LogDir, "leak.log")); err != nil {
			t.Fatal(err)
		}
	})
	for _, c := range []struct {
		question string
		status   int
		want     string
	}{
		{"?query=one&query=two&query=three", 200, "of one\nof two\nof three\n"},
		{"?query=/two/two.log", 200, "of two\n"},
		{"?query=none", 200, "\nlog not found for none\n"},
		{"?query=leak", 200, "error getting log for leak: "},
		{"?query=one&tailLines=3", 200, "options present and query resolved to log files for one"},
		{"?query=../../etc/passwd", 406, "path escapes from parent"},
		{"?query=/none", 406, "no such file"},
		{"?query=%20", 400, "query: may not be empty"},
		{"?query=one&sinceTime=yesterday", 400, `sinceTime: "yesterday": want RFC 3339`},
		{"?query=one&tailLines=all", 400, `tailLines: "all": want a number`},
		{"?tailLines=3", 406, "query: cannot be empty with options"},
		{"?query=one&query=a/b", 406, "cannot specify a file and service"},
		{"?query=a/b&query=c/d", 406, "cannot specify more than one file"},
		{"?query=a/b&boot=0", 406, "cannot specify file with options"},
		{"?query=a&query=b&query=c&query=d&query=e", 406, "5 services: want 4 at most"},
		{"?query=a%3Bb", 406, `"a;b": input contains unsupported characters`},
		{"?query=one&boot=1&tailLines=100001&pattern=(", 406, "boot: 1: must be less than 1; tailLines: 100001: want 0 to"},
		{"?query=one&sinceTime=2026-11-20T10:00:02Z&untilTime=2026-11-20T10:00:01Z", 406, "must be after `sinceTime`"},
		{"one.log", 200, "of one\n"},
		{"one.log?query=two", 406, "path not allowed in query mode"},
	} {
		status, body := r.do(t, "GET", "/logs/"+c.question)
		if status != c.status || !strings.Contains(body, c.want) || strings.Contains(body, "root:") {
			t.Errorf("%s: status %d, want %d, with %q: %.300q", c.question, status, c.status, c.want, body)
		}
	}
	if status, body := r.do(t, "GET", "/logs?query=one"); status != 200 || body != "of one\n" {
		t.Errorf("without a slash: status %d: %.300q", status, body)
	}
	off := newRig(t, func(o *Options) { o.LogDir = filepath.Dir(r.logs) })
	if status, body := off.do(t, "GET", "/logs/?query=one"); status != 200 || strings.Contains(body, "of one") {
		t.Errorf("questions are off, and one is answered: %d %q", status, body)
	}
}

func FuzzLogQuery(f *testing.F) {
	cost.Attack(f, "query=a&query=b/c&tailLines=3&boot=-1&sinceTime=2026-11-20T10:00:02Z&pattern=a.*b")
	f.Fuzz(func(t *testing.T, text string) {
		defer cost.Spend(t, len(text))()
		values, err := url.ParseQuery(text)
		if err != nil {
			return
		}
		if q, problems := parseLogQuery(values); q != nil && len(problems) == 0 {
			q.check()
		}
	})
}
