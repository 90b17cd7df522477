package cgroup

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// Killing is what Kill did.
type Killing struct {
	How       string        // cgroup.kill, or one by one: signals, freezer
	Processes int           // that were killed, as far as they were seen
	Signalled time.Duration // from the call until SIGKILL was on its way to everything that was there

	dying pinned
}

// Release frees memory of those that die, on the caller's own time (process_mrelease(2), Linux 5.15): they may have to wait for
// their next turn on a CPU, or for a quota, before they can do so themselves. It takes as long as freeing takes. Where the
// kernel cannot, or nothing is left to free, it does nothing. It returns of how many it did. To be called once
// after every Kill.
func (k Killing) Release() (processes int) {
	for _, fd := range k.dying {
		if _, _, errno := unix.Syscall(unix.SYS_PROCESS_MRELEASE, uintptr(fd), 0, 0); errno == 0 {
			processes++
		}
	}
	k.dying.close()
	return processes
}

// killRounds bounds the rounds of killing one by one. Each ends all that was there at its beginning, so that a second finds
// only what was forked in between; with the freezer nothing can be. Chosen: a fork bomb of a thousand processes took 2.
const killRounds = 50

// Kill sends SIGKILL to every process of group and of the groups below it, and to those that they fork meanwhile. It does not
// wait for them to end: a process in the kernel ends when it leaves it. A group that is gone has nothing to kill.
//
// On v2 the kernel does it in one step (cgroup.kill, Linux 5.14). Elsewhere everything is signalled one by one, first as it
// is, because that is soonest; then, frozen, what was forked since. A process is killed only if it is in the group after its
// pidfd was opened, so that a reused pid harms nobody.
func (t *Tree) Kill(group string) (Killing, error) {
	if err := check(group); err != nil {
		return Killing{}, fmt.Errorf("kill: %w", err)
	}
	begun := time.Now()
	k, err := t.kill(group, begun)
	if err != nil {
		return k, fmt.Errorf("kill cgroup %s: %w", group, err)
	}
	return k, nil
}

func (t *Tree) kill(group string, begun time.Time) (Killing, error) {
	if t.mode != V2 {
		return t.killEach(group, begun)
	}
	pids, err := t.PIDs(group)
	if err != nil {
		return Killing{}, err
	}
	seen, err := t.pin(group, pids[:min(len(pids), pinMax)])
	if err == nil {
		err = write(filepath.Join(t.mount, group, "cgroup.kill"), "1")
	}
	if err == nil {
		return Killing{"cgroup.kill", len(pids), time.Since(begun), seen}, nil
	}
	seen.close()
	if !errors.Is(err, os.ErrNotExist) && !errors.Is(err, unix.ENODEV) {
		return Killing{}, err
	}
	return t.killEach(group, begun) // the kernel is older, or the group is gone
}

// killEach signals processes one by one until a look at the frozen group finds none that was not.
func (t *Tree) killEach(group string, begun time.Time) (Killing, error) {
	freezer := t.freezer(group)
	k := Killing{How: "signals"}
	signalled := map[int]bool{}
	for round := range killRounds {
		if round > 0 && freezer != nil {
			k.How = "freezer"
			freezer.set(true)
		}
		fresh, seen, err := t.signalAll(group, signalled)
		if freezer != nil && round > 0 {
			freezer.set(false) // nothing dies while it is frozen
		}
		if round == 0 {
			k.dying, k.Signalled = seen, time.Since(begun)
		} else {
			seen.close()
		}
		k.Processes = len(signalled)
		if err != nil || fresh == 0 {
			return k, err
		}
	}
	return k, fmt.Errorf("processes are forked faster than they are killed: %d were killed in %d rounds", k.Processes, killRounds)
}

// signalAll kills everything that is in group now, and counts what was not killed before. The first of them stay pinned.
func (t *Tree) signalAll(group string, signalled map[int]bool) (fresh int, first pinned, err error) {
	pids, err := t.PIDs(group)
	for part := range slices.Chunk(pids, pinMax) {
		pins, perr := t.pin(group, part)
		err = errors.Join(err, perr)
		for pid, fd := range pins {
			if !signalled[pid] {
				fresh++
			}
			signalled[pid] = true
			if e := unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0); e != nil && !errors.Is(e, unix.ESRCH) {
				err = errors.Join(err, fmt.Errorf("process %d: %w", pid, e))
			}
		}
		if first == nil {
			first = pins
		} else {
			pins.close()
		}
	}
	return fresh, first, err
}

// freezerFile stops and wakes a group.
type freezerFile struct{ path, frozen, thawed string }

// freezer is nil where the group cannot be frozen.
func (t *Tree) freezer(group string) *freezerFile {
	f := &freezerFile{filepath.Join(t.mount, group, "cgroup.freeze"), "1", "0"}
	if t.mode != V2 {
		if t.of["freezer"] == nil {
			return nil
		}
		f = &freezerFile{filepath.Join(t.dirOf("freezer", group), "freezer.state"), "FROZEN", "THAWED"}
	}
	if _, err := os.Stat(f.path); err != nil {
		return nil
	}
	return f
}

// set does what it can: without it the next round looks again.
func (f *freezerFile) set(frozen bool) {
	to := f.thawed
	if frozen {
		to = f.frozen
	}
	_ = write(f.path, to)
}

// pinned are processes by pid, with their pidfds.
type pinned map[int]int

// pinMax bounds how many processes are pinned at once, well below a process's limit of open files (1,024 by default).
const pinMax = 500

// pin opens those of pids that are in group afterwards, too.
func (t *Tree) pin(group string, pids []int) (pinned, error) {
	if len(pids) == 0 {
		return nil, nil
	}
	found := pinned{}
	for _, pid := range pids {
		if fd, err := unix.PidfdOpen(pid, 0); err == nil {
			found[pid] = fd
		} // else it has ended
	}
	again, err := t.PIDs(group)
	for pid, fd := range found {
		if _, here := slices.BinarySearch(again, pid); !here {
			unix.Close(fd)
			delete(found, pid)
		}
	}
	return found, err
}

func (p pinned) close() {
	for _, fd := range p {
		unix.Close(fd)
	}
}

// Reclaim asks the kernel to free about bytes of group's memory without killing anything: page cache first, anonymous memory
// where there is swap (memory.reclaim, v2, Linux 5.19). It returns when that is done or cannot be, ErrRefused then; the time it
// takes is the kernel's, milliseconds for what is clean.
func (t *Tree) Reclaim(group string, bytes int64) error {
	if err := check(group); err != nil {
		return fmt.Errorf("reclaim: %w", err)
	}
	if t.mode != V2 {
		return fmt.Errorf("reclaim memory of cgroup %s: %w: cgroup v1 has no memory.reclaim", group, errors.ErrUnsupported)
	}
	err := write(filepath.Join(t.mount, group, "memory.reclaim"), strconv.FormatInt(bytes, 10))
	switch {
	case errors.Is(err, unix.EAGAIN):
		return fmt.Errorf("reclaim %d bytes of cgroup %s: %w: less could be freed", bytes, group, ErrRefused)
	case errors.Is(err, os.ErrNotExist):
		return fmt.Errorf("reclaim memory of cgroup %s: %w: %w", group, errors.ErrUnsupported, err)
	case err != nil:
		return fmt.Errorf("reclaim memory of cgroup %s: %w", group, err)
	}
	return nil
}
