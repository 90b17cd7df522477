// Package podlog reads, follows and rotates the log files that a CRI runtime writes for containers.
//
// One file holds one attempt of one container, stdout and stderr together, in the format of CRI:
//
//	2016-10-06T00:17:09.669794202Z stdout P a line too long for one entry, first
//	2016-10-06T00:17:09.669794203Z stdout F  and last part
//
// A P entry is continued by the next entry of its stream; an F entry ends the line. (k8s.io/cri-api LogTag; containerd
// cuts entries at 16 KiB.) Beside <n>.log lie the rotated <n>.log.<time> and the older <n>.log.<time>.gz.
//
// Reading never loads a file: the tail is found by walking back from the end in blocks, and an entry of any length
// passes through a fixed buffer. Following waits for the kernel (inotify, one instance per process however many follow)
// and goes on in the new file when the log is rotated, with what was written to the old one first. A container's end
// is learned from the caller.
//
// Only the current file is read, as upstream does; what was rotated away is left to log collectors.
package podlog

import (
	"bytes"
	"fmt"
	"time"
)

// Stream says where a container wrote an entry.
type Stream uint8

// The streams; Both selects either when reading.
const (
	Both Stream = iota
	Stdout
	Stderr
)

// Entry is one parsed line of a log file.
type Entry struct {
	Time    time.Time
	Stream  Stream
	Partial bool   // continued by the next entry of the same stream
	Text    []byte // what the container wrote, with its newline unless Partial; shares memory with the parsed line
}

// headMax is more than the part of an entry before its text can take: 35 bytes of time, a stream, tags.
const headMax = 128

// Parse takes a line of a log file apart. The line may lack its newline.
func Parse(line []byte) (Entry, error) {
	stamp, rest, ok := bytes.Cut(line, []byte{' '})
	if !ok {
		return Entry{}, fmt.Errorf("parse log entry: no time in %.40q", line)
	}
	at, err := time.Parse(time.RFC3339Nano, string(stamp))
	if err != nil {
		return Entry{}, fmt.Errorf("parse log entry: time %.40q: want RFC 3339", stamp)
	}
	name, rest, _ := bytes.Cut(rest, []byte{' '})
	stream, ok := streamNamed(name)
	if !ok {
		return Entry{}, fmt.Errorf("parse log entry: stream %.40q: want stdout or stderr", name)
	}
	// Tags are separated by colons, the first one is P or F; further ones are reserved by CRI.
	tags, text, ok := bytes.Cut(rest, []byte{' '})
	if !ok {
		return Entry{}, fmt.Errorf("parse log entry: no tag in %.40q", rest)
	}
	tag, _, _ := bytes.Cut(tags, []byte{':'})
	e := Entry{Time: at, Stream: stream, Partial: string(tag) == "P", Text: text}
	if e.Partial {
		e.Text = bytes.TrimSuffix(text, []byte{'\n'})
	}
	return e, nil
}

func streamNamed(name []byte) (Stream, bool) {
	switch string(name) {
	case "stdout":
		return Stdout, true
	case "stderr":
		return Stderr, true
	}
	return Both, false
}

// endsLine reports whether the entry that starts with head is the last of its line. Entries that do not parse count as
// lines, so that a tail of a damaged file is not longer than asked.
func endsLine(head []byte) bool {
	e, err := Parse(head)
	return err != nil || !e.Partial
}
