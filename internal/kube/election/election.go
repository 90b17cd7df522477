// Package election elects one of several processes to act while the others wait, by a Lease that the leader renews.
//
// # Model
//
// A Candidate tries to get a Lease every RetryPeriod. It takes a Lease that has no holder, or whose holder did not
// renew it for the time that the holder promised (leaseDurationSeconds). That time is measured by this process's clock
// since it last saw the Lease change; the holder's clock does not matter. The holder renews the Lease every
// RetryPeriod, and stops when no renewal succeeded for RenewDeadline. A holder that is stopped clears the Lease, so
// that the next one need not wait.
//
// How long this process has been the holder is measured since boot, including the time that the machine slept: a
// process that slept has lost the Lease. How long another holder has been silent is measured without our own sleep, in
// which others may have seen renewals. Semantics, names and defaults are those of client-go's leaderelection, so that
// candidates of both kinds may compete for one Lease. That package is not used because it needs the generated
// clientset.
//
// # Invariants
//
//   - LeaseDuration > RenewDeadline > RetryPeriod: the holder stops before another may begin, as long as clocks run at
//     about the same speed.
//   - Holds is true only while the last renewal that succeeded was begun less than LeaseDuration ago, whether the
//     process ran since, was stopped, or slept with its machine. This prevents writes by a process that is no longer
//     the leader: call Holds right before a write is sent. A write that is already in flight cannot be called back, so
//     it should also name the resourceVersion that it was decided on.
//   - A Lease that changed between our read and our write is not overwritten: the API server compares resourceVersions.
//
// The package does not decide what a leader does, and keeps no state except the Lease. The expiry by our clock does not
// stop the write of a process that hangs inside that write, nor that of a virtual machine whose host stopped it and its
// clocks. Such writes are possible until a renewal is refused (RetryPeriod and one answer). Until then only the
// resourceVersions in them prevent that they take effect.
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

// Config configures a candidate. Begin with Default.
type Config struct {
	Namespace, Name string // of the Lease
	Identity        string // of this process; see NewIdentity

	// LeaseDuration is how long others wait for a holder that does not renew. Upstream: 15 s. Longer tolerates a slower
	// API server, shorter replaces a dead leader sooner.
	LeaseDuration time.Duration
	// RenewDeadline is how long the holder continues without a successful renewal. Upstream: 10 s.
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

// NewIdentity returns the host's name and a random number, so that no two processes have the same identity.
func NewIdentity() string {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	return fmt.Sprintf("%s_%016x%016x", host, rand.Uint64(), rand.Uint64())
}

// jitterPermille lengthens the pauses of waiting candidates, so that they do not all try at the same moment. Upstream's
// JitterFactor, 1.2.
const jitterPermille = 1200

// Check returns every problem of c at once, by the names of upstream's flags.
func (c Config) Check() error {
	var errs []error
	bad := func(flag string, value any, why string) {
		errs = append(errs, fmt.Errorf("--leader-elect-%s: %v: %s", flag, value, why))
	}
	if c.RetryPeriod <= 0 {
		bad("retry-period", c.RetryPeriod, "must be above zero; upstream uses 2s")
	}
	if c.RenewDeadline <= c.RetryPeriod*jitterPermille/1000 {
		bad("renew-deadline", c.RenewDeadline,
			fmt.Sprintf("must be more than 1.2 times --leader-elect-retry-period (%v); upstream uses 10s", c.RetryPeriod))
	}
	if c.LeaseDuration <= c.RenewDeadline {
		bad("lease-duration", c.LeaseDuration,
			fmt.Sprintf("must be more than --leader-elect-renew-deadline (%v); upstream uses 15s", c.RenewDeadline))
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

// API is the part of the API server's interface that a Candidate needs.
type API interface {
	GetLease(ctx context.Context, namespace, name string) (*coordinationv1.Lease, error)
	CreateLease(ctx context.Context, lease *coordinationv1.Lease) (*coordinationv1.Lease, error)
	UpdateLease(ctx context.Context, lease *coordinationv1.Lease) (*coordinationv1.Lease, error)
}

// ErrLost is in the chain of Run's error when this process was the holder of the Lease and has lost it.
var ErrLost = errors.New("leadership lost")

// Candidate competes for one Lease. Its methods may be called from any goroutine; Run once.
type Candidate struct {
	c         Config
	api       API
	sinceBoot func() time.Duration // see New

	// Run's goroutines write these, in try; only one of them runs try at a time.
	held      *coordinationv1.Lease // as we wrote it; nil while this process is not the holder
	seen      string                // the newest resourceVersion that we saw
	changedAt time.Time             // when we first saw that version
	holder    string                // the holder that was logged last
	renewed   time.Duration         // since boot: when the last renewal that succeeded was begun

	validUntil atomic.Int64 // nanoseconds since boot; zero: we are not the holder
}

// New returns a candidate. sinceBoot is SinceBoot, except in tests: a clock that continues while the machine sleeps.
func New(c Config, api API, sinceBoot func() time.Duration) (*Candidate, error) {
	if err := c.Check(); err != nil {
		return nil, fmt.Errorf("elect a leader: %w", err)
	}
	return &Candidate{c: c, api: api, sinceBoot: sinceBoot}, nil
}

// Holds reports whether this process may act as the leader now.
func (c *Candidate) Holds() bool { return c.sinceBoot() < time.Duration(c.validUntil.Load()) }

// Run waits until this process gets the Lease, runs lead while it is the holder, and clears the Lease at the end. The
// context of lead ends when ctx does and when the Lease is lost. Run returns lead's error, nil when ctx ended, or
// ErrLost.
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
	c.clear(context.WithoutCancel(ctx))
	return err
}

// acquire tries until this process is the holder. It returns false when ctx ended first.
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

// keep renews the Lease until that fails for RenewDeadline or ctx ends.
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
			return fmt.Errorf("%w: lease %s/%s: not renewed for %v", ErrLost, c.c.Namespace, c.c.Name,
				since.Round(time.Millisecond))
		}
	}
}

