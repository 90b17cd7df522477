package volumestats

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"
	statsapi "k8s.io/kubelet/pkg/apis/stats/v1alpha1"

	core "github.com/plimsoll-dev/plimsoll/internal/core/volumestats"
)

func podOf(uid string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "pod-" + uid, UID: types.UID(uid)}}
}

// source answers what a test chooses.
type source struct {
	mu    sync.Mutex // guards usage, err and hang
	usage core.Usage
	err   error
	hang  chan struct{} // nil: it answers at once
	asked atomic.Int32
}

func (s *source) ask(ctx context.Context) (core.Usage, error) {
	s.asked.Add(1)
	s.mu.Lock()
	hang := s.hang
	s.mu.Unlock()
	if hang != nil {
		select {
		case <-hang:
		case <-ctx.Done():
			return core.Usage{}, ctx.Err()
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.usage, s.err
}

// set changes what the source answers from now on.
func (s *source) set(change func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change()
}

func (s *source) of(pod, name, claim string) Volume {
	return Volume{Pod: podOf(pod), Name: name, Claim: claim, Source: "csi/d", Kind: "d", Ask: s.ask}
}

// series are what a Reader shows in /metrics, sorted, without the common beginning of their names.
func series(t *testing.T, r *Reader) (lines []string) {
	t.Helper()
	registry := prometheus.NewRegistry()
	registry.MustRegister(r)
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.Metric {
			name := strings.TrimPrefix(f.GetName(), "kubelet_volume_stats_")
			claim := m.Label[0].GetValue() + "/" + m.Label[1].GetValue()
			lines = append(lines, fmt.Sprint(name, " ", claim, " ", m.GetGauge().GetValue()))
		}
	}
	slices.Sort(lines)
	return lines
}

// bubble runs a test in virtual time, with a Reader whose period is a minute.
func bubble(t *testing.T, health bool, test func(t *testing.T, r *Reader, events *record.FakeRecorder)) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		events := record.NewFakeRecorder(100)
		r := New(ctx, Options{Period: time.Minute, Health: health, Recorder: events})
		test(t, r, events)
		cancel()
		r.mu.Lock()
		if r.timer != nil {
			r.timer.Stop()
		}
		r.mu.Unlock()
	})
}

// TestAnswers: what a source says is in the Summary and in /metrics, once for a claim that two pods have, and goes with
// the pod.
func TestAnswers(t *testing.T) {
	bubble(t, false, func(t *testing.T, r *Reader, _ *record.FakeRecorder) {
		s := &source{usage: core.Usage{
			Capacity:   100,
			Available:  60,
			Used:       40,
			Inodes:     10,
			InodesFree: 7,
			InodesUsed: 3,
			Health:     &core.Health{Abnormal: true}, // not shown: the gate is off
		}}
		r.Have(s.of("u1", "data", "claim"))
		r.Have(s.of("u2", "same", "claim"))
		r.Have(s.of("u1", "inline", ""))
		r.Have(s.of("u1", "inline", ""))
		time.Sleep(time.Hour)
		if s.asked.Load() != 0 {
			t.Errorf("asked %d times, and nobody wanted to know", s.asked.Load())
		}
		r.Demand(t.Context())
		got := r.Of("u1")
		if len(got) != 2 || got[0].Name != "data" || got[1].Name != "inline" || got[1].PVCRef != nil {
			t.Fatalf("volumes %+v", got)
		}
		v := got[0]
		claim := statsapi.PVCReference{Namespace: "shop", Name: "claim"}
		if *v.PVCRef != claim || *v.CapacityBytes != 100 || *v.AvailableBytes != 60 || *v.UsedBytes != 40 ||
			*v.Inodes != 10 || *v.InodesFree != 7 || *v.InodesUsed != 3 || v.VolumeHealthStats != nil {
			t.Errorf("volume %+v", v)
		}
		if want := []string{
			"available_bytes shop/claim 60", "capacity_bytes shop/claim 100", "inodes shop/claim 10",
			"inodes_free shop/claim 7", "inodes_used shop/claim 3", "used_bytes shop/claim 40",
		}; !slices.Equal(series(t, r), want) {
			t.Errorf("series %q, want %q", series(t, r), want)
		}
		r.Gone("u1")
		r.Gone("u2")
		if left := append(series(t, r), fmt.Sprint(len(r.Of("u1")))); !slices.Equal(left, []string{"0"}) {
			t.Errorf("left: %q", left)
		}
	})
}

