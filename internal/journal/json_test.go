package journal

import (
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"
	"time"
)

// TestJSON: records, placements and refusals are encoded as encoding/json does it, whatever is in them.
func TestJSON(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	texts := []string{"", "web-7c9", "<a&b>", "\"quoted\" \\", "line\nfeed\ttab\x00\x7f", "Größe \u2028", "bad \xff utf-8"}
	text := func() string { return texts[rng.IntN(len(texts))] }
	number := func() int64 { return rng.Int64N(5)*rng.Int64N(1<<50) - rng.Int64N(2) }
	for range 2000 {
		p := Placement{
			Try: Try{
				Attempt:  int(number()),
				Waited:   time.Duration(number()),
				Took:     time.Duration(number()),
				Priority: int32(number()),
				Profile:  text(),
				Nodes:    int(number()),
			},
			Node:     text(),
			Feasible: int(number()),
			Score:    number(),
			Volumes:  rng.IntN(3),
			Late:     rng.IntN(2) == 0,
		}
		for range rng.IntN(4) {
			p.Room = append(p.Room, Room{text(), number(), number(), number()})
		}
		if rng.IntN(4) == 0 {
			p.Berth = []Berth{{Container: text(), CPUs: text(), NUMANodes: []int{1}}}
		}
		want, err := json.Marshal(p)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := p.appendJSON(nil); err != nil || string(got) != string(want) {
			t.Fatalf("got  %s, %v\nwant %s", got, err, want)
		}
		r := Record{
			Number: uint64(rng.Int64()),
			Time:   time.Unix(number()>>20, rng.Int64N(1e9)).In(time.FixedZone("", rng.IntN(3)*3600)),
			Kind:   Kind(text()),
			By:     text(),
			Node:   text(),
			Text:   text(),
			Detail: want,
		}
		for range rng.IntN(3) {
			r.Pods = append(r.Pods, Pod{text(), text(), text(), text(), number(), rng.IntN(2) == 0})
		}
		if want, err = json.Marshal(r); err != nil {
			t.Fatal(err)
		}
		if got, err := appendRecord(nil, &r); err != nil || string(got) != string(want) {
			t.Fatalf("got  %s, %v\nwant %s", got, err, want)
		}
		refusal := &Refusal{Try: p.Try, Requests: p.Room, Why: text(), Node: text(), Violations: rng.IntN(2)}
		for range rng.IntN(12) {
			if refusal.Reasons == nil {
				refusal.Reasons = map[string]int{}
			}
			refusal.Reasons[text()+text()] = int(number())
			refusal.Plugins = append(refusal.Plugins, text())
		}
		for range rng.IntN(3) {
			refusal.Victims = append(refusal.Victims, Victim{text(), text(), text(), rng.IntN(2) == 0})
		}
		for _, d := range []interface {
			Detail
			appender
		}{&p, refusal} {
			sameNote(t, r, d)
		}
	}
	for _, r := range []Record{{Detail: json.RawMessage("{\n}")}, {Time: time.Unix(1<<40, 0)}} {
		if line, err := encode([]byte("before"), r); err == nil || string(line) != "before" {
			t.Errorf("encoded %s", fmt.Sprintf("%q", line))
		}
	}
	long := Record{Text: strings.Repeat("x", lineMax)}
	if line, err := encode([]byte("before"), long); err == nil || string(line) != "before" {
		t.Errorf("encoded %d bytes", len(line))
	}
}

// sameNote checks that a Note with the Detail d is encoded as the Record r with d.
func sameNote(t *testing.T, r Record, d interface {
	Detail
	appender
}) {
	t.Helper()
	var err error
	if r.Detail, err = json.Marshal(d); err != nil {
		t.Fatal(err)
	}
	r.Text = d.Text()
	line, err := encode([]byte("before"), r)
	if err != nil {
		t.Fatal(err)
	}
	r.Text, r.Detail = "", nil
	if got, err := encodeNote([]byte("before"), &r, d); err != nil || string(got) != string(line) {
		t.Fatalf("got  %s, %v\nwant %s", got, err, line)
	}
}

// TestNumbers: numbers are encoded as strconv does it, also where their number of digits changes.
func TestNumbers(t *testing.T) {
	for _, n := range []int64{0, 1, -1, math.MinInt64, math.MaxInt64} {
		sameNumber(t, n)
	}
	for power := int64(1); power < math.MaxInt64/10; power *= 10 {
		for _, n := range []int64{power - 1, power, power + 1, 9 * power, -power} {
			sameNumber(t, n)
		}
	}
}

func sameNumber(t *testing.T, n int64) {
	t.Helper()
	if got, want := string(appendInt([]byte("x"), n)), "x"+strconv.FormatInt(n, 10); got != want {
		t.Errorf("%s, want %s", got, want)
	}
}