// try takes or renews the Lease, if that is possible now, and reports whether it did.
func (c *Candidate) try(ctx context.Context) bool {
	began := c.sinceBoot()
	if c.held != nil { // usually the Lease has not changed since we wrote it
		if c.write(ctx, c.held, began) == nil {
			return true
		}
	}
	lease, err := c.api.GetLease(ctx, c.c.Namespace, c.c.Name)
	if apierrors.IsNotFound(err) {
		lease, err = c.api.CreateLease(ctx,
			c.fill(&coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: c.c.Namespace, Name: c.c.Name}}, time.Now()))
		if err == nil {
			c.took(lease, began)
			return true
		}
	}
	if err != nil {
		if ctx.Err() == nil && !apierrors.IsAlreadyExists(err) {
			slog.Warn("leader election: lease cannot be read or created", "lease", c.c.Namespace+"/"+c.c.Name, "err", err)
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

// promised returns how long a holder may be silent. A Lease without a valid duration was not written by a candidate; it
// gets one second.
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

// took notes that this process is the holder since the request was begun.
func (c *Candidate) took(lease *coordinationv1.Lease, began time.Duration) {
	c.held = lease
	c.seen = lease.ResourceVersion
	c.changedAt = time.Now()
	c.holder = c.c.Identity
	c.renewed = began
	c.validUntil.Store(int64(began + c.c.LeaseDuration))
}

// fill writes this process into lease as the holder.
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

// clear clears the Lease.
func (c *Candidate) clear(ctx context.Context) {
	if c.held == nil {
		return
	}
	c.validUntil.Store(0)
	ctx, cancel := context.WithTimeout(ctx, c.c.RetryPeriod)
	defer cancel()
	nobody := ""
	second := int32(1)
	now := metav1.NewMicroTime(time.Now())
	free := c.held.DeepCopy()
	free.Spec.HolderIdentity = &nobody
	free.Spec.LeaseDurationSeconds = &second
	free.Spec.RenewTime = &now
	if _, err := c.api.UpdateLease(ctx, free); err != nil {
		slog.Warn("leader election: lease cannot be cleared; the next leader waits until it expires", "lease", c.c.Namespace+
			"/"+c.c.Name, "err", err)
	}
}

// Over returns the API of a real client.
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
