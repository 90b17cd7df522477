// Package procfs reads values from /proc: memory, limits on processes, the kernel's version, the interfaces of default
// routes, and processes' usage. It reads files below an injected root and decides nothing.
//
// A missing file, a missing line and a zero are different results. Errors name the file, the line and the reason.
package procfs

import (
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

// FS is a mounted /proc.
type FS string

// Default is its usual location.
const Default FS = "/proc"

func (fs FS) path(name string) string { return filepath.Join(string(fs), name) }

// Memory is the content of /proc/meminfo (proc_meminfo(5)).
type Memory struct {
	Total     unit.Bytes
	Free      unit.Bytes
	Available unit.Amount[unit.Bytes] // absent before Linux 3.14
	HugePages unit.Bytes              // reserved for huge pages of all sizes, used or not; 0 before Linux 4.16
	SwapTotal unit.Bytes
	SwapFree  unit.Bytes

	InactiveFile unit.Bytes // page cache that was not used lately
}

// Memory reads /proc/meminfo, whose lines are like "MemTotal:        4039556 kB".
func (fs FS) Memory() (Memory, error) {
	file := fs.path("meminfo")
	data, err := os.ReadFile(file)
	if err != nil {
		return Memory{}, fmt.Errorf("read memory: %w", err)
	}
	m, err := parseMemory(string(data))
	if err != nil {
		return Memory{}, fmt.Errorf("read memory: %s: %w", file, err)
	}
	return m, nil
}

func parseMemory(text string) (Memory, error) {
	var m Memory
	var available unit.Bytes
	missing := map[string]*unit.Bytes{"MemTotal": &m.Total, "MemFree": &m.Free, "MemAvailable": &available,
		"Hugetlb": &m.HugePages, "SwapTotal": &m.SwapTotal, "SwapFree": &m.SwapFree, "Inactive(file)": &m.InactiveFile}
	for number, line := range strings.Split(text, "\n") {
		key, rest, _ := strings.Cut(line, ":")
		into := missing[key]
		if into == nil {
			continue
		}
		digits, isKB := strings.CutSuffix(strings.TrimSpace(rest), " kB")
		n, err := strconv.ParseInt(digits, 10, 64)
		if err != nil || !isKB || n < 0 || n > math.MaxInt64/1024 {
			return Memory{}, fmt.Errorf("line %d: %.80q: want a number of kB", number+1, line)
		}
		*into = unit.Bytes(n) * unit.KiB
		delete(missing, key)
		if key == "MemAvailable" {
			m.Available = unit.Of(available)
		}
	}
	if m.Total == 0 {
		return Memory{}, errors.New("MemTotal: missing or zero")
	}
	return m, nil
}

// PIDs returns the largest possible number of processes and threads: the smaller of two kernel limits.
func (fs FS) PIDs() (int64, error) {
	most := int64(math.MaxInt64)
	for _, name := range []string{"sys/kernel/pid_max", "sys/kernel/threads-max"} {
		text, err := fs.text(name)
		if err != nil {
			return 0, fmt.Errorf("read process limit: %w", err)
		}
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil || n <= 0 {
			return 0, fmt.Errorf("read process limit: %s: %.80q: want a number above zero", fs.path(name), text)
		}
		most = min(most, n)
	}
	return most, nil
}

// Threads returns the number of processes and threads: the number after the slash in /proc/loadavg, which is like "0.20
// 0.18 0.12 1/80 11206" (proc_loadavg(5)).
func (fs FS) Threads() (int64, error) {
	text, err := fs.text("loadavg")
	if err != nil {
		return 0, fmt.Errorf("read threads: %w", err)
	}
	n, ok := parseThreads(text)
	if !ok {
		return 0, fmt.Errorf("read threads: %s: %.80q: want five words, the fourth like 1/80", fs.path("loadavg"), text)
	}
	return n, nil
}

func parseThreads(text string) (int64, bool) {
	fields := strings.Fields(text)
	if len(fields) < 4 {
		return 0, false
	}
	_, all, _ := strings.Cut(fields[3], "/")
	n, err := strconv.ParseInt(all, 10, 64)
	return n, err == nil && n > 0
}

// BootID returns an ID that changes with each boot.
func (fs FS) BootID() (string, error) { return fs.fact("boot id", "sys/kernel/random/boot_id") }

// KernelVersion returns the release of the running kernel, like 6.1.0-18-amd64.
func (fs FS) KernelVersion() (string, error) {
	return fs.fact("kernel version", "sys/kernel/osrelease")
}

func (fs FS) fact(what, name string) (string, error) {
	text, err := fs.text(name)
	if err != nil {
		return "", fmt.Errorf("read %s: %w", what, err)
	}
	if text == "" {
		return "", fmt.Errorf("read %s: %s: empty", what, fs.path(name))
	}
	return text, nil
}

func (fs FS) text(name string) (string, error) {
	data, err := os.ReadFile(fs.path(name))
	return strings.TrimSpace(string(data)), err
}

// DefaultInterfaces returns the names of the interfaces of default routes, by metric, IPv4 before IPv6. It is no error
// if there is none: a machine may have no default route.
func (fs FS) DefaultInterfaces() ([]string, error) {
	var names []string
	for _, table := range []struct {
		file  string
		parse func(string) ([]route, error)
	}{{"net/route", parseRoutes4}, {"net/ipv6_route", parseRoutes6}} {
		data, err := os.ReadFile(fs.path(table.file))
		if errors.Is(err, os.ErrNotExist) {
			continue // that family is not built in
		} else if err != nil {
			return nil, fmt.Errorf("read routes: %w", err)
		}
		routes, err := table.parse(string(data))
		if err != nil {
			return nil, fmt.Errorf("read routes: %s: %w", fs.path(table.file), err)
		}
		names = append(names, defaults(routes)...)
	}
	return names, nil
}

type route struct {
	device string
	to     netip.Prefix
	metric uint64
	up     bool
}

// defaults returns the devices of default routes, lowest metric first.
func defaults(routes []route) []string {
	var names []string
	for {
		best := -1
		for i, r := range routes {
			if r.up && r.to.Bits() == 0 && r.device != "lo" && (best < 0 || r.metric < routes[best].metric) {
				best = i
			}
		}
		if best < 0 {
			return names
		}
		names = append(names, routes[best].device)
		routes[best].up = false
	}
}

const (
	routeUp     = 0x1   // RTF_UP
	routeReject = 0x200 // RTF_REJECT
)

// parseRoutes4 reads /proc/net/route: a heading, then "eth0 00000000 0101A8C0 0003 0 0 100 00000000 0 0 0" per route:
// device, destination, gateway (hexadecimal in the machine's byte order), flags (hexadecimal), ..., metric, mask.
func parseRoutes4(text string) ([]route, error) {
	var routes []route
	for number, line := range strings.Split(text, "\n") {
		words := strings.Fields(line)
		if number == 0 || len(words) == 0 {
			continue
		}
		if len(words) < 8 {
			return nil, fmt.Errorf("line %d: %.80q: want 8 fields or more", number+1, line)
		}
		mask, maskErr := strconv.ParseUint(words[7], 16, 32)
		flags, flagsErr := strconv.ParseUint(words[3], 16, 32)
		metric, metricErr := strconv.ParseUint(words[6], 10, 32)
		if err := errors.Join(maskErr, flagsErr, metricErr); err != nil {
			return nil, fmt.Errorf("line %d: %.80q: flags, metric or mask is no number", number+1, line)
		}
		bits := 32
		if mask == 0 {
			bits = 0
		}
		routes = append(routes, route{device: words[0], to: netip.PrefixFrom(netip.IPv4Unspecified(), bits), metric: metric,
			up: flags&routeUp != 0 && flags&routeReject == 0})
	}
	return routes, nil
}

// parseRoutes6 reads /proc/net/ipv6_route, without heading: destination, its prefix length, source, its prefix length,
// next hop, metric, reference count, use count, flags, device; numbers are hexadecimal.
func parseRoutes6(text string) ([]route, error) {
	var routes []route
	for number, line := range strings.Split(text, "\n") {
		words := strings.Fields(line)
		if len(words) == 0 {
			continue
		}
		if len(words) < 10 {
			return nil, fmt.Errorf("line %d: %.80q: want 10 fields", number+1, line)
		}
		address, addressErr := hex.DecodeString(words[0])
		bits, bitsErr := strconv.ParseUint(words[1], 16, 8)
		metric, metricErr := strconv.ParseUint(words[5], 16, 32)
		flags, flagsErr := strconv.ParseUint(words[8], 16, 32)
		if err := errors.Join(addressErr, bitsErr, metricErr, flagsErr); err != nil || len(address) != 16 || bits > 128 {
			return nil, fmt.Errorf("line %d: %.80q: destination, length, metric or flags is not as expected", number+1, line)
		}
		to := netip.PrefixFrom(netip.AddrFrom16([16]byte(address)), int(bits))
		routes = append(routes, route{device: words[9], to: to, metric: metric, up: flags&routeUp != 0 &&
			flags&routeReject == 0})
	}
	return routes, nil
}
