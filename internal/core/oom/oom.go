// Package oom interprets kills by the kernel's out-of-memory killer: to which container the process belonged, which
// limit was reached, and whether the kill was the end of the container.
//
// # Model
//
// A Kill is what the kernel logged about one killed process (internal/host/kmsg reads it). A State knows the containers
// of the node from the shell, finds the container that a kill belongs to, and remembers recent kills. The end of a
// container is observed later and from another source. Ended answers whether a kill caused it.
//
// A kill belongs to the container that the victim's cgroup names. The kernel limits the rate of its long reports (ten
// in five seconds, oom_kill_process in mm/oom_kill.c). Without a report only the process id is known. Then the kill
// belongs to the container whose first process had that id, or otherwise to the container whose counter of kills
// (memory.oom_control, memory.events) is higher than the number of kills known for it.
//
// # Invariants
//
//   - The same facts in the same order give the same answers.
//   - The end of a container is called OOMKilled only if it was killed by SIGKILL and the kernel logged a kill of one
//     of its processes at that time: of its first process, or of another one less than a second before the container's
//     end.
//   - Memory is limited: kills are dropped together with their container, and beyond killsMax the oldest are dropped.
//
// # What it does not do
//
// It reads nothing, and does not decide which process is killed: the kernel does, by the OOM scores from
// internal/core/qos.
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
	Sequence uint64    // number in the kernel's log, since boot
	At       unit.Wall // when it was logged
	PID      int       // in the machine's PID namespace
	Command  string    // at most the first 15 bytes
	UID      int       // of the process's user; negative: not known

	// Memory that the process had.
	Anon, File, Shmem unit.Bytes
	PageTables        unit.Amount[unit.Bytes] // absent before Linux 5.4
	Mapped            unit.Bytes              // size of its address space

	Whole string // the cgroup that was killed as a whole after the process that the kernel chose; empty: it chose this

	// The fields below are only known if there was a report.
	Group      string                  // cgroup of the victim; empty: not known
	LimitGroup string                  // cgroup whose limit was reached; "/" if the machine was out of memory
	Used       unit.Amount[unit.Bytes] // memory in use in LimitGroup at that moment
	Limit      unit.Amount[unit.Bytes]
}

// RSS is all resident memory of the process.
func (k Kill) RSS() unit.Bytes { return k.Anon + k.File + k.Shmem }

// In returns the kill of a process that was found in a group. If that is outside of the group that was killed as a
// whole, the report was about another kill.
func (k Kill) In(group string) Kill {
	if k.Whole != "" && group != k.Whole && !strings.HasPrefix(group, k.Whole+"/") {
		k.Whole, k.LimitGroup = "", ""
		k.Used, k.Limit = unit.Amount[unit.Bytes]{}, unit.Amount[unit.Bytes]{}
	}
	k.Group = group
	return k
}

// System reports whether the machine was out of memory, and not only a cgroup.
func (k Kill) System() bool { return k.LimitGroup == "/" }

// Container is a container that runs, or ran a moment ago.
type Container struct {
	ID, Name string
	Pod      string // UID of its pod
	PID      int    // of its first process; zero: not known
}

// Verdict is the interpretation of a kill.
type Verdict struct {
	Kill
	Container Container // zero: the kill belongs to no known container
	First     bool      // the process was the container's first: the container has ended
	Again     bool      // the kernel logged this process before, as it does when a whole group is killed
}

// killsMax is how many kills are remembered. Chosen: a kill is needed until its container's end is observed, some
// milliseconds later, and the kernel reports ten in five seconds. Each costs 200 bytes.
const killsMax = 256

// lastingMax is how long after a kill a container may end by SIGKILL and still be called OOMKilled, if the killed
// process was not its first. Chosen: a supervisor that dies with its worker does so at once, and the two clocks agree
// to the millisecond. A container that lives longer ended for another reason.
const lastingMax = time.Second

// State remembers containers and kills. The zero State is empty. It is not safe for concurrent use. Only AddContainer,
// DropContainer and AddKill change it.
type State struct {
	containers map[string]Container // by id
	kills      []Verdict            // oldest first
	counted    map[string]int64     // by container id: number of kills known
}

// AddContainer adds a container, or updates its process id.
func (s *State) AddContainer(c Container) {
	if s.containers == nil {
		s.containers, s.counted = map[string]Container{}, map[string]int64{}
	}
	if old, known := s.containers[c.ID]; known && c.PID == 0 {
		c.PID = old.PID
	}
	s.containers[c.ID] = c
}

// HasContainer reports whether a container was added.
func (s *State) HasContainer(id string) bool { _, known := s.containers[id]; return known }

// Kills returns the kills in a known container, oldest first.
func (s *State) Kills(id string) []Verdict {
	var kills []Verdict
	for _, v := range s.kills {
		if c, known := s.containers[id]; known && v.of(id) {
			v.Container, v.First = c, v.First || c.PID == v.PID
			kills = append(kills, v)
		}
	}
	return kills
}

// Containers returns the known containers, sorted by id.
func (s *State) Containers() []Container {
	return slices.SortedFunc(maps.Values(s.containers), func(a, c Container) int { return cmp.Compare(a.ID, c.ID) })
}

