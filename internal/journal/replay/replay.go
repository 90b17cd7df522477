// Package replay puts recorded decisions through the core again, and says which come out differently.
//
// # Model
//
// A record of an eviction, an admission or the lifecycle controller has all inputs of its decision in itself, so each
// is repeated alone. A scheduler's decision depends on the whole cluster. A file of Facts has everything that a
// scheduler was told from its beginning: it is told to another scheduler, and each answer is compared. The first that
// differs ends the replay of the file, because all that follow may differ because of it.
//
// # Invariants
//
//   - Everything is counted: repeated with the same outcome, with another one, or not repeated, and why.
//   - A record that is damaged or of an unknown format is named, and is not repeated.
//
// It decides nothing and changes nothing.
package replay

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/plimsoll-dev/plimsoll/internal/core/admission"
	"github.com/plimsoll-dev/plimsoll/internal/core/eviction"
	"github.com/plimsoll-dev/plimsoll/internal/core/numa"
	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler"
	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler/trace"
	"github.com/plimsoll-dev/plimsoll/internal/journal"
	"github.com/plimsoll-dev/plimsoll/internal/kube/topology"
)

// Result is the outcome of a replay.
type Result struct {
	Records int                  `json:"records"`
	Same    map[journal.Kind]int `json:"same"`              // repeated with the same outcome
	Differ  []Difference         `json:"differ,omitempty"`  // repeated with another one
	Skipped map[string]int       `json:"skipped,omitempty"` // not repeated, by why
	Damaged int                  `json:"damaged,omitempty"` // lines that are no records
	Facts   int                  `json:"facts,omitempty"`   // what a scheduler was told
	Version string               `json:"version,omitempty"` // of the program that recorded the facts
}

// A Difference is a decision that comes out differently: a bug report.
type Difference struct {
	Number uint64          `json:"number"`
	Kind   journal.Kind    `json:"kind"`
	Why    string          `json:"why"`   // how it differs
	Input  json.RawMessage `json:"input"` // the record's detail: everything that decided, and what was decided
}

// replay is a replay in progress.
type replay struct {
	Result
	placer  *scheduler.Placer // nil: no Facts yet, or one differed
	decoder topology.Decoder
	stopped string // why Facts are not repeated any more
}

// File repeats the decisions in a journal's file or directory, a saved answer, or a file of Facts.
func File(path string) (*Result, error) {
	answer, err := journal.Read(path, journal.Query{})
	if err != nil {
		return nil, err
	}
	return Records(answer), nil
}

// Records repeats the decisions of an Answer.
func Records(a journal.Answer) *Result {
	r := &replay{Result: Result{Damaged: a.Damaged, Same: map[journal.Kind]int{}, Skipped: map[string]int{}}}
	for i := range a.Records {
		r.repeat(&a.Records[i])
	}
	return &r.Result
}

func (r *replay) repeat(of *journal.Record) {
	r.Records++
	var why string
	var err error
	switch of.Kind {
	case journal.Eviction:
		why, err = evicted(of.Detail)
	case journal.OfNode, journal.OfPod:
		why, err = written(of.Detail)
	case journal.Admitted:
		var asked bool
		if asked, why, err = admitted(of.Detail); err == nil && !asked {
			r.Skipped["no rule of the core decided: a pod was held or rejected for another reason"]++
			return
		}
	case journal.Pulled, journal.Started, journal.Ended, journal.Stopped, journal.Probed, journal.Preempted,
		journal.OutOfMemory:
		r.Skipped["records of what happened to pods and their containers are no decisions of a rule alone"]++
		return
	case journal.Began:
		err = r.begin(of)
		if err == nil {
			return
		}
	case journal.Fact:
		r.fact(of)
		return
	case journal.Placed, journal.Unschedulable:
		r.Skipped["decisions of a scheduler depend on the whole cluster: they are repeated from a file of --facts-file"]++
		return
	case journal.Intent, journal.Failed, journal.Remark:
		r.Skipped["records of the kinds intent, failed and remark are no decisions"]++
		return
	default:
		err = fmt.Errorf("kind %.40q is not known", of.Kind)
	}
	switch {
	case err != nil:
		r.Skipped[fmt.Sprintf("record %d cannot be read: %v", of.Number, err)]++
	case why != "":
		r.differ(of, why)
	default:
		r.Same[of.Kind]++
	}
}

