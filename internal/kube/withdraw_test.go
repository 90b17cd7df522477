package kube

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"

	"github.com/plimsoll-dev/plimsoll/internal/core/throttle"
)

// TestWithdrawable: a write that waits at the Throttle ends when it is withdrawn; one that was sent continues, and its
// context reports the withdrawal.
func TestWithdrawable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewThrottle(ThrottleOptions{Options: throttle.Options{InFlightMax: 1, Tolerance: 2}})
		withdrawn := make(chan struct{})
		ctx := Withdrawable(t.Context(), withdrawn)
		if kind, err := g.begin(ctx, throttle.Status); err != nil || kind != throttle.Status || IsWithdrawn(ctx) {
			t.Fatalf("%v, %v", kind, err)
		}
		var err error
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			_, err = g.begin(ctx, throttle.Status)
		}()
		synctest.Wait()
		close(withdrawn)
		<-ended
		if !errors.Is(err, context.Canceled) || !IsWithdrawn(ctx) || ctx.Err() != nil {
			t.Errorf("%v, withdrawn %v, %v", err, IsWithdrawn(ctx), ctx.Err())
		}
		if _, waiting := g.Limit(); waiting != 0 {
			t.Errorf("%d wait still", waiting)
		}
		g.end(throttle.Outcome{Kind: throttle.Status})
	})
}
