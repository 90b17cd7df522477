package supervise

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// markVariable names the environment variable that children carry:
//
//	PLIMSOLL_CHILD=<name>:<digest of the spec>:<hash of argv>:<owner>
//
// Processes that a child starts inherit it. They are not taken for the child, because their command lines differ.
const markVariable = "PLIMSOLL_CHILD"

type mark struct {
	name, digest, argv string
	pid                int
	startTicks         uint64
}

func (m mark) variable(owner string) string {
	return fmt.Sprintf("%s=%s:%s:%s:%s", markVariable, m.name, m.digest, m.argv, owner)
}

func parseMark(variable, owner string) (mark, bool) {
	value, ok := strings.CutPrefix(variable, markVariable+"=")
	parts := strings.SplitN(value, ":", 4)
	if !ok || len(parts) != 4 || parts[3] != owner {
		return mark{}, false
	}
	return mark{name: parts[0], digest: parts[1], argv: parts[2]}, true
}

// scanMarks finds the running processes that have owner's mark with the hash of their own command line. Since any
// process can set such a variable, the kernel must also show that they are children (isOurs). Processes that this user
// may not read belong to other users.
func scanMarks(owner string) []mark {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	var marks []mark
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		if m, ok := readMark(pid, owner); ok {
			marks = append(marks, m)
		}
	}
	return marks
}

// ownTextMax bounds what is read of a process's environment and of its command line, in bytes each, because a process
// can make both as long as its address space (prctl(2), PR_SET_MM). Chosen: Linux allows 6 MiB of both at the start of
// a program (execve(2)); those of our children have some KiB.
const ownTextMax = 1 << 20

func readMark(pid int, owner string) (mark, bool) {
	// The start time is read first: if the pid is reused meanwhile, adopt compares the start time and fails.
	ticks, err := readStartTicks(pid)
	if err != nil {
		return mark{}, false
	}
	environ, err := readOwnText(pid, "environ")
	if err != nil || !bytes.Contains(environ, []byte(markVariable)) {
		return mark{}, false
	}
	cmdline, err := readOwnText(pid, "cmdline")
	if err != nil {
		return mark{}, false
	}
	for variable := range strings.SplitSeq(string(environ), "\x00") {
		if m, ok := parseMark(variable, owner); ok {
			sum := sha256.Sum256(cmdline)
			program, _, _ := strings.Cut(string(cmdline), "\x00")
			m.pid, m.startTicks = pid, ticks
			return m, m.argv == hex.EncodeToString(sum[:digestBytes]) && isOurs(pid, program)
		}
	}
	return mark{}, false
}

func readOwnText(pid int, name string) ([]byte, error) {
	f, err := os.Open(fmt.Sprintf("/proc/%d/%s", pid, name))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, ownTextMax))
}

// isOurs reports whether a process has, according to the kernel, what every child has. It runs as our user and in our
// mount namespace, where no container is. Its executable is program; if that file was replaced since, it is the earlier
// file of that path.
func isOurs(pid int, program string) bool {
	dir := fmt.Sprintf("/proc/%d/", pid)
	status, err := os.ReadFile(dir + "status")
	if err != nil || !runsAs(string(status), os.Getuid()) {
		return false
	}
	here, err := os.Readlink("/proc/self/ns/mnt")
	there, failed := os.Readlink(dir + "ns/mnt")
	if err != nil || failed != nil || here != there {
		return false
	}
	running, err := os.Stat(dir + "exe")
	if err != nil {
		return false
	}
	if file, err := os.Stat(program); err == nil && os.SameFile(running, file) {
		return true
	}
	// In our mount namespace the kernel's path of the executable is also ours (proc_pid_exe(5)).
	name, err := os.Readlink(dir + "exe")
	was, replaced := strings.CutSuffix(name, " (deleted)")
	real, failed := filepath.EvalSymlinks(filepath.Dir(program))
	return err == nil && failed == nil && replaced && was == filepath.Join(real, filepath.Base(program))
}

// runsAs reports whether a process's real, effective, saved and file system user are all uid, from its status
// (proc_pid_status(5)):
//
//	Uid:	1000	1000	1000	1000
func runsAs(status string, uid int) bool {
	for line := range strings.Lines(status) {
		if ids, ok := strings.CutPrefix(line, "Uid:"); ok {
			fields := strings.Fields(ids)
			return len(fields) == 4 && !slices.ContainsFunc(fields, func(f string) bool { return f != strconv.Itoa(uid) })
		}
	}
	return false
}

// readStartTicks returns field 22 of /proc/PID/stat (proc_pid_stat(5)): the start time in clock ticks since boot. It
// returns an error for a process that does not exist and for a zombie, which has ended.
func readStartTicks(pid int) (uint64, error) {
	path := fmt.Sprintf("/proc/%d/stat", pid)
	text, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	state, ticks, err := parseStat(path, string(text))
	if err == nil && (state == "Z" || state == "X") {
		return 0, os.ErrProcessDone
	}
	return ticks, err
}

// parseStat reads state (field 3) and start time (field 22) of proc_pid_stat(5). The second field, the name in
// parentheses, may itself contain blanks and parentheses, so fields are counted from the last parenthesis.
func parseStat(path, text string) (state string, startTicks uint64, err error) {
	const first, start = 3, 22
	fields := strings.Fields(text[strings.LastIndexByte(text, ')')+1:])
	if len(fields) <= start-first {
		return "", 0, fmt.Errorf("read %s: %d fields after the name, want more than %d", path, len(fields), start-first)
	}
	ticks, err := strconv.ParseUint(fields[start-first], 10, 64)
	if err != nil {
		return "", 0, fmt.Errorf("read %s: start time %q: not a number", path, fields[start-first])
	}
	return fields[0], ticks, nil
}

// readBootID returns an identifier that the kernel generates at every boot (random(4)).
func readBootID() (string, error) {
	text, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(string(text)), err
}
