package agent

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/plimsoll-dev/plimsoll/internal/core/qos"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
	"github.com/plimsoll-dev/plimsoll/internal/host/cgroup"
)

// TestMain lets the test binary also be the process whose memory is limited.
func TestMain(m *testing.M) {
	if file := os.Getenv("PLIMSOLL_TEST_HOLD"); file != "" {
		hold(file)
		return
	}
	os.Exit(m.Run())
}

const (
	hotBytes  = 96 * unit.MiB
	coldBytes = 64 * unit.MiB
)

// hold waits for a line, allocates hot and cold memory and says so, waits for a line, frees the hot memory and says so,
// and waits.
func hold(file string) {
	in := bufio.NewScanner(os.Stdin)
	in.Scan()
	hot, err := syscall.Mmap(-1, 0, int(hotBytes), syscall.PROT_READ|syscall.PROT_WRITE,
		syscall.MAP_ANON|syscall.MAP_PRIVATE)
	if err != nil {
		panic(err)
	}
	for i := 0; i < len(hot); i += os.Getpagesize() {
		hot[i] = 1
	}
	f, err := os.Create(file)
	if err != nil {
		panic(err)
	}
	block := make([]byte, unit.MiB)
	for range int(coldBytes / unit.MiB) {
		if _, err := f.Write(block); err != nil {
			panic(err)
		}
	}
	if err := f.Sync(); err != nil { // clean pages are cheap to drop
		panic(err)
	}
	fmt.Println("held")
	in.Scan()
	if err := syscall.Munmap(hot); err != nil {
		panic(err)
	}
	fmt.Println("freed")
	in.Scan()
}

// holder is a process in a cgroup of its own, whose memory the test controls.
type holder struct {
	t   *testing.T
	cmd *exec.Cmd
	in  io.Writer
	out *bufio.Scanner
}

func startHolder(t *testing.T, group string) *holder {
	t.Helper()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), "PLIMSOLL_TEST_HOLD="+filepath.Join(t.TempDir(), "cold"))
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	for _, dir := range hierarchies(t, group) {
		if err := os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte(fmt.Sprint(cmd.Process.Pid)), 0); err != nil {
			t.Fatal(err)
		}
	}
	return &holder{t, cmd, in, bufio.NewScanner(out)}
}

// tell sends a line and waits for an answer.
func (h *holder) tell(want string) {
	h.t.Helper()
	if _, err := fmt.Fprintln(h.in, "go"); err != nil {
		h.t.Fatal(err)
	}
	if !h.out.Scan() || h.out.Text() != want {
		h.t.Fatalf("the process says %q, want %q: it was killed", h.out.Text(), want)
	}
}

// liveGroup creates a cgroup for the test on this machine's kernel.
func liveGroup(t *testing.T) (*cgroup.Tree, string) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: makes cgroups")
	}
	tree, err := cgroup.Open("/sys/fs/cgroup")
	if err != nil || tree.Require() != nil {
		t.Skipf("needs cgroups: %v, %v", err, tree.Require())
	}
	group := fmt.Sprintf("/plimsoll-limits-%d", os.Getpid())
	if err := tree.Create(group); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := tree.Remove(group); err != nil {
			t.Error(err)
		}
	})
	return tree, group
}

// A limit is lowered while a real process runs: page cache is reclaimed at once, memory in use is waited for, and the
// kernel kills no process.
func TestLimitComesDownUnderARunningProcess(t *testing.T) {
	tree, group := liveGroup(t)
	told := make(chan string, 100)
	l := newLimits(tree, func(s limitState) {
		if s.record {
			told <- fmt.Sprint(s.done, " ", s.reason)
		}
	})
	go func() { _ = l.run(t.Context()) }()
	hear := func(want string) {
		t.Helper()
		select {
		case got := <-told:
			if !strings.HasPrefix(got, want) {
				t.Fatalf("told %q, want %q", got, want)
			}
			t.Log(got)
		case <-time.After(30 * time.Second):
			t.Fatalf("not told %q", want)
		}
	}
	limit := func() unit.Bytes {
		t.Helper()
		seen, err := tree.Memory(group)
		if err != nil {
			t.Fatal(err)
		}
		bytes, _ := seen.Limit.Get()
		return bytes
	}
	lower := func(to unit.Bytes) {
		t.Helper()
		if err := l.lower(group, to); err != nil {
			t.Fatal(err)
		}
	}
	lower(512 * unit.MiB)
	hear("true limit is 512Mi")
	h := startHolder(t, group)
	h.tell("held")
	seen, err := tree.Memory(group)
	if err != nil {
		t.Fatal(err)
	}
	// The program itself uses memory too: 9 to 33 MiB were seen with the race detector, varying between runs.
	program := (seen.Usage-hotBytes-coldBytes)/unit.MiB*unit.MiB + unit.MiB

	target := program + hotBytes + coldBytes/2 // half of the cold memory must be reclaimed
	lower(target)
	hear("false usage")
	hear(fmt.Sprint("true limit is ", target))
	if got := limit(); got != target {
		t.Errorf("limit %v, want %v", got, target)
	}

	target = program + hotBytes/2
	lower(target)
	hear("false usage")
	if tree.Mode() != cgroup.V2 { // v2 would kill; v1 refuses, and the kubelet retries that each minute
		if err := tree.Set(group, qos.Values{Memory: unit.LimitTo(target)}); !errors.Is(err, cgroup.ErrRefused) {
			t.Errorf("the kernel took a limit below what is in use: %v", err)
		}
	}
	if got := limit(); got <= hotBytes {
		t.Errorf("limit %v is below what is in use", got)
	}
	h.tell("freed")
	hear(fmt.Sprint("true limit is ", target))
	if got := limit(); got != target {
		t.Errorf("limit %v, want %v", got, target)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.active) != 0 {
		t.Errorf("still active: %v", l.active)
	}
	if err := h.cmd.Process.Signal(syscall.Signal(0)); err != nil {
		t.Errorf("the process was killed: %v", err)
	}
}
