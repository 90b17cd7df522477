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

// Killing is the result of Kill.
type Killing struct {
	How       string        // "cgroup.kill"; if processes were killed one by one, "signals" or "freezer"
	Processes int           // how many were killed, as far as they were seen
	Signalled time.Duration // from the call until SIGKILL was sent to all processes of the group

	dying pinned
}

// FreeMemory frees the memory of the dying processes in the caller's thread (process_mrelease(2), Linux 5.15). The
// processes themselves may have to wait for a CPU, or for their quota, before they can free it. FreeMemory takes as
// long as freeing takes. If the kernel does not support it, or nothing is left to free, it does nothing. It returns how
// many processes' memory it freed. It must be called once after every Kill.
func (k Killing) FreeMemory() (processes int) {
	for _, fd := range k.dying {
		if _, _, errno := unix.Syscall(unix.SYS_PROCESS_MRELEASE, uintptr(fd), 0, 0); errno == 0 {
			processes++
		}
	}
	k.dying.close()
	return processes
}

// killRounds bounds the rounds of killing one by one. Each round kills all processes that existed at its beginning, so
// that a second round finds only those that were forked in between; with the freezer there are none. Chosen: a fork
// bomb of a thousand processes took two rounds.
const killRounds = 50

// Kill sends SIGKILL to every process of group and of the groups below it, and to those that they fork meanwhile. It
// does not wait for their end: a process in the kernel ends when it leaves the kernel. If the group does not exist,
// nothing is to be done.
//
// On v2 the kernel does it in one step (cgroup.kill, Linux 5.14). Elsewhere the processes are signalled one by one. The
// first round does not freeze the group, because that is fastest. Then the group is frozen, and those that were forked
// since are signalled. A process is killed only if it is in the group after its pidfd was opened, so that a reused PID
// harms no other process.
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
		return Killing{How: "cgroup.kill", Processes: len(pids), Signalled: time.Since(begun), dying: seen}, nil
	}
	seen.close()
	if !errors.Is(err, os.ErrNotExist) && !errors.Is(err, unix.ENODEV) {
		return Killing{}, err
	}
	return t.killEach(group, begun) // the kernel has no cgroup.kill, or the group was removed
}

// killEach signals processes one by one until a round over the frozen group finds none that was not signalled.
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
	return k, fmt.Errorf("processes are forked faster than they are killed: %d were killed in %d rounds", k.Processes,
		killRounds)
}

// signalAll signals all processes of group, and counts those that were not signalled before. first are the first of
// these, still pinned.
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

// freezerFile freezes and thaws a group.
type freezerFile struct{ path, frozen, thawed string }

// freezer returns nil if the group cannot be frozen.
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

// set ignores errors: the next round checks again.
func (f *freezerFile) set(frozen bool) {
	to := f.thawed
	if frozen {
		to = f.frozen
	}
	_ = write(f.path, to)
}

// pinned are processes by PID, with their pidfds.
type pinned map[int]int

// pinMax bounds how many processes are pinned at once, far below a process's limit of open files (1,024 by default).
const pinMax = 500

// pin opens those of pids that are still in group afterwards.
func (t *Tree) pin(group string, pids []int) (pinned, error) {
	if len(pids) == 0 {
		return nil, nil
	}
	found := pinned{}
	for _, pid := range pids {
		if fd, err := unix.PidfdOpen(pid, 0); err == nil {
			found[pid] = fd
		} // otherwise it has ended
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

// Reclaim asks the kernel to free about bytes of group's memory without killing: page cache first, and anonymous memory
// if there is swap (memory.reclaim, v2, Linux 5.19). It returns when that is done, or ErrRefused if the kernel could
// free less. How long it takes depends on the kernel; clean pages take milliseconds.
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
