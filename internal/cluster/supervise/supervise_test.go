package supervise

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// The test binary is also the children's program, and a supervisor that is killed; the variable testRole selects the
// role.
const testRole = "PLIMSOLL_SUPERVISE_TEST"

func TestMain(m *testing.M) {
	switch role := os.Getenv(testRole); role {
	case "":
		os.Exit(m.Run())
	case "polite": // ends on SIGTERM with 0
		terminated := make(chan os.Signal, 1)
		signal.Notify(terminated, syscall.SIGTERM)
		fmt.Println("ready")
		<-terminated
	case "user": // ends on SIGUSR1 with 0, and ignores SIGTERM
		asked := make(chan os.Signal, 1)
		signal.Notify(asked, syscall.SIGUSR1)
		signal.Ignore(syscall.SIGTERM)
		fmt.Println("ready")
		<-asked
	case "stubborn": // has to be killed
		ignored := make(chan os.Signal, 1)
		signal.Notify(ignored, syscall.SIGTERM)
		fmt.Println("ready")
		for range ignored { // a channel nobody closes
		}
	case "supervisor":
		runVictim(os.Args[1])
	default: // a number: the exit code
		code, _ := strconv.Atoi(role)
		os.Exit(code)
	}
}

// runVictim supervises one child until it is killed.
func runVictim(dir string) {
	s, err := Open(Options{Record: filepath.Join(dir, "record"), Owner: dir})
	if err == nil {
		_, err = s.Apply(context.Background(), childSpec(dir, "a", "polite"))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Println("up")
	select {}
}

func childSpec(dir, name, role string, args ...string) Spec {
	self, err := os.Executable()
	if err != nil {
		panic(err)
	}
	return Spec{Name: name, Argv: append([]string{self}, args...), Env: []string{testRole + "=" + role}, Dir: dir,
		Log: filepath.Join(dir, name+".log"), Grace: 5 * time.Second}
}

// bench is a supervisor in a fresh directory whose notices a test can await.
type bench struct {
	*Supervisor
	t       *testing.T
	dir     string
	changes chan Status
}

func open(t *testing.T, dir string, b Backoff) *bench {
	t.Helper()
	x := &bench{t: t, dir: dir, changes: make(chan Status, 1000)}
	var err error
	x.Supervisor, err = Open(Options{Record: filepath.Join(dir, "record"), Owner: dir, Backoff: b,
		Notice: func(s Status) { x.changes <- s }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, s := range x.Status() {
			x.Stop(context.Background(), s.Name, 0)
		}
	})
	return x
}

func (x *bench) apply(spec Spec) (adopted bool) {
	x.t.Helper()
	adopted, err := x.Apply(x.t.Context(), spec)
	if err != nil {
		x.t.Fatal(err)
	}
	return adopted
}

// await returns the first status that is as wanted.
func (x *bench) await(what string, wanted func(Status) bool) Status {
	x.t.Helper()
	timeout := time.After(20 * time.Second)
	for {
		select {
		case s := <-x.changes:
			if wanted(s) {
				return s
			}
		case <-timeout:
			x.t.Fatalf("no change to %s; now %+v", what, x.Status())
		}
	}
}

func (x *bench) pid(name string) int {
	for _, s := range x.Status() {
		if s.Name == name {
			return s.PID
		}
	}
	return 0
}

// awaitLog returns when a child has printed text.
func awaitLog(t *testing.T, path, text string) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	timeout := time.After(20 * time.Second)
	for {
		if content, err := os.ReadFile(path); err == nil && strings.Contains(string(content), text) {
			return
		}
		select {
		case <-tick.C:
		case <-timeout:
			t.Fatalf("%s never held %q", path, text)
		}
	}
}

func running(s Status) bool { return s.PID != 0 }

