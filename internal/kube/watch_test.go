package kube

import (
	"context"
	"errors"
	"net/url"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// After an absence of any length, a watch is back within unreachableMax of the server, and has not overloaded it.
func TestUntilAnsweredIsBackSoon(t *testing.T) {
	for _, absence := range []time.Duration{0, time.Second, time.Minute, 10 * time.Minute} {
		synctest.Test(t, func(t *testing.T) {
			began, asked := time.Now(), 0
			got, err := untilAnswered(t.Context(), func() (int, error) {
				asked++
				if time.Since(began) < absence {
					return 0, &url.Error{Op: "Get", URL: "https://api", Err: syscall.ECONNREFUSED}
				}
				return 7, nil
			})
			took := time.Since(began)
			if got != 7 || err != nil || took > absence+unreachableMax || asked > 8+int(absence/(unreachableMax/2)) {
				t.Errorf("absent for %v: %d, %v after %v and %d attempts", absence, got, err, took, asked)
			}
		})
	}
}

// The server's answers are returned to the caller, and the end of the context ends the wait.
func TestUntilAnsweredReturnsAnswers(t *testing.T) {
	for _, want := range []error{apierrors.NewUnauthorized("who?"), apierrors.NewServiceUnavailable("starting"),
		errors.New("cannot decode")} {
		if _, err := untilAnswered(t.Context(), func() (int, error) { return 0, want }); err != want {
			t.Errorf("error %v, want %v", err, want)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	refused := &url.Error{Op: "Get", URL: "https://api", Err: syscall.ECONNREFUSED}
	if _, err := untilAnswered(ctx, func() (int, error) { cancel(); return 0, refused }); !errors.Is(err,
		syscall.ECONNREFUSED) {
		t.Errorf("error %v", err)
	}
}
