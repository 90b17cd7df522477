// Package oom says what a kill by the kernel's out-of-memory killer means: whose process it was, whose limit was reached,
// and whether it was the end of a container.
//
// # Model
//
// A Kill is what the kernel said of one killed process (internal/host/kmsg reads it). A Book knows the containers of the
// node as the shell tells it, finds the one that a kill belongs to, and remembers recent kills, so that the end of a
// container, which is heard of later and elsewhere, can be asked about: was that this kill?
//
// A kill belongs to the container that the victim's cgroup names. The kernel rations its long reports (ten in five
// seconds, oom_kill_process in mm/oom_kill.c); of a kill without one, only the process id is known, and the container is
// the one whose first process that was, or the one whose counter of kills (memory.oom_control, memory.events) is ahead of
// the kills that are known of it.
//
// # Invariants
//
//   - The same facts in the same order give the same answers.
//   - A container's end is called OOMKilled only if it was killed by SIGKILL and the kernel said that one of its processes was
//     taken for memory then: its first process, or another whose death it did not survive for a second.
//   - Memory is bounded: kills are forgotten with their container, and beyond killsMax the oldest.
//
// It reads nothing and decides nothing about who should be killed: that is the kernel's choice, by the OOM scores that
// internal/core/qos gives.
package oom

