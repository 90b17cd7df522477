package main

import (
	"bytes"
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// call runs the program in-process and returns exit code, stdout and stderr.
func call(ctx context.Context, stdin string, argv ...string) (int, string, string) {
	var out, errs bytes.Buffer
	p := process{stdin: strings.NewReader(stdin), stdout: &out, stderr: &errs}
	status := code(p, dispatch(ctx, p, argv))
	return status, out.String(), errs.String()
}

// TestCommands runs verbs that end by themselves. $D is a directory of the test.
func TestCommands(t *testing.T) {
	dir := t.TempDir()
	for _, c := range []struct {
		line   string // arguments of the run verb
		status int
		out    string // all of stdout, or with a leading ~ a part of stdout and stderr
	}{
		{"workload write $D/a hello  world", 0, ""},
		{"workload write --append $D/a 'two  blanks'", 0, ""},
		{"workload cat $D/a", 0, "hello world\ntwo  blanks\n"},
		{"/bin/cat $D/a", 0, "hello world\ntwo  blanks\n"},
		{"workload cat $D/none", 1, "~cat: open $D/none: no such file"},
		{"workload ls $D", 0, "a\n"},
		{"workload ls -l $D", 0, "~-rw-r--r-- 0:0 24 a"},
		{"/bin/test -d $D", 0, ""},
		{"/bin/test -d $D/a", 1, ""},
		{"/bin/test -s $D/a", 0, ""},
		{"/bin/test -x $D/a", 2, "~-x"},
		{"workload exit --code 3", 3, "exiting with 3\n"},
		{"workload exit --code 3 --message why --message-path $D/message", 3, "exiting with 3\n"},
		{"workload cat $D/message", 0, "why"},
		{"workload exit --code 300", 2, "~want 0 to 255"},
		{"workload log --lines 2 --size 10", 0, "line 1...\nline 2...\n"},
		{"workload log --lines 2 --stderr-every 2", 0, "line 1\n"},
		{"workload disk --path $D/d --size 100Ki --exit", 0, "wrote 102400 bytes in 1 files\n"},
		{"workload disk --path $D --files 2 --size 1 --exit", 0, "wrote 2 bytes in 2 files\n"},
		{"workload memory --hold 1Mi --for 1ms", 0, "holding 1048576 bytes\n"},
		{"workload memory --hold 1Xi", 2, "~want bytes such as"},
		{"workload cpu --milli 1 --for 1ms", 0, "burning 1m CPU on 1 threads\n"},
		{`workload run "write $D/r x" "cat $D/r" "exit --code 7" "cat $D/r"`, 7, "x\nexiting with 7\n"},
		{`workload run "cat $D/r"`, 0, "x\n"},
		{"workload run \"cat 'open\"", 2, "~is not closed"},
		{"workload stdin", 0, "typed"},
		{"workload sparse --size 1Ti $D/sparse", 0, ""},
		{"workload ls -l $D/sparse", 0, "~ 1099511627776 "},
		{"workload sparse --size 0 $D/sparse", 0, ""},
		{"workload link /none $D/sparse", 0, ""},
		{"workload ls -l $D", 0, "~sparse -> /none"},
		{"workload mode 4701 $D/a", 0, ""},
		{"workload ls -l $D/a", 0, "~urwx-----x"},
		{"workload mode 99 $D/a", 2, "~octal"},
		{"workload deep --depth 3 --wide 2 --size 5 $D", 0, "3 directories deep, 2 wide\n"},
		{"workload ls -l $D/x/x/x", 0, "~ 5 file"},
		{"workload flood --bytes 200Ki --width 1k", 0, "~\n"},
		{"workload named 'x) total-vm:1kB' write $D/a x", 0, ""},
		{"workload dance", 2, "~no such verb"},
		{"workload sleep never", 2, `~duration "never"`},
		{"workload", 0, "~usage: workload VERB"},
		{"workload cpu --help", 0, "~usage: workload cpu --milli N"},
	} {
		argv, err := split(c.line)
		if err != nil {
			t.Fatal(err)
		}
		for i := range argv {
			argv[i] = strings.ReplaceAll(argv[i], "$D", dir)
		}
		status, out, errs := call(context.Background(), "typed", argv...)
		want := strings.ReplaceAll(c.out, "$D", dir)
		part, loose := strings.CutPrefix(want, "~")
		if os.Geteuid() != 0 {
			part = strings.Replace(part, " 0:0 ", " ", 1)
		}
		if status != c.status || !loose && out != want || loose && !strings.Contains(out+errs, part) {
			t.Errorf("%s: exit code %d, stdout %q, stderr %q; want %d, %q", c.line, status, out, errs, c.status, c.out)
		}
	}
}

// TestStopIsNoFailure stops verbs that would run without end.
func TestStopIsNoFailure(t *testing.T) {
	for _, line := range []string{"sleep infinity", "memory --hold 1Mi --grow 1Mi/s", "log --rate 10",
		"exit --code 3 --after 1h", "disk --path /dev/null --size 1Gi --rate 1Ki",
		"flood --rate 1Ki/s", "flood --width 1Ki --rate 1Ki/s"} {
		synctest.Test(t, func(t *testing.T) {
			ctx, stop := context.WithTimeout(t.Context(), 1500*time.Millisecond)
			defer stop()
			argv, err := split("workload " + line)
			if err != nil {
				t.Fatal(err)
			}
			if status, out, errs := call(ctx, "", argv...); status != 0 {
				t.Errorf("%s: exit code %d: %s%s", line, status, out, errs)
			}
		})
	}
}

// TestMemoryGrowsAtItsRate checks the printed sizes in virtual time.
func TestMemoryGrowsAtItsRate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		status, out, errs := call(t.Context(), "", "workload", "memory", "--hold", "1Mi", "--grow", "2Mi/s", "--max", "6Mi",
			"--for", "10s")
		if took := time.Since(start); status != 0 || took != 10*time.Second {
			t.Errorf("exit code %d after %s: %s", status, took, errs)
		}
		want := "holding 1048576 bytes\nholding 3145728 bytes\nholding 5242880 bytes\nholding 6291456 bytes\n"
		if out != want {
			t.Errorf("printed %q, want %q", out, want)
		}
	})
}

