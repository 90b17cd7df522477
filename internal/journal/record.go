package journal

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"
)

// Kind is the kind of a record.
type Kind string

// Kinds. Programs read them: kinds are only added.
const (
	// The agent's.
	Intent   Kind = "intent"   // pods are about to be evicted; written before the first of them is killed
	Eviction Kind = "eviction" // a decision about pods or reclaim, its inputs and its outcome: Decision

	// The agent's, in the journal of its pods.
	Admitted    Kind = "admission" // a pod is admitted, rejected or held: Admission
	Pulled      Kind = "pull"      // an attempt to pull an image: Pull
	Started     Kind = "start"     // a container was started: Start
	Ended       Kind = "end"       // a container has ended, and what follows: End
	Stopped     Kind = "stop"      // a container is ordered to end: Stop
	Probed      Kind = "probe"     // probes changed what follows for a container: Probe
	Preempted   Kind = "preempt"   // a pod ends so that a critical one fits: Preemption
	OutOfMemory Kind = "oom"       // the kernel killed a process: OOMKill

	// The scheduler's.
	Placed        Kind = "placement"     // a pod gets a node: Placement
	Unschedulable Kind = "unschedulable" // a pod fits nowhere, or preempts others: Refusal

	// The lifecycle controller's.
	OfNode Kind = "node" // what is written about a node: NodeAction
	OfPod  Kind = "pod"  // what is done to a pod: NodeAction
	Remark Kind = "remark"

	// Of all of them.
	Failed Kind = "failed" // a decision could not be carried out: Failure
)

// Pod is a pod that a decision was about.
type Pod struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	UID       string `json:"uid"`
	Message   string `json:"message,omitempty"`  // the message in its status
	Until     int64  `json:"until,omitempty"`    // Unix nanoseconds: when its remaining processes are killed
	Disrupts  bool   `json:"disrupts,omitempty"` // it gets the condition DisruptionTarget
}

// Record is one decision.
type Record struct {
	Number uint64          `json:"number"` // set by the writer
	Time   time.Time       `json:"time"`
	Kind   Kind            `json:"kind"`
	By     string          `json:"by,omitempty"`   // scheduler or lifecycle; empty: an agent
	Node   string          `json:"node,omitempty"` // the node that the decision was about; the agent leaves it out
	Pods   []Pod           `json:"pods,omitempty"` // the pod that the decision was about is the first
	Text   string          `json:"text"`           // one line for people
	Detail json.RawMessage `json:"detail,omitempty"`
}

// Query says which records are wanted. What is empty matches all.
type Query struct {
	Namespace, Name string
	UID             string // if set, pods of the same name with another UID do not match
	Node            string // records without a node match any
}

// matches reports whether a record about these is wanted.
func (q *Query) matches(node string, pods []Pod) bool {
	if q.Node != "" && node != "" && node != q.Node {
		return false
	}
	if q.Namespace == "" && q.Name == "" && q.UID == "" {
		return true
	}
	for i := range pods {
		p := &pods[i]
		if (q.Namespace == "" || p.Namespace == q.Namespace) && (q.Name == "" || p.Name == q.Name) &&
			(q.UID == "" || p.UID == q.UID) {
			return true
		}
	}
	return false
}

// An Answer has the records that were wanted, oldest first, and says how much of the journal there is.
type Answer struct {
	// By is whose journal it is: scheduler or lifecycle. Empty: an agent's.
	By string `json:"by,omitempty"`
	// Since is from when on the journal has all records: the time of its oldest record, wanted or not, if older ones were
	// dropped, or when its writer began, if it keeps records in memory only. Zero: nothing from before is missing.
	Since time.Time `json:"since,omitzero"`
	// First is the number of the oldest record that was not dropped. Above 1: older ones were dropped.
	First   uint64 `json:"first,omitempty"`
	Last    uint64 `json:"last,omitempty"` // the number of the newest record
	Damaged int    `json:"damaged,omitempty"`
	Missing uint64 `json:"missing,omitempty"` // how many numbers from First to Last have no record: they are lost
	// Waiting is how many of the records are in memory only, because the disk cannot be written.
	Waiting uint64   `json:"waiting,omitempty"`
	Records []Record `json:"records"`
}

