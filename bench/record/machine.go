package record

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"time"
)

// Fact is a line of the machine's description.
type Fact struct{ Name, Value string }

// Machine describes the machine of the measurement. What cannot be read is "unknown".
func Machine(ctx context.Context) []Fact {
	return []Fact{
		{"machine", fmt.Sprintf("%d cores (%s), %s memory", runtime.NumCPU(), cpuModel(), memTotal())},
		{"kernel", read("/proc/sys/kernel/osrelease") + ", " + cgroupMode()},
		{"system", osName()},
		{"commit", Output(ctx, "git", "describe", "--always", "--dirty")},
		{"load before the run", read("/proc/loadavg")},
	}
}

const unknown = "unknown"

// commandTimeout bounds a call for a version.
const commandTimeout = 10 * time.Second

// Output returns the first line that a program prints.
func Output(ctx context.Context, name string, args ...string) string {
	ctx, cancel := context.WithTimeout(ctx, commandTimeout)
	defer cancel()
	out, err := exec.CommandContext(ctx, name, args...).Output()
	if err != nil {
		return unknown
	}
	line, _, _ := bytes.Cut(bytes.TrimSpace(out), []byte("\n"))
	return string(line)
}

func read(path string) string {
	text, err := os.ReadFile(path)
	if err != nil {
		return unknown
	}
	return strings.TrimSpace(string(text))
}

// valueOf returns the value of "key<separator>value" in a file of such lines.
func valueOf(path, key, separator string) string {
	for line := range strings.Lines(read(path)) {
		if name, value, ok := strings.Cut(line, separator); ok && strings.TrimSpace(name) == key {
			return strings.Trim(strings.TrimSpace(value), `"`)
		}
	}
	return unknown
}

func cpuModel() string { return valueOf("/proc/cpuinfo", "model name", ":") }
func memTotal() string { return valueOf("/proc/meminfo", "MemTotal", ":") }
func osName() string   { return valueOf("/etc/os-release", "PRETTY_NAME", "=") }

func cgroupMode() string {
	if _, err := os.Stat("/sys/fs/cgroup/cgroup.controllers"); err == nil {
		return "cgroup v2"
	}
	if _, err := os.Stat(filepath.Join("/sys/fs/cgroup", "unified")); err == nil {
		return "cgroup v1 hybrid"
	}
	return "cgroup v1"
}
