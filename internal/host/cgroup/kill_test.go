package cgroup

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/plimsoll-dev/plimsoll/internal/core/qos"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
	"github.com/plimsoll-dev/plimsoll/internal/host/epoll"
	"github.com/plimsoll-dev/plimsoll/internal/host/psi"
)

// inside runs a shell script in group, and ends it with the test. The shell waits for a line before it begins, so that
// all of it runs in the group.
func inside(t *testing.T, tree *Tree, group, script string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command("sh", "-c", "read go; "+script)
	begin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		k, _ := tree.Kill(group)
		k.FreeMemory()
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		until(t, "the group is empty", func() bool { pids, err := tree.PIDs(group); return err == nil && len(pids) == 0 })
	})
	for _, h := range tree.hierarchies {
		if h.passive {
			continue
		}
		if err := write(filepath.Join(h.dir, group, procsFile), strconv.Itoa(cmd.Process.Pid)); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := begin.Write([]byte("\n")); err != nil {
		t.Fatal(err)
	}
	return cmd
}

func until(t *testing.T, what string, holds func() bool) {
	t.Helper()
	deadline := time.After(time.Minute)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !holds() {
		select {
		case <-deadline:
			t.Fatalf("%s: not within a minute", what)
		case <-tick.C:
		}
	}
}

func count(tree *Tree, group string) int {
	pids, _ := tree.PIDs(group)
	return len(pids)
}

func TestLiveKillEndsAForkBomb(t *testing.T) {
	tree, root := enterLive(t)
	group := root + "/bomb"
	if err := tree.Apply(group+"/c1", qos.Values{PIDs: unit.LimitTo(int64(500))}); err != nil {
		t.Fatal(err)
	}
	// 127 shells that start others forever and ignore SIGTERM. The limit is for accidents: a shell that cannot fork
	// exits, so a bomb that reaches its limit dies out.
	inside(t, tree, group+"/c1",
		`trap "" TERM; bomb() { if [ $1 -gt 0 ]; then bomb $(($1-1)) & bomb $(($1-1)) & fi; while :; do sleep 0.1; done; }; bomb 6`)
	until(t, "a hundred processes", func() bool { return count(tree, group) >= 100 })
	k, err := tree.Kill(group)
	t.Logf("%d processes by %s in %v, of them released %d", k.Processes, k.How, k.Signalled, k.FreeMemory())
	if err != nil {
		t.Fatal(err)
	}
	until(t, "none is left", func() bool { return count(tree, group) == 0 })
	if k.Processes < 100 || k.Signalled <= 0 {
		t.Errorf("killed %d processes in %v", k.Processes, k.Signalled)
	}
}

func TestKillWhatIsGone(t *testing.T) {
	tree, root := enterLive(t)
	if k, err := tree.Kill(root + "/never"); err != nil || k.Processes != 0 {
		t.Errorf("a group that is gone: %+v, %v", k, err)
	}
	if _, err := tree.Kill("/"); err == nil {
		t.Error("the root group was killed")
	}
	if err := tree.Reclaim(root, 1<<20); tree.Mode() != V2 && !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("reclaim on v1: %v", err)
	}
	if _, err := tree.Footprint(root + "/never"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("footprint of a group that is gone: %v", err)
	}
}

