package cadvisor

import (
	"bytes"
	"math"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/plimsoll-dev/plimsoll/internal/host/cgroup"
)

// fileReader reads files into one buffer.
type fileReader struct{ buffer []byte }

// read returns the content of a file, which is valid until the next call; nil: it cannot be read.
func (f *fileReader) read(path string) []byte {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil
	}
	defer unix.Close(fd)
	for length := 0; ; {
		if length == len(f.buffer) {
			f.buffer = append(f.buffer, make([]byte, max(8<<10, len(f.buffer)))...)
		}
		n, err := unix.Read(fd, f.buffer[length:])
		if err == unix.EINTR {
			continue
		} else if err != nil {
			return nil
		}
		if n <= 0 {
			return f.buffer[:length]
		}
		length += n
	}
}

// word returns the first word of a line, and what follows it.
func word(line []byte) (first, rest []byte) {
	line = bytes.TrimLeft(line, " \t")
	if i := bytes.IndexAny(line, " \t"); i >= 0 {
		return line[:i], line[i:]
	}
	return line, nil
}

// readMeminfo fills in what the root row lacks (proc_meminfo(5)). Its limits are what the machine has.
func (s *scrape) readMeminfo(path string, r *row) {
	fields := parseMeminfo(s.files.read(path))
	set := func(to cgroup.Counter, v int64) {
		if r.Counters[to] == cgroup.Absent && v >= 0 {
			r.Counters[to] = v
		}
	}
	if fields.total < 0 {
		return
	}
	r.Counters[cgroup.MemoryLimit] = fields.total
	if fields.swapTotal >= 0 {
		r.Counters[cgroup.SwapLimit] = fields.swapTotal
	}
	set(cgroup.MemoryCharged, fields.total-max(0, fields.free))
	set(cgroup.MemoryInactiveFile, fields.inactiveFile)
	set(cgroup.MemoryActiveFile, fields.activeFile)
	set(cgroup.MemoryAnonymous, fields.anonymous)
	set(cgroup.MemoryCache, fields.cached)
	set(cgroup.MemoryMapped, fields.mapped)
	if fields.swapTotal >= 0 && fields.swapFree >= 0 {
		set(cgroup.MemorySwapped, fields.swapTotal-fields.swapFree)
	}
}

// meminfo has fields of /proc/meminfo in bytes; cgroup.Absent: the kernel has none.
type meminfo struct {
	total, free, inactiveFile, activeFile, anonymous, cached, mapped, swapTotal, swapFree int64
}

func parseMeminfo(text []byte) meminfo {
	const none = cgroup.Absent
	m := meminfo{
		total:        none,
		free:         none,
		inactiveFile: none,
		activeFile:   none,
		anonymous:    none,
		cached:       none,
		mapped:       none,
		swapTotal:    none,
		swapFree:     none,
	}
	for len(text) > 0 {
		var line []byte
		line, text, _ = bytes.Cut(text, []byte{'\n'})
		name, rest, _ := bytes.Cut(line, []byte{':'})
		value, _ := word(rest)
		kib, ok := cgroup.ParseNumber(value)
		if !ok || kib > math.MaxInt64>>10 {
			continue
		}
		switch string(name) {
		case "MemTotal":
			m.total = kib << 10
		case "MemFree":
			m.free = kib << 10
		case "Inactive(file)":
			m.inactiveFile = kib << 10
		case "Active(file)":
			m.activeFile = kib << 10
		case "AnonPages":
			m.anonymous = kib << 10
		case "Cached":
			m.cached = kib << 10
		case "Mapped":
			m.mapped = kib << 10
		case "SwapTotal":
			m.swapTotal = kib << 10
		case "SwapFree":
			m.swapFree = kib << 10
		}
	}
	return m
}

// bootTime reads the line "btime 1763633663" of /proc/stat.
func (s *scrape) bootTime(path string) int64 {
	text := s.files.read(path)
	_, after, found := bytes.Cut(text, []byte("\nbtime "))
	if !found {
		return cgroup.Absent
	}
	line, _, _ := bytes.Cut(after, []byte{'\n'})
	if at, ok := cgroup.ParseNumber(line); ok {
		return at
	}
	return cgroup.Absent
}

// The counters of a network interface.
const (
	rxBytes = iota
	rxPackets
	rxErrors
	rxDropped
	txBytes
	txPackets
	txErrors
	txDropped
	networkCounters
)

