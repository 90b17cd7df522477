package stats

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	statsapi "k8s.io/kubelet/pkg/apis/stats/v1alpha1"

	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

func trim(text []byte) string { return strings.TrimSpace(string(text)) }

// meminfo has the fields of /proc/meminfo that are used (proc_meminfo(5)):
//
//	MemTotal:       24622408 kB
type meminfo struct {
	total, free, inactiveFile, anonymous, swapTotal, swapFree unit.Bytes
}

func readMeminfo(path string) (meminfo, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return meminfo{}, err
	}
	var m meminfo
	fields := map[string]*unit.Bytes{
		"MemTotal": &m.total, "MemFree": &m.free, "Inactive(file)": &m.inactiveFile, "AnonPages": &m.anonymous,
		"SwapTotal": &m.swapTotal, "SwapFree": &m.swapFree,
	}
	for line := range strings.Lines(string(text)) {
		name, value, _ := strings.Cut(line, ":")
		to := fields[name]
		if to == nil {
			continue
		}
		n, err := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(value), "kB")), 10, 64)
		if err != nil {
			return meminfo{}, fmt.Errorf("%s: %s: %q: want a number of kB", path, name, strings.TrimSpace(value))
		}
		*to = unit.Bytes(n) * unit.KiB
	}
	if m.total == 0 {
		return meminfo{}, fmt.Errorf("%s: no MemTotal", path)
	}
	return m, nil
}

// readBootTime reads the line "btime 1763633663" of /proc/stat.
func readBootTime(path string) (time.Time, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return time.Time{}, err
	}
	for line := range strings.Lines(string(text)) {
		if value, ok := strings.CutPrefix(line, "btime "); ok {
			n, err := strconv.ParseInt(strings.TrimSpace(value), 10, 64)
			return time.Unix(n, 0), err
		}
	}
	return time.Time{}, fmt.Errorf("%s: no btime", path)
}

// readThreads reads the number of threads from /proc/loadavg: 0.20 0.18 0.12 1/80 11206.
func readThreads(path string) (int64, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	fields := strings.Fields(string(text))
	if len(fields) < 4 {
		return 0, fmt.Errorf("%s: %q: want five fields", path, trim(text))
	}
	_, all, _ := strings.Cut(fields[3], "/")
	return strconv.ParseInt(all, 10, 64)
}

// processStat has the fields of /proc/<pid>/stat that are used (proc_pid_stat(5)). The name in parentheses may contain
// anything, so fields are counted from the last parenthesis. The numbers are the manual's.
type processStat struct {
	faults, majorFaults int64 // 10, 12
	ticks               int64 // 14 + 15
	startTicks          int64 // 22
	residentPages       int64 // 24
}

func parseProcessStat(text string) (processStat, error) {
	end := strings.LastIndexByte(text, ')')
	if end < 0 {
		return processStat{}, fmt.Errorf("%.40q: no name in parentheses", text)
	}
	fields := strings.Fields(text[end+1:]) // the first is field 3
	if len(fields) < 22 {
		return processStat{}, fmt.Errorf("%.40q: %d fields after the name, want at least 22", text, len(fields))
	}
	var s processStat
	var user, system int64
	for n, to := range map[int]*int64{10: &s.faults, 12: &s.majorFaults, 14: &user, 15: &system, 22: &s.startTicks,
		24: &s.residentPages} {
		v, err := strconv.ParseInt(fields[n-3], 10, 64)
		if err != nil {
			return processStat{}, fmt.Errorf("field %d: %q: not a number", n, fields[n-3])
		}
		*to = v
	}
	s.ticks = user + system
	return s, nil
}

// parseNetDev reads /proc/<pid>/net/dev (proc_pid_net(5)): two lines of heading, then per interface its name and 16
// counters, of which 1 and 3 are bytes and errors received, 9 and 11 sent. As in the kubelet, interfaces that carry
// only traffic of other interfaces (loopback, the host's ends of pods) are left out.
func parseNetDev(text string) ([]statsapi.InterfaceStats, error) {
	var out []statsapi.InterfaceStats
	for line := range strings.Lines(text) {
		name, counters, ok := strings.Cut(line, ":")
		name = strings.TrimSpace(name)
		if !ok || name == "lo" || strings.HasPrefix(name, "veth") {
			continue
		}
		fields := strings.Fields(counters)
		if len(fields) < 16 {
			return nil, fmt.Errorf("interface %s: %d counters, want 16", name, len(fields))
		}
		i := statsapi.InterfaceStats{Name: name}
		for n, to := range map[int]**uint64{0: &i.RxBytes, 2: &i.RxErrors, 8: &i.TxBytes, 10: &i.TxErrors} {
			v, err := strconv.ParseUint(fields[n], 10, 64)
			if err != nil {
				return nil, fmt.Errorf("interface %s: counter %d: %q: not a number", name, n+1, fields[n])
			}
			*to = &v
		}
		out = append(out, i)
	}
	return out, nil
}