// DropContainer drops a container and its kills.
func (s *State) DropContainer(id string) {
	delete(s.containers, id)
	delete(s.counted, id)
	s.kills = slices.DeleteFunc(s.kills, func(v Verdict) bool { return v.of(id) })
}

// of reports whether the killed process belonged to that container, also if the container was not known at that time.
func (v Verdict) of(id string) bool {
	return v.Container.ID == id || slices.ContainsFunc(strings.Split(v.Group, "/"), func(part string) bool {
		return idIn(part) == id
	})
}

// AddKill interprets a kill and remembers it. counter returns how many processes of a container the kernel has killed
// so far, or false if that is not known. It is called only for kills without a report.
func (s *State) AddKill(k Kill, counter func(Container) (int64, bool)) Verdict {
	v := Verdict{Kill: k}
	v.Container, v.First = s.owner(k, counter)
	v.Again = slices.ContainsFunc(s.kills, v.repeats)
	if v.Again {
		return v
	}
	if v.Container.ID != "" {
		s.counted[v.Container.ID]++
	}
	s.kills = append(s.kills, v)
	if len(s.kills) > killsMax {
		s.kills = slices.Delete(s.kills, 0, len(s.kills)-killsMax)
	}
	return v
}

// repeats reports whether v is about a process that the kernel logged before. When the kernel kills a whole group it
// goes through two lists, of living and of dying processes. It may name a process whose first thread has ended by
// another of its threads. Such a process is recognized by the size of its address space. Processes that do not differ
// in that, such as a server's workers, count as one.
func (v Verdict) repeats(old Verdict) bool {
	if v.Command != old.Command || v.At.Sub(old.At) >= lastingMax {
		return false
	}
	together := v.Group == old.Group || v.Container.ID != "" && v.Container.ID == old.Container.ID
	return v.PID == old.PID || v.Whole != "" && together && v.UID == old.UID && v.Mapped == old.Mapped
}

func (s *State) owner(k Kill, counter func(Container) (int64, bool)) (c Container, first bool) {
	if k.Group != "" {
		for _, part := range strings.Split(k.Group, "/") {
			if c, known := s.containers[idIn(part)]; known {
				return c, c.PID == k.PID
			}
		}
		return Container{}, false
	}
	containers := s.Containers()
	if i := slices.IndexFunc(containers, func(c Container) bool { return c.PID == k.PID && k.PID != 0 }); i >= 0 {
		return containers[i], true
	}
	for _, c := range containers {
		if n, known := counter(c); known && n > s.counted[c.ID] {
			return c, false
		}
	}
	return Container{}, false
}

// idIn returns the container id in the name of a cgroup: 0123abcd (driver cgroupfs), cri-containerd-0123abcd.scope or
// crio-0123abcd.scope (driver systemd).
func idIn(name string) string {
	name, scope := strings.CutSuffix(name, ".scope")
	if i := strings.LastIndexByte(name, '-'); scope && i >= 0 {
		return name[i+1:]
	}
	return name
}

// End is the observed end of a container.
type End struct {
	ID       string
	Code     int32
	Finished unit.Wall
}

// Ended returns the kill that ended a container, and false if there is none. If there are several, as when a whole
// container is killed, it returns that of the process that the kernel chose; of several such, of the one with the most
// memory.
func (s *State) Ended(e End) (end Verdict, killed bool) {
	const sigkill = 128 + 9
	if e.Code != sigkill {
		return Verdict{}, false
	}
	at := e.Finished
	var kills []Verdict
	for _, v := range s.kills {
		if !v.of(e.ID) {
			continue
		}
		if c, known := s.containers[e.ID]; known {
			v.Container, v.First = c, v.First || c.PID == v.PID
		}
		if v.First {
			at = v.At
		}
		kills = append(kills, v)
	}
	for _, v := range kills {
		lasted := at.Sub(v.At)
		if lasted > -lastingMax && lasted < lastingMax && (!killed || v.explainsMore(end)) {
			end, killed = v, true
		}
	}
	return end, killed
}

// explainsMore reports whether a later kill says more than an earlier one about why a container ended.
func (v Verdict) explainsMore(than Verdict) bool {
	if chosen := v.Whole == ""; chosen != (than.Whole == "") {
		return chosen
	}
	return v.RSS() >= than.RSS()
}

// reached describes the limit that was reached.
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

// Text describes the kill, with the numbers of that moment.
func (v Verdict) Text() string {
	var b strings.Builder
	fmt.Fprintf(&b, "Process %d (%s)", v.PID, cmp.Or(v.Command, "?"))
	switch {
	case v.First:
		fmt.Fprintf(&b, ", the first of container %s,", v.Container.Name)
	case v.Container.ID != "":
		fmt.Fprintf(&b, " of container %s", v.Container.Name)
	}
	fmt.Fprintf(&b, " was killed by the kernel, which was out of memory: it held %s (anonymous %s, files %s, shared %s)",
		v.RSS(), v.Anon, v.File, v.Shmem)
	used, known := v.Used.Get()
	limit, bounded := v.Limit.Get()
	switch {
	case known && bounded && !v.System():
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
