// Package election lets one of several processes act and the others wait, by a Lease that the actor renews.
//
// # Model
//
// A Candidate tries to get a Lease every RetryPeriod. It takes one that nobody holds, or whose holder did not renew it
// for the time that the holder promised (leaseDurationSeconds), measured by our own clock since we saw the Lease change
// for the last time: what the other's clock says does not matter. Whoever holds it renews it every RetryPeriod, and gives
// up when that did not succeed for RenewDeadline. A holder that stops sets the Lease free, so that the next need not wait.
//
// How long we have held it is measured since the machine was booted, its sleep included: who slept has lost it. How
// long another has been silent is measured without our own sleep, in which it may have been heard by others. Semantics,
// names and defaults are those of client-go's leaderelection, so that candidates of both kinds may compete for one
// Lease; that package is not used because it brings the generated clientset.
//
// # Invariants
//
//   - LeaseDuration > RenewDeadline > RetryPeriod: the holder stops before anybody else may begin, as long as clocks run
//     at about the same speed.
//   - Holds is true only while the last renewal that succeeded was begun less than LeaseDuration ago, whether the
//     process ran since, was stopped, or slept with its machine. It is thereby kept from writing as a leader of
//     yesterday; ask it right before a write is sent. What is under way then cannot be called back: a write should also
//     name the version that it was decided on.
//   - A Lease that changed between our read and our write is not overwritten: the API compares resourceVersions.
//
// It decides nothing about what a leader does, and keeps no state but the Lease. The expiry measured by our clock is no
// fence for a process that hangs inside a write, nor on a virtual machine whose host stops it and its clocks: what is
// written there, until a renewal is refused (RetryPeriod and an answer), is held only by the versions that it names.
package election

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"sync/atomic"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/plimsoll-dev/plimsoll/internal/kube"
)

// Config is a candidacy. Begin with Default.
type Config struct {
	Namespace, Name string // of the Lease
	Identity        string // of this process; see NewIdentity

	// LeaseDuration is how long others wait for a holder that does not renew. Upstream: 15 s. Longer tolerates a slower
	// API, shorter replaces a dead leader sooner.
	LeaseDuration time.Duration
	// RenewDeadline is how long the holder goes on without a renewal. Upstream: 10 s.
	RenewDeadline time.Duration
	// RetryPeriod is the pause between attempts. Upstream: 2 s.
	RetryPeriod time.Duration
}

// Default is upstream's timing for a Lease in kube-system.
func Default(name string) Config {
	return Config{
		Namespace: metav1.NamespaceSystem, Name: name, Identity: NewIdentity(),
		LeaseDuration: 15 * time.Second, RenewDeadline: 10 * time.Second, RetryPeriod: 2 * time.Second,
	}
}

// NewIdentity is the host's name and a number that no other process has.
func NewIdentity() string {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	return fmt.Sprintf("%s_%016x%016x", host, rand.Uint64(), rand.Uint64())
}

// jitterPermille lengthens the pauses of those who wait, so that they do not ask in step. Upstream's JitterFactor, 1.2.
const jitterPermille = 1200

// Check reports every problem of c at once, by the names of upstream's flags.
func (c Config) Check() error {
	var errs []error
	bad := func(flag string, value any, why string) {
		errs = append(errs, fmt.Errorf("--leader-elect-%s: %v: %s", flag, value, why))
	}
	if c.RetryPeriod <= 0 {
		bad("retry-period", c.RetryPeriod, "must be above zero; upstream uses 2s")
	}
	if c.RenewDeadline <= c.RetryPeriod*jitterPermille/1000 {
		bad("renew-deadline", c.RenewDeadline, fmt.Sprintf("must exceed --leader-elect-retry-period (%v) 1.2 times; upstream uses 10s", c.RetryPeriod))
	}
	if c.LeaseDuration <= c.RenewDeadline {
		bad("lease-duration", c.LeaseDuration, fmt.Sprintf("must exceed --leader-elect-renew-deadline (%v); upstream uses 15s", c.RenewDeadline))
	}
	if c.LeaseDuration < time.Second {
		bad("lease-duration", c.LeaseDuration, "must be a second or more: a Lease counts in whole seconds")
	}
	if problems := validation.IsDNS1123Subdomain(c.Name); len(problems) > 0 {
		bad("resource-name", fmt.Sprintf("%q", c.Name), problems[0])
	}
	if problems := validation.IsDNS1123Label(c.Namespace); len(problems) > 0 {
		bad("resource-namespace", fmt.Sprintf("%q", c.Namespace), problems[0])
	}
	return errors.Join(errs...)
}

