package election

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

var leases = schema.GroupResource{Resource: "leases"}

// server stores one Lease and checks its version. down contains the candidates that cannot reach it.
type server struct {
	mu      sync.Mutex
	lease   *coordinationv1.Lease
	version int
	down    map[string]bool
	reads   int
	writes  int
}

// connection is one process's connection to the server.
type connection struct {
	*server
	name string
}

func (d connection) enter(ctx context.Context) (func(), error) {
	time.Sleep(20 * time.Millisecond) // virtual
	d.mu.Lock()
	if d.down[d.name] {
		d.mu.Unlock()
		<-ctx.Done() // as with a broken connection
		return nil, ctx.Err()
	}
	return d.mu.Unlock, nil
}

func (d connection) GetLease(ctx context.Context, _, name string) (*coordinationv1.Lease, error) {
	leave, err := d.enter(ctx)
	if err != nil {
		return nil, err
	}
	defer leave()
	d.reads++
	if d.lease == nil {
		return nil, apierrors.NewNotFound(leases, name)
	}
	return d.lease.DeepCopy(), nil
}

func (d connection) CreateLease(ctx context.Context, l *coordinationv1.Lease) (*coordinationv1.Lease, error) {
	leave, err := d.enter(ctx)
	if err != nil {
		return nil, err
	}
	defer leave()
	if d.lease != nil {
		return nil, apierrors.NewAlreadyExists(leases, l.Name)
	}
	return d.store(l), nil
}

func (d connection) UpdateLease(ctx context.Context, l *coordinationv1.Lease) (*coordinationv1.Lease, error) {
	leave, err := d.enter(ctx)
	if err != nil {
		return nil, err
	}
	defer leave()
	d.writes++
	if d.lease == nil || l.ResourceVersion != d.lease.ResourceVersion {
		return nil, apierrors.NewConflict(leases, l.Name, errors.New("changed"))
	}
	return d.store(l), nil
}

func (s *server) store(l *coordinationv1.Lease) *coordinationv1.Lease {
	s.version++
	s.lease = l.DeepCopy()
	s.lease.ResourceVersion = strconv.Itoa(s.version)
	return s.lease.DeepCopy()
}

// asked returns how often the Lease was read and overwritten.
func (s *server) asked() (reads, writes int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.reads, s.writes
}

// stored returns the current Lease.
func (s *server) stored() *coordinationv1.Lease {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.lease.DeepCopy()
}

func (s *server) cut(name string, cut bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.down[name] = cut
}

// process is a candidate that records when it leads.
type process struct {
	*Candidate
	asleep  atomic.Int64 // how long its machine has slept, in nanoseconds
	stop    context.CancelFunc
	leading chan struct{} // closed while it leads, once
	ended   chan error
}

// start starts a candidate that leads until it is stopped.
func (s *server) start(t *testing.T, name string) *process {
	t.Helper()
	return s.startUntil(t, name, func(ctx context.Context) error {
		<-ctx.Done()
		return nil
	})
}

func (s *server) startUntil(t *testing.T, name string, lead func(context.Context) error) *process {
	t.Helper()
	c := Default("test")
	c.Identity = name
	ctx, stop := context.WithCancel(t.Context())
	p := &process{stop: stop, leading: make(chan struct{}), ended: make(chan error, 1)}
	boot := time.Now()
	candidate, err := New(c, connection{s, name}, func() time.Duration {
		return time.Since(boot) + time.Duration(p.asleep.Load())
	})
	if err != nil {
		t.Fatal(err)
	}
	p.Candidate = candidate
	go func() {
		p.ended <- candidate.Run(ctx, func(ctx context.Context) error {
			close(p.leading)
			return lead(ctx)
		})
	}()
	return p
}

func leads(p *process) bool {
	select {
	case <-p.leading:
		return p.Holds()
	default:
		return false
	}
}

