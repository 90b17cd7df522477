package identity

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/client-go/util/keyutil"

	"github.com/plimsoll-dev/plimsoll/internal/core/nodecert"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
	"github.com/plimsoll-dev/plimsoll/internal/kube/certrequest"
)

// lookEvery is how often a keeper looks at the clock and at its files, besides the time that is due. Chosen: a wall
// clock that was set, and a pair of another program, are noticed soon enough.
const lookEvery = 10 * time.Second

// templateEvery is how often a keeper asks what it is to request while that is not known: at a node's start, until the
// Node is there. Chosen.
const templateEvery = time.Second

// errWish ends the wait for a certificate that the node does not want any more.
var errWish = errors.New("the node's names and addresses changed")

// A keeper keeps one certificate of the node. Only its goroutine asks for others.
type keeper struct {
	kind     certrequest.Kind
	files    store
	template func() *x509.CertificateRequest         // nil: not known yet
	api      func(own bool) (certrequest.API, error) // whom to ask; own: as the node itself
	// accept stores a pair. What it returns says why the pair is not in use.
	accept   func(ctx context.Context, pair *tls.Certificate, chain, key []byte, request string) error
	errors   prometheus.Counter
	replaced prometheus.Observer // how long a certificate was in force when it was replaced, in seconds; optional
	look     time.Duration       // lookEvery
	life     nodecert.Life       // of the keeper's goroutine
	foreign  bool                // the certificate did not come by a request of ours: it is renewed at once

	mu   sync.Mutex // guards everything that follows
	pair *tls.Certificate
	last error // of the last request; nil: none failed since the last success
}

func wallNow() unit.Wall { return unit.WallOf(time.Now()) }

// use records the certificate that is in use.
func (k *keeper) use(pair *tls.Certificate) {
	k.life.Use(nodecert.Validity{
		Begins:  unit.WallOf(pair.Leaf.NotBefore),
		Expires: unit.WallOf(pair.Leaf.NotAfter),
	}, rand.Float64())
	k.mu.Lock()
	defer k.mu.Unlock()
	k.pair, k.last = pair, nil
}

// current returns the pair in use; nil: there is none.
func (k *keeper) current() *tls.Certificate {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.pair
}

// why returns why there is no certificate.
func (k *keeper) why() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.last != nil {
		return k.last
	}
	return errors.New("it is requested")
}

// run asks for a certificate whenever one is due, until ctx ends.
func (k *keeper) run(ctx context.Context) {
	for ctx.Err() == nil {
		k.follow()
		template := k.template()
		wait := min(templateEvery, k.look)
		if template != nil {
			due := k.life.Due(wallNow(), !k.foreign && fits(k.current(), template))
			wait = min(due.Sub(wallNow()), k.look)
		}
		if template == nil || wait > 0 {
			select {
			case <-ctx.Done():
			case <-time.After(wait):
			}
			continue
		}
		if err := k.obtainWhileWanted(ctx, template); err != nil && ctx.Err() == nil {
			k.failed(err)
		}
	}
}

// obtainWhileWanted is obtain, but gives up when the node wants another certificate. Then it returns nil, since that is
// no failure: the next request asks for what is wanted now.
func (k *keeper) obtainWhileWanted(ctx context.Context, template *x509.CertificateRequest) error {
	asking, cancel := context.WithCancelCause(ctx)
	var looking sync.WaitGroup
	defer looking.Wait()
	defer cancel(nil)
	looking.Go(func() {
		look := time.NewTicker(k.look)
		defer look.Stop()
		for {
			select {
			case <-asking.Done():
				return
			case <-look.C:
			}
			if now := k.template(); now != nil && !sameWish(now, template) {
				cancel(errWish)
			}
		}
	})
	err := k.obtain(asking, template)
	if err != nil && errors.Is(context.Cause(asking), errWish) {
		slog.Info("another "+k.kind.What+" is requested", "why", errWish)
		return nil
	}
	return err
}

// follow takes over a newer certificate that another program put into the files.
func (k *keeper) follow() {
	pair, err := k.files.load()
	if err != nil {
		return // a request replaces it when it is due
	}
	if now := k.current(); now == nil || now.Leaf.NotAfter.Before(pair.Leaf.NotAfter) && !now.Leaf.Equal(pair.Leaf) {
		k.use(pair)
		k.foreign = false
		slog.Info("a "+k.kind.What+" of another program is used",
			"file", k.files.current(), "expires", stamp(pair.Leaf.NotAfter))
	}
}