func TestRestart(t *testing.T) {
	x := open(t, t.TempDir(), Backoff{})
	if x.apply(childSpec(x.dir, "a", "polite")) {
		t.Fatal("adopted a child that never ran")
	}
	first := x.await("running", running).PID
	if err := unix.Kill(first, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if died := x.await("dead", func(s Status) bool { return s.PID == 0 }); died.LastExit != "killed by SIGKILL" {
		t.Errorf("last exit %q", died.LastExit)
	}
	second := x.await("running again", running)
	if second.PID == first || second.Restarts != 1 {
		t.Errorf("restarted as %+v, first was %d", second, first)
	}
}

// A child that cannot run is restarted after growing pauses, never in a tight loop.
func TestBackoff(t *testing.T) {
	b := Backoff{First: 200 * time.Millisecond, Max: 3 * time.Second, Steady: time.Minute}
	var got []time.Duration
	for n := range 8 {
		got = append(got, b.pause(n))
	}
	ms := time.Millisecond
	want := []time.Duration{0, 0, 200 * ms, 400 * ms, 800 * ms, 1600 * ms, 3000 * ms, 3000 * ms}
	if !slices.Equal(got, want) {
		t.Errorf("pauses %v, want %v", got, want)
	}
	x := open(t, t.TempDir(), Backoff{First: time.Hour, Max: time.Hour, Steady: time.Hour})
	x.apply(childSpec(x.dir, "a", "7"))
	x.await("second death", func(s Status) bool { return s.PID == 0 && s.Restarts == 1 && s.LastExit == "exit code 7" })
	x.Stop(t.Context(), "a", time.Hour) // it must not wait for the next restart
}

// A child that runs long enough has recovered.
func TestBackoffResets(t *testing.T) {
	x := open(t, t.TempDir(), Backoff{First: time.Hour, Max: time.Hour, Steady: time.Nanosecond})
	x.apply(childSpec(x.dir, "a", "7"))
	x.await("fourth start", func(s Status) bool { return s.Restarts >= 4 })
}

// SIGKILL to the supervisor must not affect its child. The next supervisor adopts the child, with or without the
// record.
func TestAdoptAfterSupervisorIsKilled(t *testing.T) {
	for _, c := range []struct {
		what  string
		spoil func(t *testing.T, record string)
	}{
		{"with its record", func(*testing.T, string) {}},
		{"killed between starting and recording", func(t *testing.T, record string) {
			if err := os.Remove(record); err != nil {
				t.Fatal(err)
			}
		}},
		{"with a damaged record", func(t *testing.T, record string) {
			if err := os.WriteFile(record, []byte(`{"bootID": "`), 0o600); err != nil {
				t.Fatal(err)
			}
		}},
	} {
		t.Run(c.what, func(t *testing.T) {
			dir := t.TempDir()
			first := startAndKillSupervisor(t, dir)
			c.spoil(t, filepath.Join(dir, "record"))

			x := open(t, dir, Backoff{})
			if got := x.Survivors(); !slices.Equal(got, []string{"a"}) {
				t.Fatalf("survivors %v", got)
			}
			if !slices.Equal(x.Pids(), []int{first}) {
				t.Errorf("pids %v, want %d", x.Pids(), first)
			}
			if !x.apply(childSpec(dir, "a", "polite")) || x.pid("a") != first {
				t.Fatalf("runs as %d, want the survivor %d adopted", x.pid("a"), first)
			}
			// An adopted child is supervised: it is restarted when it dies, although it is not a child process of this
			// supervisor.
			if err := unix.Kill(first, unix.SIGKILL); err != nil {
				t.Fatal(err)
			}
			if s := x.await("restarted", func(s Status) bool { return s.PID != 0 && s.PID != first }); s.Restarts != 1 {
				t.Errorf("restarts %d, want 1", s.Restarts)
			}
		})
	}
}

// startAndKillSupervisor returns the pid of the child that a killed supervisor left.
func startAndKillSupervisor(t *testing.T, dir string) int {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self, dir)
	cmd.Env = []string{testRole + "=supervisor"}
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if !bufio.NewScanner(out).Scan() {
		t.Fatal("the supervisor did not come up")
	}
	awaitLog(t, filepath.Join(dir, "a.log"), "ready")
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // killed
	status, err := Read(filepath.Join(dir, "record"))
	if err != nil || len(status) != 1 || status[0].PID == 0 {
		t.Fatalf("after the supervisor's death: %+v, %v, want the child running", status, err)
	}
	return status[0].PID
}

// If the spec of a child has changed, the survivor is replaced, and there are never two.
func TestChangedChildIsReplaced(t *testing.T) {
	for _, c := range []struct {
		what   string
		change func(*Spec)
	}{
		{"argument", func(s *Spec) { s.Argv = append(s.Argv, "--more") }},
		{"environment", func(s *Spec) { s.Env = append(s.Env, "A=b") }},
		{"input", func(s *Spec) {
			if err := os.WriteFile(s.Inputs[0], []byte("two"), 0o600); err != nil {
				t.Fatal(err)
			}
		}},
	} {
		t.Run(c.what, func(t *testing.T) {
			x := open(t, t.TempDir(), Backoff{})
			spec := childSpec(x.dir, "a", "polite")
			spec.Inputs = []string{filepath.Join(x.dir, "config")}
			if err := os.WriteFile(spec.Inputs[0], []byte("one"), 0o600); err != nil {
				t.Fatal(err)
			}
			x.apply(spec)
			first := x.pid("a")
			if !x.apply(spec) || x.pid("a") != first {
				t.Fatal("an unchanged child was replaced")
			}
			x.Leave()

			c.change(&spec)
			y := open(t, x.dir, Backoff{})
			if y.apply(spec) {
				t.Fatal("adopted a child that runs otherwise than it should")
			}
			if second := y.pid("a"); second == first || second == 0 {
				t.Errorf("runs as %d, first was %d", second, first)
			}
			if _, err := readStartTicks(first); err == nil {
				t.Errorf("process %d still runs", first)
			}
		})
	}
}