func wait(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func TestOneLeadsAndTheNextTakesOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &server{down: map[string]bool{}}
		a := s.start(t, "a")
		wait(time.Second)
		readsBefore, writesBefore := s.asked()
		if !leads(a) || writesBefore > 0 {
			t.Errorf("nobody else is there: a leads at once: %v, and writes the lease that it has made %d times", leads(a),
				writesBefore)
		}
		wait(time.Minute)
		if reads, writes := s.asked(); reads > readsBefore || writes < 29 || writes > 31 {
			t.Errorf("in a minute a reads its lease %d times and writes it %d times; want none and 30", reads-readsBefore,
				writes)
		}
		b := s.start(t, "b")
		wait(time.Minute)
		if !leads(a) || leads(b) {
			t.Fatalf("a leads %v, b leads %v", leads(a), leads(b))
		}
		a.stop() // it clears the lease
		if err := <-a.ended; err != nil {
			t.Error(err)
		}
		wait(3 * time.Second)
		if n := *s.stored().Spec.LeaseTransitions; leads(a) || !leads(b) || n != 1 {
			t.Errorf("after a stopped: a leads %v, b leads %v, %d transitions", leads(a), leads(b), n)
		}
		b.stop()
		<-b.ended
		if holder := holderOf(s.stored()); holder != "" {
			t.Errorf("the lease is held by %q", holder)
		}
	})
}

func TestALeaderThatIsCutOffStopsBeforeTheNextBegins(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &server{down: map[string]bool{}}
		a := s.start(t, "a")
		wait(time.Second)
		b := s.start(t, "b")
		wait(time.Minute + 500*time.Millisecond) // right after a renewal
		s.cut("a", true)
		for i := range 300 {
			wait(100 * time.Millisecond)
			if leads(a) && leads(b) {
				t.Fatal("both lead")
			}
			if ended := len(a.ended) > 0; i > 100 && !ended || ended && a.Holds() {
				t.Fatalf("%d tenths of a second after the cut: a has ended: %v, and holds: %v", i+1, ended, a.Holds())
			}
		}
		if err := <-a.ended; !errors.Is(err, ErrLost) ||
			!strings.Contains(err.Error(), "kube-system/test: not renewed for 1") {
			t.Errorf("a ended with %v", err)
		}
		if !leads(b) {
			t.Error("nobody leads 30 s after the leader was cut off")
		}
		b.stop()
		<-b.ended
	})
}

// A short interruption does not change the leader.
func TestAShortCut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &server{down: map[string]bool{}}
		a := s.start(t, "a")
		wait(10 * time.Second)
		s.cut("a", true)
		wait(5 * time.Second)
		s.cut("a", false)
		wait(30 * time.Second)
		select {
		case err := <-a.ended:
			t.Fatalf("ended: %v", err)
		default:
		}
		a.stop()
		<-a.ended
	})
}

// Leases that no candidate wrote: without a holder, a duration or a time. A Lease without a holder is taken at once;
// one whose holder promises no duration is taken when it did not change for a second.
func TestStrangeLeases(t *testing.T) {
	nobody := ""
	negative := int32(-5)
	zero := int32(0)
	name := "x"
	for _, spec := range []coordinationv1.LeaseSpec{
		{}, {HolderIdentity: &nobody}, {HolderIdentity: &name},
		{HolderIdentity: &name, LeaseDurationSeconds: &negative}, {HolderIdentity: &name, LeaseDurationSeconds: &zero},
	} {
		synctest.Test(t, func(t *testing.T) {
			s := &server{down: map[string]bool{}}
			s.store(&coordinationv1.Lease{Spec: spec})
			a := s.start(t, "a")
			wait(time.Second)
			if held := spec.HolderIdentity == &name; leads(a) == held {
				t.Errorf("%+v was taken within a second: %v", spec, leads(a))
			}
			wait(5 * time.Second)
			if !leads(a) {
				t.Errorf("%+v was not taken", spec)
			}
			a.stop()
			<-a.ended
		})
	}
}

