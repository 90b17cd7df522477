package journal

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/plimsoll-dev/plimsoll/internal/core/numa"
	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

// Try is what the records of the scheduler about one try of a pod have in common.
type Try struct {
	Attempt  int           `json:"attempt"` // how often the pod was tried, including this time
	Waited   time.Duration `json:"waited"`  // since the scheduler first saw it pending
	Took     time.Duration `json:"took"`    // how long the decision took
	Priority int32         `json:"priority"`
	Profile  string        `json:"profile,omitempty"`
	Nodes    int           `json:"nodes"` // how many nodes there were, all of them considered
}

// Placement is the Detail of a Placed record.
type Placement struct {
	Try
	Node     string `json:"node"`
	Feasible int    `json:"feasible"` // how many nodes passed all filters
	Score    int64  `json:"score"`    // of the node; 0: it was the only one, or the pod was nominated there
	// Room is what the node has of what the pod requests, before the pod.
	Room    []Room  `json:"room,omitempty"`
	Berth   []Berth `json:"berth,omitempty"`
	Volumes int     `json:"volumes,omitempty"` // how many of its claims must be bound or provisioned first
	Late    bool    `json:"late,omitempty"`    // no event made it active although it fit, which is an error
}

// Room is one resource on a node, in its base unit: millicores of cpu, bytes, else a count.
type Room struct {
	Resource    string `json:"resource"`
	Requested   int64  `json:"requested"` // by the pod
	Free        int64  `json:"free"`      // before the pod
	Allocatable int64  `json:"allocatable"`
}

// Berth is the CPUs and NUMA nodes that one container of a pod is expected to get.
type Berth struct {
	Container string `json:"container"`
	CPUs      string `json:"cpus,omitempty"` // as in /sys: 2-3,8
	NUMANodes []int  `json:"numaNodes,omitempty"`
}

// BerthOf returns b as it is recorded.
func BerthOf(b numa.Berth) (out []Berth) {
	for _, c := range b {
		of := Berth{Container: c.Container, CPUs: c.CPUs.String()}
		for _, n := range c.Nodes {
			of.NUMANodes = append(of.NUMANodes, int(n))
		}
		out = append(out, of)
	}
	return out
}

// Text implements Detail.
func (p *Placement) Text() string { return string(p.appendText(make([]byte, 0, 256))) }

// appendText appends the text. Every pod has one, and fmt takes twice as long.
func (p *Placement) appendText(b []byte) []byte {
	b = append(append(append(b, "placed on "...), p.Node...), ": "...)
	b = append(appendInt(b, int64(p.Feasible)), " of "...)
	b = append(appendInt(b, int64(p.Nodes)), " nodes fit"...)
	if p.Score != 0 {
		b = strconv.AppendInt(append(b, ", score "...), p.Score, 10)
	}
	for i := range p.Room {
		r := &p.Room[i]
		b = append(append(append(b, "; "...), r.Resource...), ": "...)
		b = append(appendAmount(b, r.Resource, r.Requested), " requested, "...)
		b = append(appendAmount(b, r.Resource, r.Free), " free of "...)
		b = appendAmount(b, r.Resource, r.Allocatable)
	}
	for _, of := range p.Berth {
		b = append(append(append(b, "; container "...), of.Container...), " gets"...)
		if of.CPUs != "" {
			b = append(append(b, " CPUs "...), of.CPUs...)
		}
		if len(of.NUMANodes) > 0 {
			b = fmt.Appendf(b, " on NUMA nodes %v", of.NUMANodes)
		}
	}
	if p.Volumes > 0 {
		b = append(strconv.AppendInt(append(b, "; "...), int64(p.Volumes), 10), " volumes are bound first"...)
	}
	if p.Late {
		b = append(b, "; it fit before, and no event said so: an error of the scheduler"...)
	}
	return p.appendTried(b)
}