func TestLiveThresholdNotifies(t *testing.T) {
	tree, root := enterLive(t)
	if tree.Mode() == V2 {
		t.Skip("v2 has no thresholds: memory.events and pressure ring at the limit only")
	}
	group := root + "/grower"
	if err := tree.Apply(group, qos.Values{Memory: unit.LimitTo(64 * unit.MiB)}); err != nil {
		t.Fatal(err)
	}
	sources, err := tree.MemoryNotifications(group, []unit.Bytes{24 * unit.MiB},
		psi.Threshold{Stall: 50 * time.Millisecond, Window: 2 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	c, err := epoll.New()
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for _, s := range sources {
		if err := c.Add(s); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := c.Wait(0); err != nil {
		t.Fatal(err)
	}
	before, err := tree.Footprint(group)
	if err != nil {
		t.Fatal(err)
	}
	// tail keeps everything up to the first newline.
	inside(t, tree, group, "head -c 32000000 /dev/zero | tail | sleep 100")
	rang, err := c.Wait(time.Minute)
	if err != nil || len(rang) == 0 || !strings.Contains(strings.Join(rang, " "), "memory.usage_in_bytes") {
		t.Fatalf("rang %v, %v", rang, err)
	}
	after, err := tree.Footprint(group)
	if err != nil || after.Charged <= before.Charged || after.WorkingSet > after.Charged ||
		after.Cache > after.WorkingSet {
		t.Errorf("footprint %+v, then %+v, %v", before, after, err)
	}
}

// watch returns a Waiter with a group's notifications, none of which is pending.
func watch(t *testing.T, tree *Tree, group string) *epoll.Waiter {
	t.Helper()
	sources, err := tree.MemoryNotifications(group, nil, psi.Threshold{Stall: 20 * time.Millisecond,
		Window: 500 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	c, err := epoll.New()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	for _, s := range sources {
		if err := c.Add(s); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := c.Wait(0); err != nil {
		t.Fatal(err)
	}
	return c
}

// On v2 the kernel notifies at the limit, which a program reaches without harm by writing to a file.
func TestLiveLimitNotifies(t *testing.T) {
	tree, root := enterLive(t)
	if tree.Mode() != V2 {
		t.Skip("v1 has thresholds")
	}
	group := root + "/writer"
	if err := tree.Apply(group, qos.Values{Memory: unit.LimitTo(32 * unit.MiB)}); err != nil {
		t.Fatal(err)
	}
	c := watch(t, tree, group)
	inside(t, tree, group, "head -c 64000000 /dev/zero > "+filepath.Join(t.TempDir(), "file")+"; sleep 100")
	deadline := time.Now().Add(time.Minute)
	for rang := ""; !strings.Contains(rang, "memory.events"); {
		names, err := c.Wait(time.Until(deadline))
		if err != nil || len(names) == 0 {
			t.Fatalf("rang %q, %v", rang, err)
		}
		rang += strings.Join(names, " ") + " "
		t.Log(rang)
	}
}

// Page cache is reclaimed when the kernel is asked to, and no process is harmed.
func TestLiveReclaim(t *testing.T) {
	tree, root := enterLive(t)
	if tree.Mode() != V2 {
		t.Skip("v1 has no memory.reclaim")
	}
	group := root + "/cached"
	if err := tree.Apply(group, qos.Values{}); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "file")
	cmd := inside(t, tree, group, "head -c 48000000 /dev/zero > "+file+"; sync "+file+"; echo > "+file+
		".done; exec sleep 100")
	until(t, "it has written", func() bool { _, err := os.Stat(file + ".done"); return err == nil })
	before, err := tree.Footprint(group)
	if err != nil || before.Charged < 40*unit.MiB {
		t.Fatalf("%+v, %v", before, err)
	}
	if err := tree.Reclaim(group, int64(32*unit.MiB)); err != nil && !errors.Is(err, ErrRefused) {
		t.Fatal(err)
	}
	after, err := tree.Footprint(group)
	if err != nil || after.Charged > before.Charged-24*unit.MiB {
		t.Errorf("%+v, before %+v, %v", after, before, err)
	}
	if err := cmd.Process.Signal(syscall.Signal(0)); err != nil {
		t.Errorf("the process: %v", err)
	}
}

// If a killed process cannot end yet because it is frozen (a paused container), its memory is still freed.
func TestLiveFreeMemoryOfFrozenProcesses(t *testing.T) {
	tree, root := enterLive(t)
	if tree.Mode() == V2 {
		t.Skip("on v2 what is frozen dies when it is killed")
	}
	group := root + "/frozen"
	if err := tree.Apply(group, qos.Values{Memory: unit.LimitTo(256 * unit.MiB)}); err != nil {
		t.Fatal(err)
	}
	const held = 64_000_000
	// tail keeps everything up to the first newline
	inside(t, tree, group, "head -c 64000000 /dev/zero | tail | sleep 100")
	charged := func() unit.Bytes {
		f, err := tree.Footprint(group)
		if err != nil {
			t.Fatal(err)
		}
		return f.Charged
	}
	until(t, "tail holds its input", func() bool { return charged() > held })
	freezer := tree.freezer(group)
	if freezer == nil {
		t.Fatalf("%s cannot be frozen", group)
	}
	freezer.set(true)
	defer freezer.set(false)
	_, dying, err := tree.signalAll(group, map[int]bool{})
	if err != nil {
		t.Fatal(err)
	}
	pids, before := count(tree, group), charged()
	released := Killing{dying: dying}.FreeMemory()
	if after := charged(); released == 0 || after > before/4 || count(tree, group) != pids {
		t.Errorf("%d of %d processes released; the group had %v, has %v and %d processes", released, pids, before, after,
			count(tree, group))
	}
}