// API is what a Candidate asks of the API server.
type API interface {
	GetLease(ctx context.Context, namespace, name string) (*coordinationv1.Lease, error)
	CreateLease(ctx context.Context, lease *coordinationv1.Lease) (*coordinationv1.Lease, error)
	UpdateLease(ctx context.Context, lease *coordinationv1.Lease) (*coordinationv1.Lease, error)
}

// ErrLost is in the chain of Run's error when the Lease was held and is not any more.
var ErrLost = errors.New("leadership lost")

// Candidate competes for one Lease. Its methods may be called from any goroutine; Run once.
type Candidate struct {
	c         Config
	api       API
	sinceBoot func() time.Duration

	held      *coordinationv1.Lease // as we wrote it; nil while we do not hold it
	seen      string                // resourceVersion of what we saw last
	changedAt time.Time             // when we saw it change
	holder    string                // whom we wait for, as logged
	renewed   time.Duration         // since boot: when the last renewal that succeeded was begun

	validUntil atomic.Int64 // nanoseconds since boot; zero: not held
}

// New returns a candidate. sinceBoot is SinceBoot, but for tests: a clock that goes on while the machine sleeps.
func New(c Config, api API, sinceBoot func() time.Duration) (*Candidate, error) {
	if err := c.Check(); err != nil {
		return nil, fmt.Errorf("elect a leader: %w", err)
	}
	return &Candidate{c: c, api: api, sinceBoot: sinceBoot}, nil
}

// Holds reports whether this process may act as the leader now.
func (c *Candidate) Holds() bool { return c.sinceBoot() < time.Duration(c.validUntil.Load()) }

// Run waits until the Lease is ours, runs lead while it is, and sets it free at the end. The context of lead ends when ctx
// does and when the Lease is lost. Run returns lead's error; nil when ctx ended; ErrLost.
func (c *Candidate) Run(ctx context.Context, lead func(context.Context) error) error {
	slog.Info("waiting to lead", "lease", c.c.Namespace+"/"+c.c.Name, "identity", c.c.Identity)
	if !c.acquire(ctx) {
		return nil
	}
	slog.Info("leading", "lease", c.c.Namespace+"/"+c.c.Name, "identity", c.c.Identity)
	leading, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	led := make(chan error, 1)
	go func() { led <- lead(leading) }()
	kept := make(chan struct{})
	go func() {
		defer close(kept)
		if err := c.keep(leading); err != nil {
			stop(err)
		}
	}()
	err := <-led
	lost := context.Cause(leading)
	stop(nil)
	<-kept
	if errors.Is(lost, ErrLost) {
		return lost
	}
	c.release(context.WithoutCancel(ctx))
	return err
}

// acquire reports false when ctx ended first.
func (c *Candidate) acquire(ctx context.Context) bool {
	for {
		if c.try(ctx) {
			return true
		}
		pause := c.c.RetryPeriod + time.Duration(rand.Int64N(int64(c.c.RetryPeriod*(jitterPermille-1000)/1000)+1))
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return false
		}
	}
}

// keep renews until that fails for too long or ctx ends.
func (c *Candidate) keep(ctx context.Context) error {
	for {
		select {
		case <-time.After(c.c.RetryPeriod):
		case <-ctx.Done():
			return nil
		}
		attempt, cancel := context.WithTimeout(ctx, c.renewed+c.c.RenewDeadline-c.sinceBoot())
		c.try(attempt)
		cancel()
		if since := c.sinceBoot() - c.renewed; ctx.Err() == nil && (c.held == nil || since >= c.c.RenewDeadline) {
			c.validUntil.Store(0)
			return fmt.Errorf("%w: lease %s/%s: not renewed for %v", ErrLost, c.c.Namespace, c.c.Name, since.Round(time.Millisecond))
		}
	}
}

// try takes or renews the Lease, if that is possible now.
func (c *Candidate) try(ctx context.Context) bool {
	began := c.sinceBoot()
	if c.held != nil { // most often nobody touched it
		if c.write(ctx, c.held, began) == nil {
			return true
		}
	}
	lease, err := c.api.GetLease(ctx, c.c.Namespace, c.c.Name)
	if apierrors.IsNotFound(err) {
		lease, err = c.api.CreateLease(ctx, c.fill(&coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: c.c.Namespace, Name: c.c.Name}}, time.Now()))
		if err == nil {
			c.took(lease, began)
			return true
		}
	}
	if err != nil {
		if ctx.Err() == nil && !apierrors.IsAlreadyExists(err) {
			slog.Warn("leader election: lease cannot be read or made", "lease", c.c.Namespace+"/"+c.c.Name, "err", err)
		}
		return false
	}
	if lease.ResourceVersion != c.seen {
		c.seen, c.changedAt = lease.ResourceVersion, time.Now()
	}
	holder := holderOf(lease)
	if holder != c.c.Identity {
		c.held = nil
		c.validUntil.Store(0)
		if holder != c.holder {
			c.holder = holder
			slog.Info("leader", "lease", c.c.Namespace+"/"+c.c.Name, "holder", holder)
		}
		if holder != "" && time.Since(c.changedAt) < promised(lease) {
			return false
		}
	}
	return c.write(ctx, lease, began) == nil
}

