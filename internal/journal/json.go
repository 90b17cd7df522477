package journal

import (
	"bytes"
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"strconv"
	"time"
)

// This file encodes what a busy component records for each pod, in the form of encoding/json, which takes three times
// as long (BenchmarkEncode). TestJSON compares both.

// An appender is a Detail of which there are many: it is encoded without allocations.
type appender interface {
	appendText(to []byte) []byte // its text, not quoted
	// plain reports whether its text may be quoted without a look at each byte: what it is made of has nothing special.
	plain() bool
	appendJSON(to []byte) ([]byte, error)
}

// appendRecord appends r as json.Marshal does. The detail is JSON already, and is not read again.
func appendRecord(to []byte, r *Record) ([]byte, error) {
	to, err := appendHead(to, r)
	if err != nil {
		return nil, err
	}
	to = appendText(append(to, `,"text":`...), r.Text)
	if bytes.IndexByte(r.Detail, '\n') >= 0 {
		return nil, errors.New("the detail has more than one line")
	}
	if len(r.Detail) > 0 {
		to = append(append(to, `,"detail":`...), r.Detail...)
	}
	return append(to, '}'), nil
}

// appendHead appends the members of r before its text.
func appendHead(to []byte, r *Record) ([]byte, error) {
	if year := r.Time.Year(); year < 0 || year > 9999 {
		return nil, errors.New("the time has no year of four digits")
	}
	to = strconv.AppendUint(append(to, `{"number":`...), r.Number, 10)
	to = append(r.Time.AppendFormat(append(to, `,"time":"`...), time.RFC3339Nano), '"')
	to = appendText(append(to, `,"kind":`...), string(r.Kind))
	to = appendNamed(to, `,"by":`, r.By)
	to = appendNamed(to, `,"node":`, r.Node)
	if len(r.Pods) > 0 {
		to = append(to, `,"pods":[`...)
		for i := range r.Pods {
			if i > 0 {
				to = append(to, ',')
			}
			to = appendPod(to, &r.Pods[i])
		}
		to = append(to, ']')
	}
	return to, nil
}

func appendPod(to []byte, p *Pod) []byte {
	to = appendText(append(to, `{"namespace":`...), p.Namespace)
	to = appendText(append(to, `,"name":`...), p.Name)
	to = appendText(append(to, `,"uid":`...), p.UID)
	to = appendNamed(to, `,"message":`, p.Message)
	if p.Until != 0 {
		to = strconv.AppendInt(append(to, `,"until":`...), p.Until, 10)
	}
	if p.Disrupts {
		to = append(to, `,"disrupts":true`...)
	}
	return append(to, '}')
}

// appendNamed appends a member whose text may be empty: then it is left out.
func appendNamed(to []byte, name, text string) []byte {
	if text == "" {
		return to
	}
	return appendText(append(to, name...), text)
}

func appendText(to []byte, text string) []byte {
	if isPlain(text) {
		return append(append(append(to, '"'), text...), '"')
	}
	quoted, _ := json.Marshal(text) // a string has no error
	return append(to, quoted...)
}

// quote ends the text that begins after the quotation mark at a place of to.
func quote(to []byte, at int) []byte {
	for _, c := range to[at+1:] {
		if special[c] {
			quoted, _ := json.Marshal(string(to[at+1:])) // a string has no error
			return append(to[:at], quoted...)
		}
	}
	return append(to, '"')
}

func isPlain(text string) bool {
	for i := range len(text) {
		if special[text[i]] {
			return false
		}
	}
	return true
}

// special are the bytes that encoding/json may not copy as they are.
var special = func() (out [256]bool) {
	for c := range out {
		out[c] = c < ' ' || c >= 0x7f || bytes.IndexByte([]byte(`"\<>&`), byte(c)) >= 0
	}
	return out
}()

func appendNumber(to []byte, name string, n int64) []byte { return appendInt(append(to, name...), n) }

// appendInt appends n as strconv.AppendInt does, in less time: it writes the digits where they belong.
func appendInt(to []byte, n int64) []byte {
	if n < 0 || n >= 1e15 {
		return strconv.AppendInt(to, n, 10)
	}
	left, digits := uint64(n), 1
	for power := uint64(10); left >= power; power *= 10 {
		digits++
	}
	to = append(to, "000000000000000"[:digits]...)
	for at := len(to) - 1; left > 0; at-- {
		next := left / 10
		to[at] = '0' + byte(left-next*10)
		left = next
	}
	return to
}

