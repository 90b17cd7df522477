package kmsg

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

func TestParseRecord(t *testing.T) {
	for _, c := range []struct {
		raw, text string
		facility  int
		bad       string
	}{
		{"6,339,5140900,-;NET: Registered protocol family 10\n SUBSYSTEM=net\n", "NET: Registered protocol family 10", 0, ""},
		{"30,340,5690716,-,caller=T1;udevd[80]: starting; version 181\n", "udevd[80]: starting; version 181", 3, ""},
		{"6,339,x,-;a", "", 0, "field 3"},
		{"6,339;a", "", 0, "want PRIORITY"},
		{"no record", "", 0, "want PRIORITY"},
		{"6,339,-1,-;a", "", 0, "field 3"},
	} {
		r, err := parseRecord(c.raw)
		if c.bad != "" {
			if err == nil || !strings.Contains(err.Error(), c.bad) {
				t.Errorf("%q: error %v, want one about %s", c.raw, err, c.bad)
			}
			continue
		}
		if err != nil || r.Text != c.text || r.Facility != c.facility {
			t.Errorf("%q: %+v, %v", c.raw, r, err)
		}
	}
}

// TestThisKernel writes a line to the log of the kernel that runs the test and reads it back.
func TestThisKernel(t *testing.T) {
	mark := fmt.Sprintf("plimsoll test %d %d", os.Getpid(), time.Now().UnixNano())
	seen := make(chan Record, 1)
	l, err := Open("/dev/kmsg", func(r Record) {
		if r.Text == mark {
			seen <- r
		}
	})
	if errors.Is(err, os.ErrPermission) || errors.Is(err, os.ErrNotExist) {
		t.Skip(err)
	} else if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- l.Follow(ctx) }()
	before := unit.WallOf(time.Now())
	if err := os.WriteFile("/dev/kmsg", []byte("<6>"+mark+"\n"), 0); err != nil {
		t.Skip(err)
	}
	if err := l.Sync(); err != nil {
		t.Fatal(err)
	}
	select {
	case r := <-seen:
		if r.Facility == 0 {
			t.Error("we pass for the kernel")
		}
		if off := r.Wall().Sub(before); off < -time.Second || off > time.Second {
			t.Errorf("dated %v off", off)
		}
	default:
		t.Error("Sync has not handed over what was there before it")
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
