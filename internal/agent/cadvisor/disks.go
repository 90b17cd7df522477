package cadvisor

import (
	"bytes"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/plimsoll-dev/plimsoll/internal/host/cgroup"
)

// diskField is a number of a disk in /proc/diskstats (Documentation/admin-guide/iostats.rst), counted from the first
// field after the name.
type diskField uint8

const (
	diskReads diskField = iota
	diskReadsMerged
	diskSectorsRead
	diskReadTime // milliseconds, as all times
	diskWrites
	diskWritesMerged
	diskSectorsWritten
	diskWriteTime
	diskInFlight
	diskBusy
	diskBusyWeighted
	diskFields
)

// disk is a block device of the node. Its labels are made once for all rows.
type disk struct {
	major, minor uint32
	name         string // sda1
	device       string // device="/dev/sda1"
	read, write  string // the labels of container_blkio_device_usage_total
	fields       [diskFields]int64
}

func (d *disk) used() bool { return d.fields[diskReads] > 0 || d.fields[diskWrites] > 0 }

func (f diskField) of(d *disk) int64 { return d.fields[f] }

// sector is the unit in bytes of sectors in /proc/diskstats, whatever the disk has.
const sector = 512

func diskReadBytes(d *disk) int64  { return d.fields[diskSectorsRead] * sector }
func diskWriteBytes(d *disk) int64 { return d.fields[diskSectorsWritten] * sector }

// eachUsedDisk calls do with every disk that was ever used.
func (s *scrape) eachUsedDisk(do func(*disk)) {
	for i := range s.disks {
		if s.disks[i].used() {
			do(&s.disks[i])
		}
	}
}

func (d *disk) label(major, minor uint32, name string) {
	d.major = major
	d.minor = minor
	d.name = name
	d.device = string(appendLabel(nil, "device", name))
	numbers := d.device + `,major="` + decimal(major) + `",minor="` + decimal(minor) + `",operation=`
	d.read = numbers + `"Read"`
	d.write = numbers + `"Write"`
}

func decimal(n uint32) string { return strconv.FormatUint(uint64(n), 10) }

// filesystem is a file system of the node.
type filesystem struct {
	device                             string // device="/dev/sda1"
	capacity, used, inodes, inodesFree int64
}

// readDisks reads the node's disks and the file systems of o.Dirs. Names are kept from the scrape before.
func (s *scrape) readDisks(o *Options) {
	at := 0
	text := s.files.read(filepath.Join(o.Proc, "diskstats"))
	parseDiskstats(text, func(major, minor uint32, name []byte, fields *[diskFields]int64) {
		if at == len(s.disks) {
			s.disks = append(s.disks, disk{})
		}
		d := &s.disks[at]
		at++
		if d.major != major || d.minor != minor || d.name != "/dev/"+string(name) {
			d.label(major, minor, "/dev/"+string(name))
		}
		d.fields = *fields
	})
	s.disks = s.disks[:at]
	s.mounted = s.mounted[:0]
	for _, dir := range o.Dirs {
		s.readFilesystem(dir)
	}
}

// readFilesystem adds the file system of a directory, unless it is there already.
func (s *scrape) readFilesystem(dir string) {
	var where unix.Stat_t
	var size unix.Statfs_t
	if unix.Stat(dir, &where) != nil || unix.Statfs(dir, &size) != nil {
		return
	}
	device := s.diskOf(&cgroup.Device{Major: unix.Major(where.Dev), Minor: unix.Minor(where.Dev)}).device
	for i := range s.mounted {
		if s.mounted[i].device == device {
			return
		}
	}
	s.mounted = append(s.mounted, filesystem{
		device:     device,
		capacity:   int64(size.Blocks) * size.Frsize,
		used:       int64(size.Blocks-size.Bfree) * size.Frsize,
		inodes:     int64(size.Files),
		inodesFree: int64(size.Ffree),
	})
}

// diskOf returns the disk of a device. One that /proc/diskstats does not have (a file system without a disk, or a disk
// that is gone) is named by its numbers.
func (s *scrape) diskOf(d *cgroup.Device) *disk {
	for i := range s.disks {
		if s.disks[i].major == d.Major && s.disks[i].minor == d.Minor {
			return &s.disks[i]
		}
	}
	var other disk
	other.label(d.Major, d.Minor, decimal(d.Major)+":"+decimal(d.Minor))
	s.disks = append(s.disks, other)
	return &s.disks[len(s.disks)-1]
}

// parseDiskstats reads lines like "8 1 sda1 85 0 4658 60 0 0 0 0 0 44 60". A line that is not understood is left out.
func parseDiskstats(text []byte, each func(major, minor uint32, name []byte, fields *[diskFields]int64)) {
	for len(text) > 0 {
		var line []byte
		line, text, _ = bytes.Cut(text, []byte{'\n'})
		first, rest := word(line)
		second, rest := word(rest)
		name, rest := word(rest)
		major, ok1 := cgroup.ParseNumber(first)
		minor, ok2 := cgroup.ParseNumber(second)
		if !ok1 || !ok2 || major > 1<<32-1 || minor > 1<<32-1 || len(name) == 0 {
			continue
		}
		var fields [diskFields]int64
		whole := true
		for i := range fields {
			var field []byte
			field, rest = word(rest)
			if fields[i], ok1 = cgroup.ParseNumber(field); !ok1 {
				whole = false
				break
			}
		}
		if whole {
			each(uint32(major), uint32(minor), name, &fields)
		}
	}
}
