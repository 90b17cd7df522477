package cluster

import (
	"context"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/plimsoll-dev/plimsoll/internal/cluster/supervise"
)

// StatusPeriod is how often a watched status is read. Chosen: a person sees a change at once, and the reading of some
// files and a list of nodes costs little.
const StatusPeriod = 2 * time.Second

// differs reports whether s and o differ in more than how long processes run and how much memory they have.
func (s Status) differs(o Status) bool {
	same := func(a, b supervise.Status) bool {
		return a.Name == b.Name && a.PID == b.PID && a.Restarts == b.Restarts && a.LastExit == b.LastExit
	}
	return s.SupervisorPID != o.SupervisorPID || s.APIServer != o.APIServer ||
		!slices.EqualFunc(s.Children, o.Children, same) || !slices.Equal(s.Nodes, o.Nodes) ||
		!slices.Equal(s.Addons, o.Addons)
}

// A StatusView shows a status again and again.
type StatusView struct {
	Out io.Writer
	// Screen says that Out is a terminal: the status takes the place of the one before. Otherwise it is written when it
	// has changed, below the one before.
	Screen bool
	Write  func(Status, io.Writer) error // nil: as tables

	last  Status
	shown bool
}

// Watch shows what read returns, at each tick, until ctx ends. It returns the last status.
func (v *StatusView) Watch(
	ctx context.Context, ticks <-chan time.Time, read func(context.Context) (Status, error),
) (Status, error) {
	for {
		s, err := read(ctx)
		if ctx.Err() != nil {
			return v.last, nil
		}
		if err == nil {
			err = v.show(s)
		}
		if err != nil {
			return v.last, err
		}
		select {
		case <-ctx.Done():
			return v.last, nil
		case <-ticks:
		}
	}
}

func (v *StatusView) show(s Status) error {
	changed := !v.shown || s.differs(v.last)
	first := !v.shown
	v.last, v.shown = s, true
	switch {
	case v.Screen:
		fmt.Fprint(v.Out, "\x1b[H\x1b[J") // to the first line, and erase all below (ECMA-48 CUP, ED)
	case !changed:
		return nil
	case v.Write == nil && !first:
		fmt.Fprintln(v.Out)
	}
	if v.Write != nil {
		return v.Write(s, v.Out)
	}
	fmt.Fprintf(v.Out, "time        %s\n", time.Now().UTC().Format(time.RFC3339))
	return s.Print(v.Out)
}