func holderOf(l *coordinationv1.Lease) string {
	if l.Spec.HolderIdentity == nil {
		return ""
	}
	return *l.Spec.HolderIdentity
}

// promised is how long a holder may be silent. A Lease that does not say, or says nonsense, gives a second, as it is no
// candidate's.
func promised(l *coordinationv1.Lease) time.Duration {
	if s := l.Spec.LeaseDurationSeconds; s != nil && *s > 0 {
		return time.Duration(*s) * time.Second
	}
	return time.Second
}

func (c *Candidate) write(ctx context.Context, lease *coordinationv1.Lease, began time.Duration) error {
	after, err := c.api.UpdateLease(ctx, c.fill(lease.DeepCopy(), time.Now()))
	if err != nil {
		if ctx.Err() == nil && !apierrors.IsConflict(err) {
			slog.Warn("leader election: lease cannot be written", "lease", c.c.Namespace+"/"+c.c.Name, "err", err)
		}
		return err
	}
	c.took(after, began)
	return nil
}

// took notes that the Lease is ours, since the request for it was begun.
func (c *Candidate) took(lease *coordinationv1.Lease, began time.Duration) {
	c.held, c.seen, c.changedAt, c.holder = lease, lease.ResourceVersion, time.Now(), c.c.Identity
	c.renewed = began
	c.validUntil.Store(int64(began + c.c.LeaseDuration))
}

// fill writes our claim into lease.
func (c *Candidate) fill(lease *coordinationv1.Lease, now time.Time) *coordinationv1.Lease {
	seconds, stamp := int32(c.c.LeaseDuration/time.Second), metav1.NewMicroTime(now)
	transitions := int32(0)
	if lease.Spec.LeaseTransitions != nil {
		transitions = *lease.Spec.LeaseTransitions
	}
	if holderOf(lease) != c.c.Identity {
		lease.Spec.AcquireTime = &stamp
		if lease.ResourceVersion != "" {
			transitions++
		}
	}
	lease.Spec.HolderIdentity, lease.Spec.LeaseDurationSeconds = &c.c.Identity, &seconds
	lease.Spec.RenewTime, lease.Spec.LeaseTransitions = &stamp, &transitions
	return lease
}

// release sets the Lease free.
func (c *Candidate) release(ctx context.Context) {
	if c.held == nil {
		return
	}
	c.validUntil.Store(0)
	ctx, cancel := context.WithTimeout(ctx, c.c.RetryPeriod)
	defer cancel()
	nobody, second, now := "", int32(1), metav1.NewMicroTime(time.Now())
	free := c.held.DeepCopy()
	free.Spec.HolderIdentity, free.Spec.LeaseDurationSeconds, free.Spec.RenewTime = &nobody, &second, &now
	if _, err := c.api.UpdateLease(ctx, free); err != nil {
		slog.Warn("leader election: lease cannot be set free; the next leader waits for its end", "lease", c.c.Namespace+"/"+c.c.Name, "err", err)
	}
}

// Over is the API over a real client.
func Over(client *kube.Client) API { return remote{client} }

type remote struct{ client *kube.Client }

func (r remote) GetLease(ctx context.Context, namespace, name string) (*coordinationv1.Lease, error) {
	out := &coordinationv1.Lease{}
	return out, r.client.Get(ctx, kube.Leases, namespace, name, out)
}

func (r remote) CreateLease(ctx context.Context, lease *coordinationv1.Lease) (*coordinationv1.Lease, error) {
	out := &coordinationv1.Lease{}
	return out, r.client.Create(ctx, kube.Leases, lease.Namespace, "", lease, out)
}

func (r remote) UpdateLease(ctx context.Context, lease *coordinationv1.Lease) (*coordinationv1.Lease, error) {
	out := &coordinationv1.Lease{}
	return out, r.client.Update(ctx, kube.Leases, lease.Namespace, lease.Name, lease, out)
}
