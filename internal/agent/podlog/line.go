// Package podlog reads, follows and rotates the log files that a CRI runtime writes for containers.
//
// A file contains one attempt of one container, stdout and stderr together, in the CRI's format:
//
//	2016-10-06T00:17:09.669794202Z stdout P a line too long for one entry, first
//	2016-10-06T00:17:09.669794203Z stdout F  and last part
//
// A P entry is continued by the next entry of its stream; an F entry ends the line. (k8s.io/cri-api LogTag; containerd
// splits entries at 16 KiB.) In the same directory as <n>.log are the rotated <n>.log.<time> and the older
// <n>.log.<time>.gz.
//
// Reading never loads a whole file: the tail is found by reading blocks backwards from the end, and an entry of any
// length passes through a fixed buffer. Following waits for the kernel (inotify, one instance per process however many
// followers). When the log is rotated, it first reads the rest of the old file and then the new one. The caller reports
// the container's end.
//
// As in the kubelet, only the current file is read; rotated files are left to log collectors.
//
// Directory knows where the logs of all pods are. It creates the links that log collectors follow, and removes the logs
// of runs and pods that are gone.
package podlog

import (
	"bytes"
	"fmt"
	"time"
)

// Stream is the stream to which a container wrote an entry.
type Stream uint8

// The streams; as an option Both selects either.
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

// headMax is more than the length of an entry before its text: 35 bytes of time, a stream, tags.
const headMax = 128

// Parse parses a line of a log file. The line may lack its newline.
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
	// Tags are separated by colons. The first one is P or F; the others are reserved by the CRI.
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
// lines, so that a tail of a damaged file is not longer than requested.
func endsLine(head []byte) bool {
	e, err := Parse(head)
	return err != nil || !e.Partial
}
