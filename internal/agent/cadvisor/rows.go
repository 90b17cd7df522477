package cadvisor

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"path/filepath"
	"strconv"
	"time"

	"github.com/plimsoll-dev/plimsoll/internal/agent/stats"
	"github.com/plimsoll-dev/plimsoll/internal/host/cgroup"
)

// descriptorsMax is how many open files of containers one scrape looks at, to tell sockets from others. Chosen: some 50
// ms of CPU. Containers beyond are shown without container_file_descriptors and container_sockets.
const descriptorsMax = 20_000

// row is what one scrape has read of one cgroup. Its fields that are cgroup.Absent have no sample.
type row struct {
	cgroup.Counters
	labels     span  // in scrape.text
	started    int64 // unix seconds
	devices    span  // in scrape.devices
	interfaces span  // in scrape.interfaces
	root       bool

	processes, descriptors, sockets, filesSoftLimit int64
}

// span is a part of a slice that all rows of a scrape share.
type span struct{ from, to int }

// scrape is what one scrape has read. Its slices are used again.
type scrape struct {
	counters   *cgroup.CounterReader
	files      fileReader
	rows       []row
	text       []byte // the labels of all rows
	devices    []cgroup.Device
	interfaces []networkInterface
	disks      []disk
	mounted    []filesystem
	pids       []int
	budget     int               // what is left of descriptorsMax
	now        int64             // unix seconds
	quoted     map[string]string // interface="NAME", by name
	out        []byte
}

func newScrape(counters *cgroup.CounterReader) *scrape {
	return &scrape{counters: counters, quoted: map[string]string{}}
}

// labels identify a row.
type labels struct{ container, id, image, name, namespace, pod string }

// read reads all rows. It reports whether the root could not be read.
func (s *scrape) read(ctx context.Context, o *Options) (failed bool) {
	s.rows = s.rows[:0]
	s.text = s.text[:0]
	s.devices = s.devices[:0]
	s.interfaces = s.interfaces[:0]
	s.budget = descriptorsMax
	s.now = o.Now().Unix()
	s.readDisks(o)
	failed = !s.readRoot(o)
	for _, group := range o.Groups {
		started := cgroup.Absent
		if at, err := o.Tree.Created(group); err == nil {
			started = unixOf(at)
		}
		s.add(labels{id: group}, started)
	}
	image := ""
	if o.SandboxImage != nil {
		image = o.SandboxImage()
	}
	for _, pod := range o.Pods() {
		if ctx.Err() != nil {
			return true
		}
		if !pod.Idle {
			s.readPod(o, &pod, image)
		}
	}
	return failed
}

// readRoot reads the whole machine. cgroup v2 has no memory counters at its root.
func (s *scrape) readRoot(o *Options) bool {
	r := s.add(labels{id: "/"}, cgroup.Absent)
	if r == nil {
		return false
	}
	r.root = true
	s.readMeminfo(filepath.Join(o.Proc, "meminfo"), r)
	r.started = s.bootTime(filepath.Join(o.Proc, "stat"))
	s.readNetwork(filepath.Join(o.Proc, "1/net/dev"), r)
	return true
}

func (s *scrape) readPod(o *Options, pod *stats.Pod, image string) {
	of := labels{namespace: pod.Ref.Namespace, pod: pod.Ref.Name}
	if pod.Group != "" {
		of.id = pod.Group
		s.add(of, unixOf(pod.Started))
	}
	if pod.SandboxGroup != "" {
		of.id = pod.SandboxGroup
		of.name = pod.SandboxID
		of.image = image
		if r := s.add(of, unixOf(pod.Started)); r != nil {
			s.readProcesses(o.Proc, pod.SandboxGroup, r)
			if !pod.HostNetwork && len(s.pids) > 0 {
				s.readNetwork(o.Proc+"/"+strconv.Itoa(s.pids[0])+"/net/dev", r)
			}
		}
	}
	for i := range pod.Containers {
		c := &pod.Containers[i]
		if c.Group == "" {
			continue
		}
		of.id = c.Group
		of.name = c.ID
		of.image = c.Image
		of.container = c.Name
		if r := s.add(of, unixOf(c.Started)); r != nil {
			s.readProcesses(o.Proc, c.Group, r)
		}
	}
}

// unixOf returns unix seconds; the zero time is cgroup.Absent.
func unixOf(t time.Time) int64 {
	if t.IsZero() {
		return cgroup.Absent
	}
	return t.Unix()
}

// add reads a cgroup and returns its row; nil if the cgroup does not exist (any more). The row is valid until the next
// call.
func (s *scrape) add(l labels, started int64) *row {
	devices := len(s.devices)
	if len(s.rows) == cap(s.rows) {
		s.rows = append(make([]row, 0, 2*len(s.rows)+16), s.rows...)
	}
	s.rows = s.rows[:len(s.rows)+1]
	r := &s.rows[len(s.rows)-1]
	var err error
	if s.devices, err = s.counters.Read(l.id, &r.Counters, s.devices); errors.Is(err, fs.ErrNotExist) {
		s.rows = s.rows[:len(s.rows)-1]
		return nil
	} else if err != nil {
		slog.Warn("a counter of a cgroup left out", "cgroup", l.id, "err", err)
	}
	text := len(s.text)
	s.text = l.appendTo(s.text)
	r.labels = span{text, len(s.text)}
	r.started = started
	r.devices = span{devices, len(s.devices)}
	r.interfaces = span{}
	r.root = false
	r.processes = cgroup.Absent
	r.descriptors = cgroup.Absent
	r.sockets = cgroup.Absent
	r.filesSoftLimit = cgroup.Absent
	return r
}

// appendTo writes the labels as samples have them, without braces.
func (l labels) appendTo(to []byte) []byte {
	to = appendLabel(to, "container", l.container)
	to = appendLabel(append(to, ','), "id", l.id)
	to = appendLabel(append(to, ','), "image", l.image)
	to = appendLabel(append(to, ','), "name", l.name)
	to = appendLabel(append(to, ','), "namespace", l.namespace)
	return appendLabel(append(to, ','), "pod", l.pod)
}

// appendLabel writes name="value". The format escapes backslash, quote and newline.
func appendLabel(to []byte, name, value string) []byte {
	to = append(to, name...)
	to = append(to, '=', '"')
	for i := 0; i < len(value); i++ {
		switch c := value[i]; c {
		case '\\', '"':
			to = append(to, '\\', c)
		case '\n':
			to = append(to, '\\', 'n')
		default:
			to = append(to, c)
		}
	}
	return append(to, '"')
}