// append appends the members of a Try, without braces.
func (t *Try) append(to []byte) []byte {
	to = appendNumber(to, `"attempt":`, int64(t.Attempt))
	to = appendNumber(to, `,"waited":`, int64(t.Waited))
	to = appendNumber(to, `,"took":`, int64(t.Took))
	to = appendNumber(to, `,"priority":`, int64(t.Priority))
	to = appendNamed(to, `,"profile":`, t.Profile)
	return appendNumber(to, `,"nodes":`, int64(t.Nodes))
}

// plain implements appender. Durations have the letter µ, which encoding/json copies.
func (p *Placement) plain() bool {
	for i := range p.Room {
		if !isPlain(p.Room[i].Resource) {
			return false
		}
	}
	return len(p.Berth) == 0 && isPlain(p.Node)
}

// appendJSON appends a Placement as json.Marshal does. A placement with assigned CPUs is rare: encoding/json has it.
func (p *Placement) appendJSON(to []byte) ([]byte, error) {
	if len(p.Berth) > 0 {
		text, err := json.Marshal(p)
		return append(to, text...), err
	}
	to = p.Try.append(append(to, '{'))
	to = appendText(append(to, `,"node":`...), p.Node)
	to = appendNumber(to, `,"feasible":`, int64(p.Feasible))
	to = appendNumber(to, `,"score":`, p.Score)
	to = appendRoom(to, `,"room":`, p.Room)
	if p.Volumes != 0 {
		to = appendNumber(to, `,"volumes":`, int64(p.Volumes))
	}
	if p.Late {
		to = append(to, `,"late":true`...)
	}
	return append(to, '}'), nil
}

// between is what comes before the item i of a list that begins with first.
func between(i int, first byte) byte {
	if i > 0 {
		return ','
	}
	return first
}

func appendRoom(to []byte, name string, list []Room) []byte {
	if len(list) == 0 {
		return to
	}
	to = append(to, name...)
	for i := range list {
		r := &list[i]
		to = appendText(append(append(to, between(i, '[')), `{"resource":`...), r.Resource)
		to = appendNumber(to, `,"requested":`, r.Requested)
		to = appendNumber(to, `,"free":`, r.Free)
		to = append(appendNumber(to, `,"allocatable":`, r.Allocatable), '}')
	}
	return append(to, ']')
}

// plain implements appender.
func (u *Refusal) plain() bool {
	for i := range u.Victims {
		if v := &u.Victims[i]; !isPlain(v.Namespace) || !isPlain(v.Name) {
			return false
		}
	}
	return isPlain(u.Why) && isPlain(u.Node)
}

// appendJSON appends a Refusal as json.Marshal does.
func (u *Refusal) appendJSON(to []byte) ([]byte, error) {
	to = u.Try.append(append(to, '{'))
	to = appendRoom(to, `,"requests":`, u.Requests)
	if len(u.Reasons) > 0 {
		var space [8]string
		reasons := slices.AppendSeq(space[:0], maps.Keys(u.Reasons))
		slices.Sort(reasons)
		to = append(to, `,"reasons":`...)
		for i, reason := range reasons {
			to = appendText(append(to, between(i, '{')), reason)
			to = appendNumber(to, ":", int64(u.Reasons[reason]))
		}
		to = append(to, '}')
	}
	if len(u.Plugins) > 0 {
		to = append(to, `,"plugins":`...)
		for i, plugin := range u.Plugins {
			to = appendText(append(to, between(i, '[')), plugin)
		}
		to = append(to, ']')
	}
	to = appendText(append(to, `,"why":`...), u.Why)
	to = appendNamed(to, `,"node":`, u.Node)
	if len(u.Victims) > 0 {
		to = append(to, `,"victims":`...)
		for i := range u.Victims {
			v := &u.Victims[i]
			to = appendText(append(append(to, between(i, '[')), `{"namespace":`...), v.Namespace)
			to = appendText(append(to, `,"name":`...), v.Name)
			to = appendText(append(to, `,"uid":`...), v.UID)
			if v.Withdrawn {
				to = append(to, `,"withdrawn":true`...)
			}
			to = append(to, '}')
		}
		to = append(to, ']')
	}
	if u.Violations != 0 {
		to = appendNumber(to, `,"violations":`, int64(u.Violations))
	}
	return append(to, '}'), nil
}