// obtain asks for a certificate, waits for it and takes it into use.
func (k *keeper) obtain(ctx context.Context, template *x509.CertificateRequest) error {
	api, err := k.api(k.life.Signs(wallNow()))
	if err != nil {
		return &certrequest.Failure{Cause: nodecert.Refused, Err: err}
	}
	signer, key, err := k.files.pending()
	if err != nil {
		return &certrequest.Failure{Cause: nodecert.Unreachable, Err: err}
	}
	chain, err := k.kind.Request(ctx, api, signer, template, "")
	if err != nil {
		return err
	}
	pair, err := checkIssued(chain, key, time.Now())
	if err != nil {
		return err
	}
	if !fits(pair, template) {
		return misfit(pair, template)
	}
	if err := k.accept(ctx, pair, chainOf(chain), key, k.kind.Name(signer, template, "")); err != nil {
		return err
	}
	if before := k.current(); before != nil && k.replaced != nil {
		k.replaced.Observe(time.Since(before.Leaf.NotBefore).Seconds())
	}
	k.use(pair)
	k.foreign = false
	slog.Info("a new "+k.kind.What+" is used", "file", k.files.current(),
		"begins", stamp(pair.Leaf.NotBefore), "expires", stamp(pair.Leaf.NotAfter))
	if err := k.files.drop(); err != nil {
		slog.Warn("the key of a request that ended is still there", "err", err)
	}
	return nil
}

// failed records and logs a failure.
func (k *keeper) failed(err error) {
	cause := nodecert.Unreachable
	if f := (*certrequest.Failure)(nil); errors.As(err, &f) {
		cause = f.Cause
	}
	k.life.Failed(wallNow(), cause, rand.Float64())
	k.errors.Inc()
	if cause.NewKey() {
		if err := k.files.drop(); err != nil {
			slog.Warn("the key of a request that ended is still there", "err", err)
		}
	}
	k.mu.Lock()
	k.last = err
	k.mu.Unlock()
	next := k.life.Due(wallNow(), false).Sub(wallNow()).Round(time.Second)
	state := k.life.State(wallNow())
	slog.Error("no new "+k.kind.What+" for this node",
		"err", err, "now", string(state), "tries", k.life.Fails(), "next", max(next, 0))
}

// fits reports whether a certificate says what the node wants.
func fits(pair *tls.Certificate, want *x509.CertificateRequest) bool {
	if pair == nil {
		return false
	}
	has := pair.Leaf
	lacksIP := func(ip net.IP) bool { return !slices.ContainsFunc(has.IPAddresses, ip.Equal) }
	return has.Subject.CommonName == want.Subject.CommonName &&
		!lacks(has.Subject.Organization, want.Subject.Organization) &&
		!lacks(has.DNSNames, want.DNSNames) && !slices.ContainsFunc(want.IPAddresses, lacksIP)
}

// sameWish reports whether two templates want the same.
func sameWish(a, b *x509.CertificateRequest) bool {
	return a.Subject.String() == b.Subject.String() && slices.Equal(a.DNSNames, b.DNSNames) &&
		slices.EqualFunc(a.IPAddresses, b.IPAddresses, net.IP.Equal)
}

// misfit is the error about an issued certificate that does not say what was requested. Were it used, another would be
// due at once, for ever.
func misfit(pair *tls.Certificate, want *x509.CertificateRequest) error {
	has := pair.Leaf
	return &certrequest.Failure{
		Cause: nodecert.Unusable,
		Err: fmt.Errorf("the certificate that was issued is for %q, names %q, addresses %v; requested were %q, names %q, "+
			"addresses %v", has.Subject, has.DNSNames, has.IPAddresses, want.Subject, want.DNSNames, want.IPAddresses),
		Help: "the signer must sign what the request says",
	}
}

func lacks(has, want []string) bool {
	return slices.ContainsFunc(want, func(s string) bool { return !slices.Contains(has, s) })
}

// keyOf returns the key of a text in the form in which keys are stored.
func keyOf(text []byte) []byte {
	key, err := keyutil.ParsePrivateKeyPEM(text)
	if err != nil {
		return text
	}
	text, err = keyutil.MarshalPrivateKeyToPEM(key)
	if err != nil {
		panic(fmt.Sprintf("a key that was read cannot be written: %v", err)) // of a type that x509 reads and writes
	}
	return text
}
