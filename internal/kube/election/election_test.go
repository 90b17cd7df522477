package election

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

var leases = schema.GroupResource{Resource: "leases"}

// server keeps one Lease and guards its version. down holds who cannot reach it.
type server struct {
	mu      sync.Mutex
	lease   *coordinationv1.Lease
	version int
	down    map[string]bool
}

// door is one process's way to the server.
type door struct {
	*server
	name string
}

func (d door) enter(ctx context.Context) (func(), error) {
	time.Sleep(20 * time.Millisecond) // virtual
	d.mu.Lock()
	if d.down[d.name] {
		d.mu.Unlock()
		<-ctx.Done() // as behind a cut cable
		return nil, ctx.Err()
	}
	return d.mu.Unlock, nil
}

func (d door) GetLease(ctx context.Context, _, name string) (*coordinationv1.Lease, error) {
	leave, err := d.enter(ctx)
	if err != nil {
		return nil, err
	}
	defer leave()
	if d.lease == nil {
		return nil, apierrors.NewNotFound(leases, name)
	}
	return d.lease.DeepCopy(), nil
}

func (d door) CreateLease(ctx context.Context, l *coordinationv1.Lease) (*coordinationv1.Lease, error) {
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

func (d door) UpdateLease(ctx context.Context, l *coordinationv1.Lease) (*coordinationv1.Lease, error) {
	leave, err := d.enter(ctx)
	if err != nil {
		return nil, err
	}
	defer leave()
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

// stored is the Lease as it is now.
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

// process is a candidate that notes when it leads.
type process struct {
	*Candidate
	stop    context.CancelFunc
	leading chan struct{} // closed while it leads, once
	ended   chan error
}

func (s *server) start(t *testing.T, name string) *process {
	t.Helper()
	c := Default("test")
	c.Identity = name
	candidate, err := New(c, door{s, name})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	p := &process{candidate, stop, make(chan struct{}), make(chan error, 1)}
	go func() {
		p.ended <- candidate.Run(ctx, func(ctx context.Context) error {
			close(p.leading)
			<-ctx.Done()
			return nil
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
		b := s.start(t, "b")
		wait(time.Minute)
		if !leads(a) || leads(b) {
			t.Fatalf("a leads %v, b leads %v", leads(a), leads(b))
		}
		a.stop() // it sets the lease free
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
		wait(time.Minute)
		s.cut("a", true)
		for range 300 {
			wait(100 * time.Millisecond)
			if leads(a) && leads(b) {
				t.Fatal("both lead")
			}
		}
		if err := <-a.ended; !errors.Is(err, ErrLost) || !strings.Contains(err.Error(), "kube-system/test: not renewed for 1") {
			t.Errorf("a ended with %v", err)
		}
		if !leads(b) {
			t.Error("nobody leads 30 s after the leader was cut off")
		}
		b.stop()
		<-b.ended
	})
}

// A short cut costs nobody his lead.
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

// The other's clock does not matter: its renewTime may say anything, what counts is that it changes.
func TestClocksOfOthersDoNotMatter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &server{down: map[string]bool{}}
		other := &Candidate{c: Default("test")}
		other.c.Identity = "other"
		s.mu.Lock()
		s.store(other.fill(&coordinationv1.Lease{}, time.Now().Add(-50*time.Hour)))
		s.mu.Unlock()
		a := s.start(t, "a")
		for range 5 { // it lives, with a clock far behind
			wait(10 * time.Second)
			s.mu.Lock()
			s.store(other.fill(s.lease.DeepCopy(), time.Now().Add(-50*time.Hour)))
			s.mu.Unlock()
		}
		if leads(a) {
			t.Error("a took the lease of one that lives")
		}
		wait(14 * time.Second)
		if leads(a) {
			t.Error("a took the lease before its time")
		}
		wait(6 * time.Second)
		if !leads(a) {
			t.Error("a did not take the lease of one that is dead")
		}
		a.stop()
		<-a.ended
	})
}

// Leases that no candidate wrote: without a holder, a duration, a time.
func TestStrangeLeases(t *testing.T) {
	nobody, negative, name := "", int32(-5), "x"
	for _, spec := range []coordinationv1.LeaseSpec{{}, {HolderIdentity: &nobody}, {HolderIdentity: &name}, {HolderIdentity: &name, LeaseDurationSeconds: &negative}} {
		synctest.Test(t, func(t *testing.T) {
			s := &server{down: map[string]bool{}}
			s.store(&coordinationv1.Lease{Spec: spec})
			a := s.start(t, "a")
			wait(6 * time.Second)
			if !leads(a) {
				t.Errorf("%+v was not taken", spec)
			}
			a.stop()
			<-a.ended
		})
	}
}

func TestCheckNamesEveryProblem(t *testing.T) {
	err := Config{Namespace: "A", Name: "", LeaseDuration: time.Millisecond, RenewDeadline: time.Second}.Check()
	for _, flag := range []string{"lease-duration", "retry-period", "resource-name", "resource-namespace"} {
		if err == nil || !strings.Contains(err.Error(), "--leader-elect-"+flag) {
			t.Errorf("%s is not named in: %v", flag, err)
		}
	}
	if err := Default("x").Check(); err != nil {
		t.Error(err)
	}
}
