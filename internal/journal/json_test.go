package journal

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"
)

// TestJSON: records and placements are encoded as encoding/json does it, whatever is in them.
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
		r.Text = p.Text()
		line, err := encode([]byte("before"), r)
		if err != nil {
			t.Fatal(err)
		}
		r.Text, r.Detail = "", nil
		if got, err := encodeNote([]byte("before"), &r, &p); err != nil || string(got) != string(line) {
			t.Fatalf("got  %s, %v\nwant %s", got, err, line)
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