// TestTroubles: who wants to know waits for a source that hangs once, and that source delays no other; what fails or
// says nonsense has no numbers until it does better.
func TestTroubles(t *testing.T) {
	bubble(t, false, func(t *testing.T, r *Reader, _ *record.FakeRecorder) {
		hangs := &source{hang: make(chan struct{}), usage: core.Usage{Used: 1}}
		good := &source{usage: core.Usage{Used: 2}}
		for i := range 5 {
			r.Have(hangs.of("u1", fmt.Sprint("v", i), ""))
		}
		v := good.of("u2", "data", "claim")
		v.Source = "csi/other"
		r.Have(v)
		for _, want := range []time.Duration{waitMax, 0} {
			begun := time.Now()
			r.Demand(t.Context())
			if took := time.Since(begun); took != want {
				t.Errorf("waited for %v, want %v", took, want)
			}
		}
		if hangs.asked.Load() != core.AtOnce || len(r.Of("u1")) != 0 || len(r.Of("u2")) != 1 {
			t.Errorf("asked %d times, has %v and %v", hangs.asked.Load(), r.Of("u1"), r.Of("u2"))
		}
		close(hangs.hang)
		synctest.Wait()
		if len(r.Of("u1")) != 5 {
			t.Errorf("once it answers: %v", r.Of("u1"))
		}
		for what, change := range map[string]func(){
			"an error":       func() { good.err = errors.New("no") },
			"nonsense":       func() { good.err, good.usage.Used = nil, -1 },
			"it cannot tell": func() { good.err = core.ErrNone },
		} {
			good.set(change)
			time.Sleep(2 * time.Minute)
			r.Demand(t.Context())
			synctest.Wait()
			if got := r.Of("u2"); len(got) != 0 || len(series(t, r)) != 0 {
				t.Errorf("%s: %v, %q", what, got, series(t, r))
			}
			good.set(func() { good.err, good.usage.Used = nil, 3 })
			time.Sleep(2 * time.Minute)
			r.Demand(t.Context())
			synctest.Wait()
			if got := r.Of("u2"); len(got) != 1 || *got[0].UsedBytes != 3 {
				t.Errorf("after %s: %v", what, got)
			}
		}
	})
}

// TestOften: readers that come often have each volume asked about once in a period at most, and do not wait. One that
// comes after a long time waits for new answers, and sees no old ones.
func TestOften(t *testing.T) {
	bubble(t, false, func(t *testing.T, r *Reader, _ *record.FakeRecorder) {
		s := &source{usage: core.Usage{Used: 1}}
		r.Have(s.of("u1", "data", "claim"))
		r.Demand(t.Context())
		for range 60 {
			time.Sleep(10 * time.Second)
			begun := time.Now()
			if lines := series(t, r); !slices.Contains(lines, "used_bytes shop/claim 1") || time.Since(begun) != 0 {
				t.Fatalf("after %v: %q", time.Since(begun), lines)
			}
		}
		if n := s.asked.Load(); n < 5 || n > 10 {
			t.Errorf("asked %d times in 10 minutes, want once in one to two", n)
		}
		time.Sleep(time.Hour)
		before := s.asked.Load()
		s.set(func() { s.usage.Used = 2 })
		if lines := series(t, r); !slices.Contains(lines, "used_bytes shop/claim 2") || s.asked.Load() != before+1 {
			t.Errorf("after an hour: asked %d times, %q", s.asked.Load()-before, lines)
		}
		time.Sleep(time.Hour)
		s.set(func() { s.hang = make(chan struct{}) })
		if lines := series(t, r); len(lines) != 0 {
			t.Errorf("an old answer is shown: %q", lines)
		}
		close(s.hang)
		synctest.Wait()
		if lines := series(t, r); !slices.Contains(lines, "used_bytes shop/claim 2") {
			t.Errorf("once it answers: %q", lines)
		}
	})
}

// TestGoes: who waits for a volume does not wait for one that goes meanwhile.
func TestGoes(t *testing.T) {
	bubble(t, false, func(t *testing.T, r *Reader, _ *record.FakeRecorder) {
		s := &source{hang: make(chan struct{})}
		r.Have(s.of("u1", "data", "claim"))
		time.AfterFunc(waitMax/2, func() { r.Gone("u1") })
		begun := time.Now()
		r.Demand(t.Context())
		if took := time.Since(begun); took != waitMax/2 {
			t.Errorf("waited for %v, and the volume went after %v", took, waitMax/2)
		}
	})
}

// TestHealth: a condition that is abnormal is an Event in the kubelet's words, and shown, also if nobody reads.
func TestHealth(t *testing.T) {
	bubble(t, true, func(t *testing.T, r *Reader, events *record.FakeRecorder) {
		s := &source{usage: core.Usage{Health: &core.Health{}}}
		r.Have(s.of("u1", "data", "claim"))
		synctest.Wait()
		if lines := series(t, r); !slices.Contains(lines, "health_status_abnormal shop/claim 0") || len(events.Events) != 0 {
			t.Errorf("normal: %q, %d Events", lines, len(events.Events))
		}
		s.set(func() {
			s.usage.Health = &core.Health{Abnormal: true, Message: "the disk \xffhums" + strings.Repeat("!", 5000)}
		})
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		if lines := series(t, r); !slices.Contains(lines, "health_status_abnormal shop/claim 1") {
			t.Errorf("abnormal: %q", lines)
		}
		if got := r.Of("u1"); !got[0].VolumeHealthStats.Abnormal {
			t.Errorf("abnormal: %+v", got)
		}
		event := <-events.Events
		if !strings.HasPrefix(event, "Warning VolumeConditionAbnormal Volume data: the disk ?hums!!!") || len(event) > 1024 {
			t.Errorf("event of %d bytes: %.100s", len(event), event)
		}
	})
}
