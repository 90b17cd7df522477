package kmsg

import (
	"cmp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/plimsoll-dev/plimsoll/internal/core/oom"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

// Parser collects the records of a report up to the one that names the killed process. The zero Parser is ready.
//
// A report of Linux 5.0 and later (dump_header, mem_cgroup_print_oom_info, dump_oom_victim in mm/oom_kill.c):
//
//	COMM invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0, oom_score_adj=999
//	memory: usage 32768kB, limit 32768kB, failcnt 32                         only if a cgroup's limit was reached
//	oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=NAME,mems_allowed=0,oom_memcg=GROUP,task_memcg=GROUP,task=COMM,pid=N,uid=N
//	oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),cpuset=NAME,mems_allowed=0,global_oom,task_memcg=GROUP,task=COMM,pid=N,uid=N
//	Memory cgroup out of memory: Killed process N (COMM) total-vm:NkB, anon-rss:NkB, file-rss:NkB, shmem-rss:NkB, UID:N pgtables:NkB oom_score_adj:N
//
// The first lines are rate-limited, the last is not. Before 5.0 the groups were in the line "Task in GROUP killed as a
// result of limit of GROUP". Another line came before the kill: "Memory cgroup out of memory" or "Out of memory",
// followed by ": Kill process N (COMM) score N or sacrifice child". Before 5.4 the last line ends after shmem-rss, or
// (4.4) after file-rss. With memory.oom.group one report is followed by a kill line for each process of the group.
type Parser struct {
	report  oom.Kill      // only what a report contains
	open    bool          // the kill that report belongs to is still to come
	whole   string        // the group that is being killed as a whole
	wholeAt time.Duration // when its last line came
}

// wholeFor bounds the time between two kill lines of a group that is killed as a whole. Only the first of these lines
// has a report; the others follow under the same lock (measured: 25 ms in a slow guest; beside three others on two CPUs
// one came later than 100 ms). A later kill line without a report counts as of another group, whose report the rate
// limit dropped. Chosen: a second. An earlier one may be of another group too, so the caller asks /proc for the cgroup.
const wholeFor = time.Second

// Record processes a record and returns the kill that it completes.
func (p *Parser) Record(r Record) (oom.Kill, bool) {
	if r.Facility != 0 {
		return oom.Kill{}, false
	}
	text := r.Text
	switch {
	case isInvoked(text):
		*p = Parser{open: true}
	case strings.HasPrefix(text, "memory: usage ") && p.open:
		used, limit, ok := parseUsage(text)
		if ok {
			p.report.Used, p.report.Limit = unit.Of(used), unit.Of(limit)
		}
	case strings.HasPrefix(text, "oom-kill:constraint=") && p.open:
		p.report.Group, p.report.LimitGroup, p.report.Command, p.report.PID = parseConstraint(text)
	case strings.HasPrefix(text, "Out of memory: Kill process ") && p.open:
		p.report.LimitGroup = "/"
	case strings.HasPrefix(text, "Task in ") && p.open:
		p.report.Group, p.report.LimitGroup = parseTaskIn(text)
	case strings.HasPrefix(text, "Tasks in ") && strings.HasSuffix(text, wholeSuffix):
		p.whole, p.wholeAt = strings.TrimSuffix(strings.TrimPrefix(text, "Tasks in "), wholeSuffix), r.Since
		if p.report.Group != p.whole && !strings.HasPrefix(p.report.Group, p.whole+"/") {
			// The rate limit dropped this kill's report, and the last report was of another group.
			p.report = oom.Kill{}
		}
	default:
		return p.killed(r)
	}
	return oom.Kill{}, false
}

// commandMax is the longest command in the text of a record: 15 bytes (TASK_COMM_LEN), each written as \x0a at worst.
const commandMax = 15 * 4

// isInvoked recognizes the first line of a report. Only that line begins with text that a user chose.
func isInvoked(text string) bool {
	i := strings.Index(text, " invoked oom-killer: gfp_mask=0x")
	return i >= 0 && i <= commandMax
}

// killedAfter are the beginnings of a kill line (oom_kill_process and __oom_kill_process in mm/oom_kill.c). Other lines
// of the kernel also contain text that users chose: names of commands, options of mounts, prefixes of firewall rules.
// None of them begins like this.
var killedAfter = []string{
	"Memory cgroup out of memory: Killed process ",
	"Out of memory: Killed process ",
	"Out of memory (oom_kill_allocating_task): Killed process ",
	"Killed process ", // before 5.0
}

const wholeSuffix = " are going to be killed due to memory.oom.group set"

// killed completes a kill. The kernel writes report and kill line under one lock, so a report belongs to the next kill
// line. Because records may be lost, the two must also name the same process or command.
func (p *Parser) killed(r Record) (oom.Kill, bool) {
	k, ok := parseKilled(r.Text)
	if !ok {
		return oom.Kill{}, false
	}
	whole := p.whole != "" && r.Since-p.wholeAt < wholeFor
	if whole || p.open && (p.report.PID == 0 || p.report.PID == k.PID || p.report.Command == k.Command) {
		k.Group = p.report.Group
		k.LimitGroup = p.report.LimitGroup
		k.Used = p.report.Used
		k.Limit = p.report.Limit
	}
	if whole {
		k.Group = cmp.Or(k.Group, p.whole)
		k.Whole = p.whole
		p.wholeAt = r.Since
	}
	if strings.HasPrefix(r.Text, "Out of memory") && k.LimitGroup == "" {
		k.LimitGroup = "/"
	}
	p.open = false // the report is kept: it is also that of the other processes of a group that is killed as a whole
	k.Sequence, k.At = r.Sequence, r.Wall()
	return k, true
}

// parseUsage reads "memory: usage 32768kB, limit 32768kB, failcnt 32".
func parseUsage(text string) (used, limit unit.Bytes, ok bool) {
	for _, part := range strings.Split(strings.TrimPrefix(text, "memory: "), ", ") {
		name, value, _ := strings.Cut(part, " ")
		switch n, read := kilobytes(value); {
		case name == "usage" && read:
			used, ok = n, true
		case name == "limit" && read:
			limit = n
		}
	}
	return used, limit, ok
}

// parseConstraint reads an oom-kill line. A command may contain anything, including commas, but at most 15 bytes, so
// what follows it is searched from the end. The victim's group comes before its command.
func parseConstraint(text string) (group, limitGroup, command string, pid int) {
	if i := strings.LastIndex(text, ",pid="); i >= 0 {
		digits, _, _ := strings.Cut(text[i+len(",pid="):], ",")
		pid, _ = strconv.Atoi(digits) // 0: not stated
		text = text[:i]
	}
	if i := strings.LastIndex(text, ",task="); i >= 0 {
		text, command = text[:i], text[i+len(",task="):]
	}
	text, group, _ = strings.Cut(text, ",task_memcg=")
	if strings.HasSuffix(text, ",global_oom") {
		return group, "/", command, pid
	}
	if i := strings.LastIndex(text, ",oom_memcg="); i >= 0 {
		limitGroup = text[i+len(",oom_memcg="):]
	}
	return group, limitGroup, command, pid
}

// parseTaskIn reads "Task in GROUP killed as a result of limit of GROUP".
func parseTaskIn(text string) (group, limitGroup string) {
	group, limitGroup, _ = strings.Cut(strings.TrimPrefix(text, "Task in "), " killed as a result of limit of ")
	return group, limitGroup
}

// parseKilled reads the kill line. The command may contain parentheses, and is the only part of the line that a user
// chose.
func parseKilled(text string) (oom.Kill, bool) {
	i := slices.IndexFunc(killedAfter, func(begin string) bool { return strings.HasPrefix(text, begin) })
	if i < 0 {
		return oom.Kill{}, false
	}
	rest := strings.TrimPrefix(text, killedAfter[i])
	end := strings.LastIndex(rest, ") total-vm:")
	before, command, paren := strings.Cut(rest[:max(end, 0)], " (")
	digits, _, _ := strings.Cut(before, ",") // Red Hat's 3.10: "Killed process N, UID N, (COMM)"
	pid, err := strconv.Atoi(digits)
	if !paren || err != nil || pid <= 0 || len(command) > commandMax {
		return oom.Kill{}, false
	}
	k := oom.Kill{PID: pid, Command: command, UID: -1}
	for _, part := range strings.FieldsFunc(rest[end+2:], func(r rune) bool { return r == ' ' || r == ',' }) {
		name, value, _ := strings.Cut(part, ":")
		n, read := kilobytes(value)
		switch {
		case name == "total-vm" && read:
			k.Mapped = n
		case name == "anon-rss" && read:
			k.Anon = n
		case name == "file-rss" && read:
			k.File = n
		case name == "shmem-rss" && read:
			k.Shmem = n
		case name == "pgtables" && read:
			k.PageTables = unit.Of(n)
		case name == "UID":
			if uid, err := strconv.Atoi(value); err == nil {
				k.UID = uid
			}
		}
	}
	return k, true
}

// kilobytes reads "32768kB".
func kilobytes(text string) (unit.Bytes, bool) {
	digits, ok := strings.CutSuffix(text, "kB")
	n, err := strconv.ParseInt(digits, 10, 64)
	if !ok || err != nil || n < 0 {
		return 0, false
	}
	return unit.Bytes(min(n, 1<<50)) * unit.KiB, true
}
