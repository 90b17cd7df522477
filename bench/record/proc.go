package record

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"
)

// userHZ is the unit of times in proc_pid_stat(5): USER_HZ, 100 on every Linux architecture that Go supports. The
// kernel scales these numbers to the exact run time, so they are not sampled.
const userHZ = 100

// CPUSeconds returns utime + stime + cutime + cstime, fields 14 to 17 of proc_pid_stat(5). The second field may contain
// blanks.
func CPUSeconds(pid int) (float64, error) {
	path := fmt.Sprintf("/proc/%d/stat", pid)
	text, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:])) // from field 3 on
	if len(fields) < 15 {
		return 0, fmt.Errorf("read %s: %d fields", path, len(fields))
	}
	return sumTicks(path, fields[11:15])
}

// MachineSeconds returns all time in the "cpu" line of proc_stat(5), except idle, iowait, steal and guests' own counts.
func MachineSeconds() (float64, error) {
	return machineTicks(func(f []string) []string { return append(f[1:4:4], f[6:8]...) }) // user nice system, irq softirq
}

// IdleSeconds returns the time in which no process needed the machine's CPUs: idle and iowait.
func IdleSeconds() (float64, error) {
	return machineTicks(func(f []string) []string { return f[4:6] })
}

// StolenSeconds returns the time that the machine needed and its hypervisor gave to other machines.
func StolenSeconds() (float64, error) {
	return machineTicks(func(f []string) []string { return f[8:9] })
}

func machineTicks(choose func([]string) []string) (float64, error) {
	text, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0, err
	}
	line, _, _ := strings.Cut(string(text), "\n")
	fields := strings.Fields(line)
	if len(fields) < 9 || fields[0] != "cpu" {
		return 0, fmt.Errorf("read /proc/stat: first line %q", line)
	}
	return sumTicks("/proc/stat", choose(fields))
}

func sumTicks(path string, fields []string) (float64, error) {
	var ticks uint64
	for _, f := range fields {
		n, err := strconv.ParseUint(f, 10, 64)
		if err != nil {
			return 0, fmt.Errorf("read %s: %w", path, err)
		}
		ticks += n
	}
	return float64(ticks) / userHZ, nil
}

// StatusMiB returns a value of proc_pid_status(5) that is in kB, in MiB.
func StatusMiB(pid int, key string) (float64, error) {
	path := fmt.Sprintf("/proc/%d/status", pid)
	text, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(text)) {
		if value, ok := strings.CutPrefix(line, key+":"); ok {
			kib, err := strconv.ParseFloat(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(value), "kB")), 64)
			if err != nil {
				return 0, fmt.Errorf("read %s: %s: %w", path, key, err)
			}
			return kib / 1024, nil
		}
	}
	return 0, fmt.Errorf("read %s: no %s", path, key)
}
