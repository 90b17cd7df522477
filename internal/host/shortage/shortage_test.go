package shortage

import (
	"context"
	"errors"
	"fmt"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"
)

func TestRetry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began, tries := time.Now(), 0
		full := fmt.Errorf("listen: %w", &os.PathError{Op: "bind", Path: "x", Err: unix.ENOSPC})
		err := Retry(t.Context(), "a part", func(context.Context) error {
			if tries++; tries < 10 {
				return full
			}
			return nil
		})
		// 1 + 2 + 4 + 8 + 16 + 32 + 60 + 60 + 60 s
		if took := time.Since(began); err != nil || tries != 10 || took != 243*time.Second {
			t.Errorf("%v after %d tries and %v", err, tries, took)
		}
		other := errors.New("no such luck")
		if err := Retry(t.Context(), "a part", func(context.Context) error { return other }); err != other {
			t.Errorf("an error that time does not mend: %v", err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if err := Retry(ctx, "a part", func(context.Context) error { return full }); !errors.Is(err,
			context.DeadlineExceeded) {
			t.Errorf("after the end: %v", err)
		}
	})
}
