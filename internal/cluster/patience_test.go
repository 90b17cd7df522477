package cluster

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/client-go/rest"

	"github.com/plimsoll-dev/plimsoll/internal/cluster/progress"
	"github.com/plimsoll-dev/plimsoll/internal/kube"
)

// slowCluster returns a cluster that waits on nothing real, and its patience.
func slowCluster(t *testing.T, limit time.Duration) (*cluster, *patience) {
	t.Helper()
	p := &patience{limit: limit}
	o := Options{StateDir: t.TempDir()}
	if err := os.MkdirAll(filepath.Join(o.StateDir, "log"), 0o700); err != nil {
		t.Fatal(err)
	}
	return &cluster{layout: layout{o}, sink: patientSink{progress.Plain(io.Discard), p}}, p
}

// after returns a function that is ready after a time, and says what is missing until then.
func after(d time.Duration, missing string) func(context.Context) error {
	began := time.Now()
	return func(context.Context) error {
		if time.Since(began) < d {
			return errors.New(missing)
		}
		return nil
	}
}

// TestSlowStart: a start may take longer than the limit, as long as each of its steps ends within it.
func TestSlowStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const limit = 2 * time.Minute
		c, p := slowCluster(t, limit)
		ctx, stop := p.bound(t.Context())
		defer stop()
		began := time.Now()
		err := parallel(ctx,
			c.step("agent", "runs", after(100*time.Second, "no")),
			c.step("node", "Ready", after(200*time.Second, "no")),
			c.step("network", "there", after(300*time.Second, "no")))
		if took := time.Since(began).Round(time.Second); err != nil || took != 300*time.Second {
			t.Errorf("after %v: %v", took, err)
		}
		stop()
		time.Sleep(2 * limit)
		if s := stalled(ctx); s != nil {
			t.Errorf("a start that has ended is given up: %v", s)
		}
	})
}

// TestStalledStart: a start whose steps do not end is given up after the limit. The error says of each step what was
// awaited, for how long, what was seen last although the last question was cut short, and what to do.
func TestStalledStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, p := slowCluster(t, 2*time.Minute)
		if err := os.WriteFile(c.log(childAgent), []byte("the last line of the log\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		ctx, stop := p.bound(t.Context())
		defer stop()
		asked := 0
		hangs := func(ctx context.Context) error { // a server that answers once
			if asked++; asked == 1 {
				return errors.New("kube-controller-manager has not assigned it")
			}
			<-ctx.Done()
			return ctx.Err()
		}
		mute := func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }
		err := parallel(ctx,
			c.step("runtime", "runs", after(30*time.Second, "no")),
			c.step("this node's pod network", "there", hangs, childAgent),
			c.step("services", "there", mute))
		if err == nil {
			t.Fatal("a start that hangs is not given up")
		}
		for _, want := range []string{
			"wait for this node's pod network: given up after 2m30s",
			"no step of the start ended within 2m0s (--timeout; a machine that is only slow needs a longer one)",
			"last seen: kube-controller-manager has not assigned it\nend of " + c.log(childAgent),
			"the last line of the log",
			"wait for services: given up after 2m30s",
			"last seen: the first question was not answered",
		} {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("it does not say %q:\n%v", want, err)
			}
		}
		if strings.Contains(err.Error(), "wait for runtime") {
			t.Errorf("it blames a step that ended well:\n%v", err)
		}
	})
}

// TestStalledWork: work that is no wait, like a program that is killed at the end, also gets the cause.
func TestStalledWork(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, p := slowCluster(t, time.Minute)
		ctx, stop := p.bound(t.Context())
		defer stop()
		<-ctx.Done()
		err := withCause(ctx, errors.New("load image: killed"))
		if !errors.As(err, new(*stalledError)) || !strings.HasSuffix(err.Error(), ": load image: killed") {
			t.Errorf("%v", err)
		}
		if again := withCause(ctx, err); again != err {
			t.Errorf("the cause is named twice: %v", again)
		}
	})
}

// TestCancelledStart: a user who cancels a start gets no log, and no hint at --timeout.
func TestCancelledStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, p := slowCluster(t, time.Minute)
		if err := os.WriteFile(c.log(childAgent), []byte("a line\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		parent, cancel := context.WithCancel(t.Context())
		ctx, stop := p.bound(parent)
		defer stop()
		time.AfterFunc(time.Second, cancel)
		err := c.await(ctx, "the node", after(time.Hour, "it is not there"), childAgent)
		if !errors.Is(err, context.Canceled) || strings.Contains(err.Error(), "a line") ||
			strings.Contains(err.Error(), "--timeout") {
			t.Errorf("%v", err)
		}
	})
}

// mute is an API server that does not answer.
type mute struct{}

func (mute) RoundTrip(r *http.Request) (*http.Response, error) {
	<-r.Context().Done()
	return nil, r.Context().Err()
}

// TestLateAddons: an API server that does not answer about add-ons in time is no reason to fail, whether they are
// wanted or left out. They are tried again later.
func TestLateAddons(t *testing.T) {
	for name, without := range map[string][]string{"wanted": nil, "left out": addons} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c, _ := slowCluster(t, time.Hour)
				c.o.Agent, c.o.Without, c.logger = true, without, slog.New(slog.DiscardHandler)
				client, err := kube.NewClientForConfig(&rest.Config{Host: "http://127.0.0.1", QPS: -1, Transport: mute{}})
				if err != nil {
					t.Fatal(err)
				}
				began := time.Now()
				err = c.startAddons(t.Context(), client)
				if took := time.Since(began); err != nil || took != addonsTimeout || !c.addonsLack {
					t.Errorf("after %v, to be tried again: %v: %v", took, c.addonsLack, err)
				}
			})
		})
	}
}
