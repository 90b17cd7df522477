package localvolume

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"

	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

// TestScenarios plays testdata/*.txt. "machine" describes one: its disk in GiB (capacity, available, promised), the
// percent that stay free (reserved), quota if it is enforced, formats. "decide" asks for a volume: required and limit
// in KiB, block, fs, backing, and source=(size in MiB, backing, fs or block). "same" asks again for the volume that was
// decided last; "expand" for a larger one, in KiB. "use" says who has it (open, pods=(paths)); "publish", "delete" and
// "snapshot" ask what may be done then.
func TestScenarios(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		p := &player{}
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string { return p.play(t, d) })
	})
}

type player struct {
	machine Machine
	plan    Plan
	use     Use
}

func number(t *testing.T, d *datadriven.TestData, key string) unit.Bytes {
	n := int64(0)
	if d.HasArg(key) {
		d.ScanArgs(t, key, &n)
	}
	return unit.Bytes(n)
}

func text(t *testing.T, d *datadriven.TestData, key string) (s string) {
	if d.HasArg(key) {
		d.ScanArgs(t, key, &s)
	}
	return s
}

func (p *player) wish(t *testing.T, d *datadriven.TestData) Wish {
	w := Wish{
		Required: number(t, d, "required") * unit.KiB,
		Limit:    number(t, d, "limit") * unit.KiB,
		Block:    d.HasArg("block"),
		FSType:   text(t, d, "fs"),
	}
	for _, key := range []string{"backing", "colour"} {
		if value := text(t, d, key); value != "" {
			w.Parameters = map[string]string{key: value}
		}
	}
	if d.HasArg("source") {
		var size int64
		var backing, content string
		d.ScanArgs(t, "source", &size, &backing, &content)
		plan := Plan{Backing: Backing(backing), Size: unit.Bytes(size) * unit.MiB, Block: content == "block"}
		if !plan.Block && content != "-" {
			plan.FSType = content
		}
		w.Source = &Source{Name: "source", Plan: plan}
	}
	return w
}

func (p *player) play(t *testing.T, d *datadriven.TestData) string {
	switch d.Cmd {
	case "machine":
		p.machine = Machine{Quota: d.HasArg("quota"), Space: Space{
			Capacity:  number(t, d, "capacity") * unit.GiB,
			Available: number(t, d, "available") * unit.GiB,
			Promised:  number(t, d, "promised") * unit.GiB,
			Reserved:  int(number(t, d, "reserved")),
		}}
		for _, a := range d.CmdArgs {
			if a.Key == "formats" {
				p.machine.Formats = a.Vals
			}
		}
		return fmt.Sprintf("free %v\n", p.machine.Space.Free())
	case "decide":
		plan, err := Decide(p.wish(t, d), p.machine)
		if err != nil {
			return said(err)
		}
		p.plan = plan
		p.use = Use{}
		return fmt.Sprintf("%s, block %v, fs %q, %v\n", plan.Backing, plan.Block, plan.FSType, plan.Size)
	case "same":
		return said(Same(p.wish(t, d), p.plan, text(t, d, "made-from"), text(t, d, "wanted-from")))
	case "expand":
		size, more, err := Expand(p.plan, number(t, d, "required")*unit.KiB, number(t, d, "limit")*unit.KiB, p.machine.Space)
		if err != nil {
			return said(err)
		}
		return fmt.Sprintf("%v, more %v\n", size, more)
	case "use":
		p.use = Use{Open: d.HasArg("open")}
		for _, a := range d.CmdArgs {
			if a.Key == "pods" {
				p.use.Published = a.Vals
			}
		}
		return ""
	case "publish":
		return said(Publish(d.HasArg("single"), p.use, text(t, d, "at")))
	case "delete":
		return said(Delete(p.plan, p.use))
	case "snapshot":
		how, err := Snapshot(p.plan, p.use, d.HasArg("reflink"))
		if err != nil {
			return said(err)
		}
		return map[Copy]string{CopyNow: "copy\n", CopyFrozen: "freeze, copy, thaw\n"}[how]
	case "fits":
		return said(SnapshotFits(number(t, d, "fills")*unit.GiB, p.machine.Space, d.HasArg("reflink")))
	}
	d.Fatalf(t, "unknown command %s", d.Cmd)
	return ""
}

func said(err error) string {
	if err == nil {
		return "yes\n"
	}
	var e *Error
	if !errors.As(err, &e) {
		return "error without a kind: " + err.Error() + "\n"
	}
	kind := [...]string{"invalid", "out of range", "exhausted", "exists", "precondition"}[e.Kind]
	return kind + ": " + strings.ReplaceAll(e.Text, "\n", " ") + "\n"
}

// TestPlansKeepTheirPromise checks on random machines and wishes: a plan is what its wish allows and its machine can
// do, its volume asked for again is the same one, and all planned volumes fill the disk at most up to what stays free.
func TestPlansKeepTheirPromise(t *testing.T) {
	planned := 0
	for seed := range uint64(2000) {
		r := rand.New(rand.NewPCG(seed, 20))
		m := Machine{Quota: r.IntN(2) == 0, Space: Space{Reserved: r.IntN(30)}}
		m.Space.Capacity = unit.Bytes(1+r.Int64N(200)) * unit.GiB
		m.Space.Available = unit.Bytes(r.Int64N(int64(m.Space.Capacity)))
		m.Formats = [][]string{nil, {"ext4"}, {"ext4", "xfs"}}[r.IntN(3)]
		reserved := m.Space.Capacity / 100 * unit.Bytes(m.Space.Reserved)
		for range 20 {
			w := randomWish(r)
			plan, err := Decide(w, m)
			if err != nil {
				continue
			}
			planned++
			m.Space.Promised += plan.Size
			switch {
			case plan.Size < w.Required, w.Limit > 0 && plan.Size > w.Limit, plan.Size%Granularity != 0, plan.Size <= 0:
				t.Errorf("seed %d: %+v: size %v", seed, w, plan.Size)
			case plan.Backing == Directory && (!m.Quota || plan.Block || plan.FSType != ""):
				t.Errorf("seed %d: %+v: %+v without a limit", seed, w, plan)
			case plan.Block != w.Block, w.FSType != "" && !w.Block && plan.FSType != w.FSType:
				t.Errorf("seed %d: %+v: %+v", seed, w, plan)
			case m.Space.Promised > max(0, m.Space.Available-reserved):
				t.Errorf("seed %d: %v promised of %v", seed, m.Space.Promised, m.Space.Available)
			}
			if err := Same(w, plan, "", ""); err != nil {
				t.Errorf("seed %d: %+v: asked for again: %v", seed, w, err)
			}
			if !Possible(w, m) {
				t.Errorf("seed %d: %+v: not possible, and planned", seed, w)
			}
		}
	}
	if planned < 2000 {
		t.Errorf("only %d volumes were planned: too few to say anything", planned)
	}
}

func randomWish(r *rand.Rand) Wish {
	w := Wish{Required: unit.Bytes(r.Int64N(int64(4 * unit.GiB))), Block: r.IntN(4) == 0}
	if r.IntN(4) == 0 {
		w.Required = 0
	}
	if r.IntN(2) == 0 {
		w.Limit = w.Required + unit.Bytes(r.Int64N(int64(unit.GiB)))
	}
	w.FSType = []string{"", "", "ext4", "xfs", "btrfs"}[r.IntN(5)]
	if backing := []string{"", "image", "directory", "tape"}[r.IntN(4)]; backing != "" {
		w.Parameters = map[string]string{ParameterBacking: backing}
	}
	return w
}