// If the pid in the record now belongs to another process, that process is neither adopted nor signalled.
func TestPidReuse(t *testing.T) {
	dir := t.TempDir()
	stranger := exec.Command("sleep", "60")
	if err := stranger.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = stranger.Process.Kill(), stranger.Wait() })
	ticks, err := readStartTicks(stranger.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	bootID, err := readBootID()
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		what string
		boot string
		row  row
	}{
		{"another start time", bootID, row{Name: "a", PID: stranger.Process.Pid, StartTicks: ticks - 1}},
		{"another boot", "11111111-2222-3333-4444-555555555555", row{Name: "a", PID: stranger.Process.Pid,
			StartTicks: ticks}},
	} {
		text, err := json.Marshal(record{BootID: c.boot, Children: []row{c.row}})
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, "record"), text, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
		if status, err := Read(filepath.Join(dir, "record")); err != nil || status[0].PID != 0 {
			t.Errorf("%s: status %+v, %v calls the stranger our child", c.what, status, err)
		}
		x := open(t, dir, Backoff{})
		if got := x.Survivors(); len(got) != 0 {
			t.Errorf("%s: survivors %v", c.what, got)
		}
		x.apply(childSpec(dir, "a", "polite"))
		x.Stop(t.Context(), "a", time.Second)
	}
	if _, err := readStartTicks(stranger.Process.Pid); err != nil {
		t.Errorf("the stranger was harmed: %v", err)
	}
}

// A process that inherits a child's environment is not that child.
func TestMarkIsNotInherited(t *testing.T) {
	dir := t.TempDir()
	spec := childSpec(dir, "a", "polite")
	m := mark{name: "a", digest: "d", argv: hashArgv(spec.Argv)}
	heir := exec.Command("sleep", "60")
	heir.Env = []string{m.variable(dir)}
	if err := heir.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = heir.Process.Kill(), heir.Wait() })
	if x := open(t, dir, Backoff{}); len(x.Survivors()) != 0 {
		t.Errorf("took pid %d for a child", heir.Process.Pid)
	}
}

func TestStopIsPatientThenFirm(t *testing.T) {
	x := open(t, t.TempDir(), Backoff{})
	for _, role := range []string{"polite", "stubborn"} {
		spec := childSpec(x.dir, role, role)
		x.apply(spec)
		awaitLog(t, spec.Log, "ready")
	}
	x.Stop(t.Context(), "polite", time.Hour) // returns as soon as it has ended
	began := time.Now()
	x.Stop(t.Context(), "stubborn", 50*time.Millisecond)
	if took := time.Since(began); took < 50*time.Millisecond {
		t.Errorf("killed after %v, before its grace was over", took)
	}
	if left := x.Status(); len(left) != 0 {
		t.Errorf("still known: %+v", left)
	}
	x.Stop(t.Context(), "never-was", time.Hour)
}

// A released child is not restarted, but it is still known, and can be stopped or adopted again.
func TestRelease(t *testing.T) {
	x := open(t, t.TempDir(), Backoff{})
	spec := childSpec(x.dir, "a", "polite")
	x.apply(spec)
	first := x.pid("a")
	x.Release("a")
	if !slices.Equal(x.Survivors(), []string{"a"}) {
		t.Fatalf("survivors %v", x.Survivors())
	}
	if !x.apply(spec) || x.pid("a") != first {
		t.Fatal("the released child was not taken back")
	}
	x.Release("a")
	x.Release("never-was")
	x.Stop(t.Context(), "a", 5*time.Second)
	if _, err := readStartTicks(first); err == nil {
		t.Error("still runs")
	}
}

// A cancelled stop kills at once.
func TestStopHurriesWhenCancelled(t *testing.T) {
	x := open(t, t.TempDir(), Backoff{})
	spec := childSpec(x.dir, "a", "stubborn")
	x.apply(spec)
	awaitLog(t, spec.Log, "ready")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	x.Stop(ctx, "a", time.Hour)
}

func TestApplyRefuses(t *testing.T) {
	x := open(t, t.TempDir(), Backoff{})
	for _, spec := range []Spec{
		{Name: "a"},
		{Name: "a", Argv: []string{"relative/path"}},
		{Name: "a", Argv: []string{"/no/such/program"}},
		{Name: "a", Argv: []string{"/bin/true"}, Inputs: []string{"/no/such/input"}},
		{Name: "a", Argv: []string{"/bin/true"}, Log: "/no/such/directory/log"},
	} {
		if _, err := x.Apply(t.Context(), spec); err == nil || !strings.HasPrefix(err.Error(), "start a: ") {
			t.Errorf("%+v: error %v", spec, err)
		}
	}
}
