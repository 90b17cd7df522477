package pods

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/plimsoll-dev/plimsoll/internal/core/podlife"
)

// TestOvertime: a call that creates something is not cancelled when its pod must stop, but overtimeMax later. It is
// always cancelled at its limit.
func TestOvertime(t *testing.T) {
	const limit = time.Minute
	for _, c := range []struct {
		name                   string
		takes, stopAfter, want time.Duration
		ends                   bool // by itself
	}{
		{"ends before the stop", time.Second, 2 * time.Second, time.Second, true},
		{"ends after the stop", 5 * time.Second, 2 * time.Second, 5 * time.Second, true},
		{"hangs beyond the stop", time.Hour, 2 * time.Second, 2*time.Second + overtimeMax, false},
		{"was stopped before it began", time.Hour, 0, overtimeMax, false},
		{"hangs", time.Hour, 2 * time.Hour, limit, false},
		{"is stopped shortly before its limit", time.Hour, limit - time.Second, limit, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, stop := context.WithCancel(t.Context())
				if c.stopAfter == 0 {
					stop()
				}
				defer time.AfterFunc(c.stopAfter, stop).Stop()
				begun := time.Now()
				err := withOvertime(ctx, limit, func(ctx context.Context) error {
					select {
					case <-time.After(c.takes):
						return nil
					case <-ctx.Done():
						return ctx.Err()
					}
				})
				if took := time.Since(begun); took != c.want || (err == nil) != c.ends {
					t.Errorf("%v after %v, want %v", err, took, c.want)
				}
			})
		})
	}
}

// TestIsNews: that a pod is finished is logged once, however often it is tried; all else is logged each time.
func TestIsNews(t *testing.T) {
	w := &worker{}
	for i, c := range []struct {
		kind podlife.ActionKind
		want bool
	}{
		{podlife.StopSandbox, true}, {podlife.StopSandbox, true}, {podlife.Finish, true}, {podlife.Finish, false},
		{podlife.RemoveContainer, true}, {podlife.Finish, false},
	} {
		if got := w.isNews(podlife.Action{Kind: c.kind}); got != c.want {
			t.Errorf("action %d, %v: %t, want %t", i, c.kind, got, c.want)
		}
	}
}