// TestTarRoundTrip packs in the form that kubectl cp reads, and unpacks what it writes.
func TestTarRoundTrip(t *testing.T) {
	from, to := t.TempDir(), t.TempDir()
	for _, dir := range []string{"d", "d/empty"} {
		if err := os.Mkdir(filepath.Join(from, dir), 0o750); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(from, "d/file"), []byte("content"), 0o640); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("file", filepath.Join(from, "d/link")); err != nil {
		t.Fatal(err)
	}
	status, archive, errs := call(t.Context(), "", "/bin/tar", "cf", "-", "-C", from, "d")
	if status != 0 {
		t.Fatal(errs)
	}
	if status, _, errs := call(t.Context(), archive, "/bin/tar", "-xmf", "-", "-C", to); status != 0 {
		t.Fatal(errs)
	}
	_, got, _ := call(t.Context(), "", "workload", "ls", "-R", "-l", filepath.Join(to, "d"))
	for _, want := range []string{"drwxr-x---", "-rw-r-----", " link -> file"} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in\n%s", want, got)
		}
	}
	if text, err := os.ReadFile(filepath.Join(to, "d/file")); string(text) != "content" {
		t.Errorf("unpacked %q, %v", text, err)
	}
}

// TestTarStaysInside: an archive with a link that leads out is refused.
func TestTarStaysInside(t *testing.T) {
	from, to, outside := t.TempDir(), t.TempDir(), t.TempDir()
	if err := os.WriteFile(filepath.Join(from, "prey"), []byte("x"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(outside, filepath.Join(to, "way")); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(from, filepath.Join(filepath.Dir(from), "way")); err != nil {
		t.Fatal(err)
	}
	_, archive, _ := call(t.Context(), "", "tar", "cf", "-", "-C", filepath.Dir(from), "way")
	status, _, errs := call(t.Context(), archive, "tar", "xf", "-", "-C", to)
	if entries, err := os.ReadDir(outside); err != nil || len(entries) > 0 {
		t.Errorf("written outside: %v %v", entries, err)
	}
	if status == 0 {
		t.Errorf("no error: %s", errs)
	}
}

// TestHealthByAge sends requests to the http verb at several ages.
func TestHealthByAge(t *testing.T) {
	for _, c := range []struct {
		path string
		age  time.Duration
		want int
	}{
		{"/healthz", 0, 200}, {"/healthz", 59 * time.Second, 200}, {"/healthz", time.Minute, 500},
		{"/readyz", 9 * time.Second, 503}, {"/readyz", 10 * time.Second, 200},
		{"/", time.Hour, 200},
		{"/nothing", 0, 404},
		{"/file?path=/none", 0, 404},
		{"/file?path=/etc/passwd", 0, 200},
		{"/exit?code=x", 0, 400},
	} {
		synctest.Test(t, func(t *testing.T) {
			var log bytes.Buffer
			s := &server{start: time.Now().Add(-c.age), failAfter: time.Minute, readyAfter: 10 * time.Second,
				out: process{stdout: &log, stderr: &log}, end: make(chan int, 1)}
			answer := httptest.NewRecorder()
			s.routes().ServeHTTP(answer, httptest.NewRequest(http.MethodGet, c.path, nil))
			if answer.Code != c.want {
				t.Errorf("%s at age %s: %d, want %d", c.path, c.age, answer.Code, c.want)
			}
			if !strings.Contains(log.String(), "GET "+c.path) {
				t.Errorf("%s is not in the log %q", c.path, log.String())
			}
		})
	}
}

// TestOdd fills a directory that is then hard to read, with churn running next to it.
func TestOdd(t *testing.T) {
	dir := t.TempDir()
	if status, _, errs := call(t.Context(), "", "workload", "odd", dir); status != 0 {
		t.Fatal(errs)
	}
	if info, err := os.Lstat(filepath.Join(dir, "fifo")); err != nil || info.Mode()&os.ModeNamedPipe == 0 {
		t.Errorf("FIFO: %v, %v", info, err)
	}
	if to, err := os.Readlink(filepath.Join(dir, "self")); to != "self" {
		t.Errorf("link: %q, %v", to, err)
	}
	ctx, stop := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer stop()
	if status, out, errs := call(ctx, "", "workload", "churn", dir); status != 0 || !strings.Contains(out, "moved away") {
		t.Errorf("exit code %d: %s%s", status, out, errs)
	}
}

// TestRude requests each rude answer with a client that times out.
func TestRude(t *testing.T) {
	for path, want := range map[string]string{
		"/hang": "", "/drip": "\r\n\r\nx", "/endless": strings.Repeat("x", 1<<20), "/headers": strings.Repeat("y",
			1<<20)[:rudeBlock],
		"/slow": "X-More: y\r\n", "/early": "103 Early Hints", "/loop": "Location: /loop",
		"/away?to=http://x/": "Location: http://x/", "/garbage": "\x00\xff", "/reset": "",
	} {
		client, server := net.Pipe()
		ctx, stop := context.WithCancel(t.Context())
		request := httptest.NewRequest(http.MethodGet, path, nil)
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			defer server.Close()
			answerRudely(ctx, server, request)
		}()
		got := make([]byte, 0, 2<<20)
		block := make([]byte, rudeBlock)
		for want != "" && !strings.Contains(string(got), want) {
			n, err := client.Read(block)
			got = append(got, block[:n]...)
			if err != nil {
				t.Errorf("%s: %.100q, then %v", path, got, err)
				break
			}
		}
		stop()
		client.Close()
		<-ended
	}
}