// Add adds the records of another journal of the same agent, which has two. Afterwards Since and First are those of the
// journal that begins later.
func (a *Answer) Add(other Answer) {
	if other.Since.After(a.Since) {
		a.Since, a.First = other.Since, other.First
	}
	a.First = cmp.Or(a.First, other.First)
	a.Last = max(a.Last, other.Last)
	a.Damaged += other.Damaged
	a.Missing += other.Missing
	a.Waiting += other.Waiting
	a.Records = append(a.Records, other.Records...)
	slices.SortStableFunc(a.Records, func(x, y Record) int { return x.Time.Compare(y.Time) })
}

// fromFirst corrects an Answer from the files of dir: if none of them was ever replaced, nothing was dropped, and what
// is not there from the first number on was lost.
func (a *Answer) fromFirst(dir string) {
	if _, err := os.Lstat(filepath.Join(dir, older)); a.First > 1 && errors.Is(err, os.ErrNotExist) {
		a.Missing += a.First - 1
		a.First, a.Since = 1, time.Time{}
	}
}

// collector returns a function that adds the records of a journal in order.
func (a *Answer) collector(q Query) func(Record) {
	return func(r Record) {
		switch {
		case a.First == 0:
			if a.First = r.Number; r.Number > 1 {
				a.Since = r.Time
			}
		case r.Number > a.Last+1:
			a.Missing += r.Number - a.Last - 1
		}
		a.Last, a.By = r.Number, r.By
		if q.matches(r.Node, r.Pods) {
			a.Records = append(a.Records, r)
		}
	}
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// encode appends r as a line to text.
func encode(text []byte, r Record) ([]byte, error) {
	line, err := appendRecord(append(text, noSum...), &r)
	if err != nil {
		return text, err
	}
	return seal(line, len(text))
}

// encodeNote appends a record with a Detail that is not encoded yet as a line to text.
func encodeNote(text []byte, r *Record, d appender) ([]byte, error) {
	line, err := appendHead(append(text, noSum...), r)
	if err != nil {
		return text, err
	}
	line = append(line, `,"text":`...)
	at := len(line)
	line = d.appendText(append(line, '"'))
	if d.plain() {
		line = append(line, '"')
	} else {
		line = quote(line, at)
	}
	if line, err = d.appendJSON(append(line, `,"detail":`...)); err != nil {
		return text, err
	}
	return seal(append(line, '}'), len(text))
}

// noSum is where the checksum of a line comes.
const noSum = "00000000 "

// seal ends the line that begins at began with its checksum. If the line is too long, it is left out.
func seal(line []byte, began int) ([]byte, error) {
	body := line[began+len(noSum):]
	if len(body) > lineMax-10 {
		return line[:began], fmt.Errorf("%d bytes: want at most %d", len(body), lineMax-10)
	}
	var sum [4]byte
	binary.BigEndian.PutUint32(sum[:], crc32.Checksum(body, castagnoli))
	hex.Encode(line[began:], sum[:])
	return append(line, '\n'), nil
}

// decode reads a line without its newline.
func decode(text []byte) (Record, error) {
	sum, body, ok := bytes.Cut(text, []byte{' '})
	want, err := strconv.ParseUint(string(sum), 16, 32)
	if !ok || err != nil || len(sum) != 8 {
		return Record{}, fmt.Errorf("%.40q: want a checksum of 8 hexadecimal digits, and a record", text)
	}
	if have := crc32.Checksum(body, castagnoli); have != uint32(want) {
		return Record{}, fmt.Errorf("checksum %08x: the record has %08x", want, have)
	}
	var r Record
	if err := json.Unmarshal(body, &r); err != nil {
		return Record{}, err
	}
	return r, nil
}
