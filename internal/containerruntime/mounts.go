package containerruntime

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// UnmountBelow unmounts everything at and below the directories, the newest mount first. What is in use is detached
// and goes when its last user does.
func UnmountBelow(dirs ...string) error {
	points, err := mountPoints()
	if err != nil {
		return fmt.Errorf("unmount: %w", err)
	}
	var problems []error
	for _, point := range slices.Backward(points) {
		if !slices.ContainsFunc(dirs, func(dir string) bool { return within(point, dir) }) {
			continue
		}
		if err := unix.Unmount(point, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
			problems = append(problems, fmt.Errorf("unmount %s: %w", point, err))
		}
	}
	return errors.Join(problems...)
}

func within(path, dir string) bool {
	dir = filepath.Clean(dir)
	return path == dir || strings.HasPrefix(path, dir+"/")
}

// mountPoints lists this process' mounts in the order they were made.
func mountPoints() ([]string, error) {
	text, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	return parseMountPoints(string(text))
}

// parseMountPoints reads proc_pid_mountinfo(5):
//
//	36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw,errors=continue
//
// The fifth field is the mount point, with blank, tab, newline and backslash as three octal digits.
func parseMountPoints(text string) ([]string, error) {
	var points []string
	line := 0
	for row := range strings.Lines(text) {
		line++
		fields := strings.Fields(row)
		if len(fields) < 10 {
			return nil, fmt.Errorf("read mountinfo: line %d: %d fields, want 10 or more", line, len(fields))
		}
		points = append(points, unescape(fields[4]))
	}
	return points, nil
}

func unescape(text string) string {
	if !strings.Contains(text, `\`) {
		return text
	}
	var out strings.Builder
	for i := 0; i < len(text); i++ {
		if text[i] == '\\' && i+3 < len(text) {
			if code, err := strconv.ParseUint(text[i+1:i+4], 8, 8); err == nil {
				out.WriteByte(byte(code))
				i += 3
				continue
			}
		}
		out.WriteByte(text[i])
	}
	return out.String()
}

// shimSocketDir is where shims of containerd 1.x and 2.x listen, whatever containerd's own state directory is
// (socketRoot in its shim package). Their names are hashes; each shim's bundle says which is its own.
const shimSocketDir = "/run/containerd/s"

func (i *Instance) shimSockets() []string {
	files, err := filepath.Glob(filepath.Join(i.options.containerdState(), "io.containerd.runtime.v2.task/*/*/address"))
	if err != nil {
		return nil // a pattern that the run directory's name broke
	}
	var sockets []string
	for _, file := range files {
		text, err := os.ReadFile(file)
		path := strings.TrimPrefix(strings.TrimSpace(string(text)), "unix://")
		if err == nil && filepath.Dir(path) == shimSocketDir {
			sockets = append(sockets, path)
		}
	}
	return sockets
}