func (r *replay) differ(of *journal.Record, why string) {
	r.Differ = append(r.Differ, Difference{Number: of.Number, Kind: of.Kind, Why: why, Input: of.Detail})
}

// evicted repeats a decision of an agent.
func evicted(detail []byte) (why string, err error) {
	var d journal.Decision
	if err := json.Unmarshal(detail, &d); err != nil {
		return "", err
	}
	again, err := json.Marshal(eviction.Resume(d.Config, d.Before).Step(d.Now, d.Facts))
	if err != nil {
		return "", err
	}
	was, err := json.Marshal(d.Decided)
	if err != nil {
		return "", err
	}
	if !bytes.Equal(again, was) {
		return fmt.Sprintf("was decided: %s\nis decided now: %s", was, again), nil
	}
	return "", nil
}

// written repeats a decision of the lifecycle controller.
func written(detail []byte) (why string, err error) {
	var d journal.NodeAction
	if err := json.Unmarshal(detail, &d); err != nil {
		return "", err
	}
	if err := d.Basis.Options.Check(); err != nil {
		return "", err
	}
	return d.Basis.Differs(d.Action), nil
}

// admitted repeats what an agent decided about a pod that came to its node. asked is false if no rule was asked.
func admitted(detail []byte) (asked bool, why string, err error) {
	var d struct {
		journal.Admission
		Assignment *struct {
			journal.Assignment
			State *topology.Object `json:"state"`
		} `json:"assignment"`
	}
	if err := json.Unmarshal(detail, &d); err != nil {
		return false, "", err
	}
	if d.Basis != nil {
		if again := d.Basis.Repeat(); !reflect.DeepEqual(again, d.Rejection) {
			return true, fmt.Sprintf("was decided: %s\nis decided now: %s", textOf(d.Rejection), textOf(again)), nil
		}
	}
	if d.Assignment == nil {
		return d.Basis != nil, "", nil
	}
	if d.Assignment.State == nil {
		return false, "", errors.New("an assignment without its state")
	}
	node, err := topology.Decode(d.Assignment.State, nil)
	if err != nil {
		return false, "", err
	}
	pod, answers, err := d.Assignment.Asked()
	if err == nil {
		err = check(&pod)
	}
	if err != nil {
		return false, "", err
	}
	got, message := "", ""
	if offer, rejection := node.State.Offer(pod, answers); rejection != nil {
		message = rejection.Message()
	} else {
		got = topology.EncodePod(offer.Assignment)
	}
	if got != d.Assignment.Decided || message != d.Assignment.Message {
		return true, fmt.Sprintf("was assigned: %s%s\nis assigned now: %s%s", d.Assignment.Decided, d.Assignment.Message, got,
			message), nil
	}
	return true, "", nil
}

// check refuses amounts that no agent records.
func check(pod *numa.Pod) error {
	for _, list := range [][]numa.Container{pod.Init, pod.Containers} {
		for i := range list {
			c := &list[i]
			bad := c.CPU < 0
			for _, m := range c.Memory {
				bad = bad || m.Bytes < 0 || m.PageSize < 0
			}
			for _, d := range c.Devices {
				bad = bad || d.Count < 0
			}
			if bad {
				return fmt.Errorf("container %.40q requests a negative amount", c.Name)
			}
		}
	}
	return nil
}

// begin begins with a scheduler that was told nothing.
func (r *replay) begin(of *journal.Record) error {
	var b journal.Beginning
	if err := json.Unmarshal(of.Detail, &b); err != nil {
		return err
	}
	r.placer = scheduler.New(b.Options)
	r.stopped = ""
	r.Version = b.Version
	return nil
}