import (
	"cmp"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

// Kill is one process that the kernel killed because memory ran out.
type Kill struct {
	Sequence uint64    // of the kernel's log, since boot
	At       unit.Wall // when it was logged
	PID      int       // as the machine counts
	Command  string    // at most 15 bytes of it
	UID      int       // of its user; negative: not said

	// What it held.
	Anon, File, Shmem unit.Bytes
	PageTables        unit.Amount[unit.Bytes] // absent before Linux 5.4
	Mapped            unit.Bytes              // address space

	Whole bool // killed because its group was, after the process that the kernel chose

	// The rest is only known if there was a report.
	Group      string                  // cgroup of the victim; empty: not known
	LimitGroup string                  // cgroup whose limit was reached; "/" if it was the whole machine's memory
	Used       unit.Amount[unit.Bytes] // of LimitGroup, at that moment
	Limit      unit.Amount[unit.Bytes]
}

// RSS is all that the process held resident.
func (k Kill) RSS() unit.Bytes { return k.Anon + k.File + k.Shmem }

// System reports whether the machine as a whole was out of memory.
func (k Kill) System() bool { return k.LimitGroup == "/" }

// Container is one that runs, or ran a moment ago.
type Container struct {
	ID, Name string
	Pod      string // uid
	PID      int    // of its first process; zero: not known
}

// Verdict is what a kill means.
type Verdict struct {
	Kill
	Container Container // zero: of none that is known
	First     bool      // it was the container's first process: the container is over
	Again     bool      // the kernel said so before, as it does where a whole group is killed
}

// killsMax is how many kills are remembered (chosen: a kill matters until its container's end is read, some milliseconds;
// the kernel reports ten in five seconds). More cost 200 bytes each.
const killsMax = 256

// lastingMax is how long after a kill in it a container may end by SIGKILL and still be called OOMKilled, if it was not its
// first process that was killed: a supervisor that dies with its worker does so at once (chosen; the two clocks are compared
// to the millisecond). A container that lives longer ended of something else.
const lastingMax = time.Second

// Book remembers containers and kills. The zero Book is empty. It is not safe for concurrent use.
type Book struct {
	containers map[string]Container
	kills      []Verdict // oldest first
	counted    map[string]int64
}

// Know tells b of a container, or of its process id.
func (b *Book) Know(c Container) {
	if b.containers == nil {
		b.containers, b.counted = map[string]Container{}, map[string]int64{}
	}
	if old, known := b.containers[c.ID]; known && c.PID == 0 {
		c.PID = old.PID
	}
	b.containers[c.ID] = c
}

// Knows reports whether b was told of a container.
func (b *Book) Knows(id string) bool { _, known := b.containers[id]; return known }

// Kills returns the kills in a container that b knows, oldest first.
func (b *Book) Kills(id string) []Verdict {
	var kills []Verdict
	for _, v := range b.kills {
		if c, known := b.containers[id]; known && v.of(id) {
			v.Container, v.First = c, v.First || c.PID == v.PID
			kills = append(kills, v)
		}
	}
	return kills
}

// Containers returns those that b knows, by id.
func (b *Book) Containers() []Container {
	return slices.SortedFunc(maps.Values(b.containers), func(a, c Container) int { return cmp.Compare(a.ID, c.ID) })
}

// Forget drops a container and its kills.
func (b *Book) Forget(id string) {
	delete(b.containers, id)
	delete(b.counted, id)
	b.kills = slices.DeleteFunc(b.kills, func(v Verdict) bool { return v.of(id) })
}

// of reports whether a process of that container was killed, whether or not the container was known then.
func (v Verdict) of(id string) bool {
	return v.Container.ID == id || slices.ContainsFunc(strings.Split(v.Group, "/"), func(part string) bool { return idIn(part) == id })
}

// Note finds out what a kill means and remembers it. counter reads how many processes of a container the kernel has killed
// so far; it is asked only about kills without a report, and may say that it does not know.
func (b *Book) Note(k Kill, counter func(Container) (int64, bool)) Verdict {
	v := Verdict{Kill: k}
	v.Container, v.First = b.owner(k, counter)
	v.Again = slices.ContainsFunc(b.kills, v.repeats)
	if v.Again {
		return v
	}
	if v.Container.ID != "" {
		b.counted[v.Container.ID]++
	}
	b.kills = append(b.kills, v)
	if len(b.kills) > killsMax {
		b.kills = slices.Delete(b.kills, 0, len(b.kills)-killsMax)
	}
	return v
}

// repeats reports whether v is about a process that the kernel told of before. It walks a group that is killed as a whole in two
// lists, those who live and those who are dying, and names a process whose first thread has gone by another of its threads: such
// a one is known by its address space. Processes that cannot be told apart by that, like a server's workers, pass for one.
func (v Verdict) repeats(old Verdict) bool {
	if v.Command != old.Command || v.At.Sub(old.At) >= lastingMax {
		return false
	}
	together := v.Group == old.Group || v.Container.ID != "" && v.Container.ID == old.Container.ID
	return v.PID == old.PID || v.Whole && together && v.UID == old.UID && v.Mapped == old.Mapped
}

func (b *Book) owner(k Kill, counter func(Container) (int64, bool)) (c Container, first bool) {
	if k.Group != "" {
		for _, part := range strings.Split(k.Group, "/") {
			if c, known := b.containers[idIn(part)]; known {
				return c, c.PID == k.PID
			}
		}
		return Container{}, false
	}
	containers := b.Containers()
	if i := slices.IndexFunc(containers, func(c Container) bool { return c.PID == k.PID && k.PID != 0 }); i >= 0 {
		return containers[i], true
	}
	for _, c := range containers {
		if n, known := counter(c); known && n > b.counted[c.ID] {
			return c, false
		}
	}
	return Container{}, false
}

// idIn is the container id in the name of a cgroup: 0123abcd (driver cgroupfs), cri-containerd-0123abcd.scope or
// crio-0123abcd.scope (driver systemd).
func idIn(name string) string {
	name, scope := strings.CutSuffix(name, ".scope")
	if i := strings.LastIndexByte(name, '-'); scope && i >= 0 {
		return name[i+1:]
	}
	return name
}

// End is the end of a container.
type End struct {
	ID       string
	Code     int32
	Finished unit.Wall
}

// Ended returns the kill that ended a container, and false if none did. Of several, as where a container is killed as a whole,
// it is that of the process that held most, which is the one that the kernel chose.
func (b *Book) Ended(e End) (end Verdict, killed bool) {
	const sigkill = 128 + 9
	if e.Code != sigkill {
		return Verdict{}, false
	}
	at := e.Finished
	var kills []Verdict
	for _, v := range b.kills {
		if !v.of(e.ID) {
			continue
		}
		if c, known := b.containers[e.ID]; known {
			v.Container, v.First = c, v.First || c.PID == v.PID
		}
		if v.First {
			at = v.At
		}
		kills = append(kills, v)
	}
	for _, v := range kills {
		lasted := at.Sub(v.At)
		if lasted > -lastingMax && lasted < lastingMax && (!killed || v.RSS() >= end.RSS()) {
			end, killed = v, true
		}
	}
	return end, killed
}

// Whose limit was reached.
func (v Verdict) reached() string {
	id, pod := v.Container.ID, v.Container.Pod
	base := path.Base(v.LimitGroup)
	switch {
	case v.System():
		return "the memory of the machine"
	case idIn(base) == id && id != "":
		return "the container's limit"
	case pod != "" && (strings.Contains(base, pod) || strings.Contains(base, strings.ReplaceAll(pod, "-", "_"))):
		return "the pod's limit"
	case v.LimitGroup != "":
		return "the limit of cgroup " + v.LimitGroup
	}
	return "a limit that the kernel did not name"
}

// Text says what happened, with the numbers of that moment.
func (v Verdict) Text() string {
	var b strings.Builder
	fmt.Fprintf(&b, "Process %d (%s)", v.PID, cmp.Or(v.Command, "?"))
	switch {
	case v.First:
		fmt.Fprintf(&b, ", the first of container %s,", v.Container.Name)
	case v.Container.ID != "":
		fmt.Fprintf(&b, " of container %s", v.Container.Name)
	}
	fmt.Fprintf(&b, " was killed by the kernel, which was out of memory: it held %s (anonymous %s, files %s, shared %s)", v.RSS(), v.Anon, v.File, v.Shmem)
	used, told := v.Used.Get()
	limit, bounded := v.Limit.Get()
	switch {
	case told && bounded && !v.System():
		fmt.Fprintf(&b, "; %s of %s (%s) were in use", used, v.reached(), limit)
	default:
		fmt.Fprintf(&b, "; %s was used up", v.reached())
	}
	return b.String()
}

// SystemText is upstream's text of the Event SystemOOM.
func (k Kill) SystemText() string {
	text := "System OOM encountered"
	if k.Command != "" && k.PID != 0 {
		text += fmt.Sprintf(", victim process: %s, pid: %d", k.Command, k.PID)
	}
	return text
}