// networkInterface is one interface of a row.
type networkInterface struct {
	label    string // interface="NAME"
	counters [networkCounters]int64
}

// readNetwork reads the interfaces of a network namespace.
func (s *scrape) readNetwork(path string, r *row) {
	from := len(s.interfaces)
	parseNetDev(s.files.read(path), func(name []byte, counters *[networkCounters]int64) {
		label, ok := s.quoted[string(name)]
		if !ok {
			label = string(appendLabel(nil, "interface", string(name)))
			if len(s.quoted) < quotedMax {
				s.quoted[string(name)] = label
			}
		}
		s.interfaces = append(s.interfaces, networkInterface{label: label, counters: *counters})
	})
	r.interfaces = span{from, len(s.interfaces)}
}

// quotedMax is how many names of interfaces are kept from one scrape to the next. Chosen: a node has few, unless pods
// make up names.
const quotedMax = 1000

// parseNetDev reads /proc/<pid>/net/dev (proc_pid_net(5)): per interface its name and 16 counters, of which 1 to 4 are
// bytes, packets, errors and drops received, 9 to 12 sent. As in the kubelet, interfaces that carry only traffic of
// other interfaces (loopback, the host's ends of pods) are left out. A line that is not understood is left out.
func parseNetDev(text []byte, each func(name []byte, counters *[networkCounters]int64)) {
	for len(text) > 0 {
		var line []byte
		line, text, _ = bytes.Cut(text, []byte{'\n'})
		name, rest, ok := bytes.Cut(line, []byte{':'})
		name = bytes.TrimSpace(name)
		if !ok || string(name) == "lo" || bytes.HasPrefix(name, []byte("veth")) {
			continue
		}
		var all [12]int64
		whole := true
		for i := range all {
			var field []byte
			field, rest = word(rest)
			if all[i], ok = cgroup.ParseNumber(field); !ok {
				whole = false
				break
			}
		}
		if whole {
			var counters [networkCounters]int64
			copy(counters[rxBytes:], all[0:4])
			copy(counters[txBytes:], all[8:12])
			each(name, &counters)
		}
	}
}

// readProcesses counts the processes of a row and their open files, and leaves the processes in s.pids.
func (s *scrape) readProcesses(proc, group string, r *row) {
	s.pids = s.counters.Processes(group, s.pids[:0])
	r.processes = int64(len(s.pids))
	if len(s.pids) == 0 {
		return
	}
	r.filesSoftLimit = parseFilesLimit(s.files.read(proc + "/" + strconv.Itoa(s.pids[0]) + "/limits"))
	var open, sockets int64
	for _, pid := range s.pids {
		o, n := countDescriptors(proc+"/"+strconv.Itoa(pid)+"/fd", &s.budget)
		open += o
		sockets += n
	}
	if s.budget > 0 {
		r.descriptors, r.sockets = open, sockets
	}
}

// parseFilesLimit reads the soft limit of open files from /proc/<pid>/limits (proc_pid_limits(5)):
//
//	Max open files            1024                 4096                 files
//
// No limit is cgroup.Absent.
func parseFilesLimit(text []byte) int64 {
	_, after, found := bytes.Cut(text, []byte("Max open files "))
	if !found {
		return cgroup.Absent
	}
	soft, _ := word(after)
	if n, ok := cgroup.ParseNumber(soft); ok {
		return n
	}
	return cgroup.Absent
}

// countDescriptors counts the open files of a process and the sockets among them, by /proc/<pid>/fd. Each is taken off
// budget; it stops when nothing is left.
func countDescriptors(dir string, budget *int) (open, sockets int64) {
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return 0, 0 // the process has just ended
	}
	defer unix.Close(fd)
	var entries [4096]byte
	var link [8]byte // long enough for "socket:"
	var names []string
	for *budget > 0 {
		n, err := unix.ReadDirent(fd, entries[:])
		if err != nil || n <= 0 {
			break
		}
		_, _, names = unix.ParseDirent(entries[:n], -1, names[:0])
		for _, name := range names {
			open++
			*budget--
			if n, err := unix.Readlinkat(fd, name, link[:]); err == nil && bytes.HasPrefix(link[:n], []byte("socket:")) {
				sockets++
			}
		}
	}
	return open, sockets
}