// appendTried says how long the pod has waited.
func (t *Try) appendTried(b []byte) []byte {
	b = append(strconv.AppendInt(append(b, " (try "...), int64(t.Attempt), 10), ", "...)
	return append(append(b, round(t.Waited).String()...), " after it came)"...)
}

// Size implements Detail.
func (p *Placement) Size() int { return 200 + 96*len(p.Berth) + 40*len(p.Room) }

// Refusal is the Detail of an Unschedulable record.
type Refusal struct {
	Try
	Requests []Room         `json:"requests,omitempty"` // what the pod requests; the rest of Room is not set
	Reasons  map[string]int `json:"reasons,omitempty"`  // how many nodes gave each reason
	Plugins  []string       `json:"plugins,omitempty"`  // the plugins that rejected it
	Why      string         `json:"why"`                // upstream's message
	// Node is where room is made, or where the pod is nominated already; empty: nowhere.
	Node       string   `json:"node,omitempty"`
	Victims    []Victim `json:"victims,omitempty"`
	Violations int      `json:"violations,omitempty"` // victims whose disruption budget does not allow it
}

// Victim is a pod that is preempted.
type Victim struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	UID       string `json:"uid"`
	Withdrawn bool   `json:"withdrawn,omitempty"` // it was not bound yet: its bind is withdrawn
}

// Text implements Detail.
func (u *Refusal) Text() string { return string(u.appendText(make([]byte, 0, 256))) }

func (u *Refusal) appendText(b []byte) []byte {
	b = append(b, u.Why...)
	if len(u.Victims) > 0 {
		b = append(append(append(b, " Preempts on "...), u.Node...), ": "...)
		for i := range u.Victims {
			if i > 0 {
				b = append(b, ", "...)
			}
			b = append(append(append(b, u.Victims[i].Namespace...), '/'), u.Victims[i].Name...)
		}
		if u.Violations > 0 {
			b = strconv.AppendInt(append(b, "; "...), int64(u.Violations), 10)
			b = append(b, " of them against their disruption budget"...)
		}
	} else if u.Node != "" {
		b = append(append(b, " Nominated on "...), u.Node...)
	}
	return u.appendTried(b)
}

// Size implements Detail.
func (u *Refusal) Size() int {
	size := 300 + len(u.Why) + 40*len(u.Requests) + 16*len(u.Plugins)
	for reason := range u.Reasons {
		size += 40 + len(reason)
	}
	for i := range u.Victims {
		v := &u.Victims[i]
		size += 64 + len(v.Namespace) + len(v.Name) + len(v.UID)
	}
	return size
}

// Failure is the Detail of a Failed record.
type Failure struct {
	What  string `json:"what"` // "bind", "write condition and taints"
	Node  string `json:"node,omitempty"`
	Error string `json:"error"`
}

// Text implements Detail.
func (f *Failure) Text() string {
	if f.Node == "" {
		return f.What + " failed: " + f.Error
	}
	return f.What + ", node " + f.Node + ", failed: " + f.Error
}

// Size implements Detail.
func (f *Failure) Size() int { return 48 + len(f.Error) }

// appendAmount appends a quantity in the unit of people.
func appendAmount(b []byte, resource string, value int64) []byte {
	switch {
	case resource == scheduler.CPU:
		return unit.MilliCPU(value).Append(b)
	case resource == scheduler.Memory || resource == scheduler.EphemeralStorage ||
		strings.HasPrefix(resource, "hugepages-"):
		return unit.Bytes(value).Append(b)
	}
	return appendInt(b, value)
}

func amount(resource string, value int64) string { return string(appendAmount(nil, resource, value)) }

// round rounds a duration for people.
func round(d time.Duration) time.Duration {
	switch {
	case d < time.Millisecond:
		return d.Round(time.Microsecond)
	case d < time.Minute:
		return d.Round(time.Millisecond)
	}
	return d.Round(time.Second)
}