// TestALeaderThatEndsByItself clears the Lease, even during a renewal, and its error is returned.
func TestALeaderThatEndsByItself(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &server{down: map[string]bool{}}
		broken := errors.New("broken")
		a := s.startUntil(t, "a", func(context.Context) error {
			time.Sleep(Default("").RetryPeriod + 10*time.Millisecond)
			return broken
		})
		if err := <-a.ended; err != broken {
			t.Errorf("it ends with %v", err)
		}
		if holder := holderOf(s.stored()); holder != "" || a.Holds() {
			t.Errorf("the lease is held by %q", holder)
		}
	})
}

// TestStopBeforeLeading: a waiting candidate that is stopped ends without an error, and lead is not called.
func TestStopBeforeLeading(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &server{down: map[string]bool{}}
		a, b := s.start(t, "a"), s.start(t, "b") // both try to create the Lease
		wait(time.Second)
		leader, other := a, b
		if leads(b) {
			leader, other = b, a
		}
		other.stop()
		if err := <-other.ended; err != nil || len(other.leading) > 0 || !leads(leader) || leads(other) {
			t.Errorf("it ends with %v", err)
		}
		select {
		case <-other.leading:
			t.Error("it led when it was told to stop")
		default:
		}
		leader.stop()
		<-leader.ended
	})
}

// TestLeaseIsTaken: a leader whose Lease another client has taken, as an administrator may, stops at its next renewal.
func TestLeaseIsTaken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &server{down: map[string]bool{}}
		a := s.start(t, "a")
		wait(time.Minute)
		s.mu.Lock()
		other := &Candidate{c: Default("test")}
		other.c.Identity = "other"
		s.store(other.fill(s.lease.DeepCopy(), time.Now()))
		s.mu.Unlock()
		wait(Default("").RetryPeriod + 100*time.Millisecond)
		if len(a.ended) == 0 || a.Holds() {
			t.Fatalf("a renewal later it has ended: %v, and holds: %v", len(a.ended) > 0, a.Holds())
		}
		if err := <-a.ended; !errors.Is(err, ErrLost) {
			t.Errorf("it ends with %v", err)
		}
		if holder := holderOf(s.stored()); holder != "other" {
			t.Errorf("the lease is held by %q", holder)
		}
	})
}

// TestLeaseIsTakenAtTheEnd: a leader that is stopped while another client takes its Lease does not modify the Lease any
// more.
func TestLeaseIsTakenAtTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &server{down: map[string]bool{}}
		boot, config := time.Now(), Default("test")
		config.Identity = "a"
		a, err := New(config, connection{s, "a"}, func() time.Duration { return time.Since(boot) })
		if err != nil || !a.try(t.Context()) || !a.Holds() {
			t.Fatalf("%v: it does not lead", err)
		}
		s.mu.Lock()
		other := &Candidate{c: Default("test")}
		other.c.Identity = "other"
		s.store(other.fill(s.lease.DeepCopy(), time.Now()))
		s.mu.Unlock()
		if a.try(t.Context()) || a.Holds() {
			t.Errorf("it is another's, and it holds: %v", a.Holds())
		}
		a.clear(t.Context())
		if holder := holderOf(s.stored()); holder != "other" {
			t.Errorf("the lease is held by %q", holder)
		}
	})
}

// TestLeaseHasItsHistory: the Lease contains how often its holder changed, and since when the current one holds it.
func TestLeaseHasItsHistory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &server{down: map[string]bool{}}
		for i, name := range []string{"a", "b", "c"} {
			p := s.start(t, name)
			wait(time.Second)
			since := time.Now()
			wait(time.Minute)
			spec := s.stored().Spec
			if !leads(p) || int(*spec.LeaseTransitions) != i || !spec.AcquireTime.Before(&metav1.MicroTime{Time: since}) {
				t.Errorf("%s leads %v: %d transitions, held since %v", name, leads(p), *spec.LeaseTransitions, spec.AcquireTime)
			}
			if held := spec.RenewTime.Sub(spec.AcquireTime.Time); held < time.Minute-2*time.Second ||
				held > time.Minute+time.Second {
				t.Errorf("%s holds it for %v, and says %v", name, time.Minute, held)
			}
			p.stop()
			<-p.ended
		}
	})
}