// fact tells the scheduler a fact, or compares an answer.
func (r *replay) fact(of *journal.Record) {
	r.Facts++
	if r.placer == nil {
		if r.stopped == "" {
			r.stopped = "facts before the beginning"
		}
		r.Skipped["facts: "+r.stopped]++
		return
	}
	stop := func(why string) {
		r.placer, r.stopped = nil, why
		r.Skipped["facts: "+why]++
	}
	var f journal.Told
	if err := json.Unmarshal(of.Detail, &f.Fact); err != nil {
		stop(fmt.Sprintf("record %d cannot be read: %v", of.Number, err))
		return
	}
	if !f.Known() {
		stop(fmt.Sprintf("record %d is no call of this program's scheduler: %.40q", of.Number, f.Call))
		return
	}
	if f.Call == "ReportSeen" {
		if err := r.addReport(&f.Fact, of.Detail); err != nil {
			stop(fmt.Sprintf("record %d cannot be read: %v", of.Number, err))
			return
		}
	}
	again := f.Apply(r.placer)
	switch {
	case f.Call != "Next":
	case !again.Same(f.Decided):
		r.differ(of, fmt.Sprintf("was decided: %s\nis decided now: %s", text(f.Decided), text(again)))
		r.placer, r.stopped = nil, "a decision differs, and those after it may differ because of it"
	case again != nil:
		r.Same[kindOf(again)]++
	}
}

// addReport adds the report to a fact that has the object with it.
func (r *replay) addReport(f *trace.Fact, detail []byte) error {
	var of struct {
		Object *topology.Object `json:"object"`
	}
	if err := json.Unmarshal(detail, &of); err != nil || of.Object == nil {
		return err
	}
	n, err := r.decoder.Decode(of.Object)
	if err != nil {
		return err
	}
	f.Report = n.State
	return nil
}

// kindOf returns the kind of record that a decision would have.
func kindOf(d *trace.Decided) journal.Kind {
	if d.Node != "" {
		return journal.Placed
	}
	return journal.Unschedulable
}

func textOf(r *admission.Rejection) string {
	if r == nil {
		return "admitted"
	}
	return r.Reason + ": " + r.Message
}

func text(d *trace.Decided) string {
	if d == nil {
		return "nothing: no pod is ready"
	}
	out, err := json.Marshal(d)
	if err != nil {
		return err.Error()
	}
	return string(out)
}

// Table returns the result for people. A Difference is printed whole: it is a bug report.
func (r *Result) Table() []byte {
	var out bytes.Buffer
	total := 0
	var parts []string
	for _, kind := range slices.Sorted(maps.Keys(r.Same)) {
		total += r.Same[kind]
		parts = append(parts, fmt.Sprintf("%d %s", r.Same[kind], kind))
	}
	fmt.Fprintf(&out, "%d records; %d decisions repeated with the same outcome", r.Records, total)
	if len(parts) > 0 {
		fmt.Fprintf(&out, " (%s)", strings.Join(parts, ", "))
	}
	fmt.Fprintf(&out, "; %d with another outcome.\n", len(r.Differ))
	if r.Facts > 0 {
		fmt.Fprintf(&out, "%d facts, recorded by version %q.\n", r.Facts, r.Version)
	}
	for _, why := range slices.Sorted(maps.Keys(r.Skipped)) {
		fmt.Fprintf(&out, "Not repeated: %d: %s.\n", r.Skipped[why], why)
	}
	if r.Damaged > 0 {
		fmt.Fprintf(&out, "Damaged lines: %d.\n", r.Damaged)
	}
	for _, d := range r.Differ {
		fmt.Fprintf(&out, "\nBUG: record %d (%s) has another outcome. Please report it with all that follows.\n",
			d.Number, d.Kind)
		fmt.Fprintf(&out, "%s\ninput: %s\n", d.Why, d.Input)
	}
	return out.Bytes()
}
