// Package nodecert decides when a node requests a certificate, how long it waits after a failure, and with which
// credentials it asks.
//
// # Model
//
// A Life is what is known of one certificate of the node. The shell tells it which certificate is in use (Use, Forget)
// and why a request gave none (Failed). It answers when the next request is due (Due), and what the certificate is good
// for (State).
//
//	none ──► request ──► valid ──► renewal is due ──► request ──► valid ...
//	            └──► failed: again after a pause
//
// # Invariants
//
//   - A certificate stays in use until it is replaced, however many requests for the next one fail.
//   - A request that could not be made, or was refused, is made again soon: the reason may be gone any moment. After a
//     decision about a request (Denied, SignerFailed, Unusable) the next request is made minutes later, because people
//     see each of these requests.
//   - A wall clock that is set back delays no request by more than the longest pause.
//
// It has no keys and no certificates, only times: the caller has them.
package nodecert

import (
	"time"

	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

const (
	// A certificate is renewed between these parts of its lifetime (upstream's 70 to 90 per cent). The spread keeps the
	// nodes of a cluster from renewing at the same time for ever.
	renewFrom   = 0.7
	renewSpread = 0.2

	// Unanswered is how long a request may have no answer before that counts as a failure (upstream's).
	Unanswered = 15 * time.Minute

	// Pauses after failures that may end any moment: they double from the first to the longest (upstream's).
	soonFirst = 2 * time.Second
	soonMax   = 32 * time.Second

	// Pauses after somebody's decision. Chosen: quick enough for someone who corrects a mistake and watches, and 50
	// requests in a day at most.
	laterFirst = time.Minute
	laterMax   = 30 * time.Minute

	// pauseSpread is the part by which pauses are lengthened at most, so that nodes do not ask in step. Chosen.
	pauseSpread = 0.1
)

// A Cause says why a request gave no certificate.
type Cause int

// The causes.
const (
	Unreachable  Cause = iota // nobody answered
	Refused                   // the API server took no request: who asks may not, or is not known
	NoAnswer                  // the request was made; nobody decided about it for as long as Unanswered
	Denied                    // somebody denied it
	SignerFailed              // its signer could not sign it
	Unusable                  // what was issued is of no use: for another key, expired, of another authority
)

// NewKey reports whether the next request needs another key. With the same key it is the same request, and an answer
// that came meanwhile is found.
func (c Cause) NewKey() bool { return c >= Denied }

// Validity is when a certificate is valid.
type Validity struct{ Begins, Expires unit.Wall }

// State says what a certificate is good for.
type State string

// The states.
const (
	None    State = "none"
	Early   State = "not yet valid" // by this machine's clock
	Valid   State = "valid"
	Expired State = "expired"
)

// Life is what is known of one certificate of the node. The zero Life has none and renews none.
type Life struct {
	Renews bool // request another certificate before one expires

	has     bool
	held    Validity
	renewAt unit.Wall
	fails   int // in a row
	failed  unit.Wall
	cause   Cause
	spread  float64
}

// Use records the certificate that is in use from now on. spread, at least 0 and less than 1, says when between the
// bounds it is renewed.
func (l *Life) Use(v Validity, spread float64) {
	life := v.Expires.Sub(v.Begins)
	l.has, l.held = true, v
	l.fails = 0
	l.renewAt = v.Begins + unit.Wall(float64(life)*(renewFrom+renewSpread*spread))
}

// Forget records that there is no certificate any more.
func (l *Life) Forget() { l.has, l.held = false, Validity{} }

// State returns what the certificate is good for.
func (l *Life) State(now unit.Wall) State {
	switch {
	case !l.has:
		return None
	case now > l.held.Expires:
		return Expired
	case now < l.held.Begins:
		return Early
	}
	return Valid
}

// Signs reports whether a request for the next certificate is made with the present one. Else it needs other
// credentials: those of the bootstrap kubeconfig. A certificate that is not valid yet by this machine's clock may be by
// the API server's.
func (l *Life) Signs(now unit.Wall) bool {
	s := l.State(now)
	return s == Valid || s == Early
}

// Due returns when the next request is due. fits says whether the certificate has the node's present name and
// addresses.
func (l *Life) Due(now unit.Wall, fits bool) unit.Wall {
	at := l.renewAt
	switch {
	case !l.Signs(now), l.Renews && !fits:
		at = now
	case !l.Renews:
		at = l.held.Expires
	}
	if l.fails > 0 {
		l.failed = min(l.failed, now) // the clock was set back
		at = max(at, l.failed+unit.Wall(l.pause()))
	}
	return at
}

// Failed records that a request gave no certificate. spread, at least 0 and less than 1, lengthens the pause.
func (l *Life) Failed(now unit.Wall, c Cause, spread float64) {
	if c.NewKey() != l.cause.NewKey() {
		l.fails = 0
	}
	l.fails++
	l.failed = now
	l.cause, l.spread = c, spread
}

// Fails returns how many requests failed in a row, for the same kind of cause.
func (l *Life) Fails() int { return l.fails }

// pause is how long the next request waits after the last failure.
func (l *Life) pause() time.Duration {
	first, longest := soonFirst, soonMax
	switch {
	case l.cause == NoAnswer:
		return 0 // it was waited for
	case l.cause.NewKey():
		first, longest = laterFirst, laterMax
	}
	d := min(first<<min(l.fails-1, 10), longest)
	return d + time.Duration(float64(d)*pauseSpread*l.spread)
}
