// Package podcert decides when the certificate of a pod is requested, used and renewed (KEP-4317).
//
// # Model
//
// A Life is what is known of one source podCertificate of a projected volume. It says when a PodCertificateRequest is
// to be made (Due), and is told when one was made (Asked), when that failed (Tried), and what became of it (Read,
// Lost). The answer to one request ends the wait for it: a certificate that was issued replaces the one before,
// together with its key.
//
//	nothing ──► asked ──► issued ──► asked again ──► issued ...
//	              └──► denied, failed: for good
//
// # Invariants
//
//   - There is at most one request without an answer.
//   - A certificate stays in use until another has been issued, also when a renewal was denied or has failed.
//   - After Denied or Failed nothing is requested any more, as upstream: the pod must be changed.
//   - An agent that was restarted makes another request for a pod and signer only after it has run for some time. That
//     time doubles with the number of requests that the API server still has. So an agent that crashes again and again
//     makes one request.
//   - No clock makes requests follow each other closely: a certificate is used for RefreshMin at least.
//
// It has no keys and no certificates, only times: the caller has them.
package podcert

import (
	"time"

	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

const (
	// LostAfter is how long a request may be unknown to the watch before it counts as deleted (upstream's).
	LostAfter = 10 * time.Minute

	// OverdueAfter is how long after its time for renewal a certificate is overdue (upstream's).
	OverdueAfter = 10 * time.Minute

	// RefreshMin is how long a certificate is used at least. Chosen: the API server accepts no earlier beginRefreshAt,
	// which must be 10 min after notBefore, and notBefore must be in the last 5 min. Without this bound a node whose
	// clock is wrong would request all the time.
	RefreshMin = 5 * time.Minute

	// spreadMax is the longest time over which renewals are spread (upstream's). It is also at most one spreadPart-th
	// of the time until the renewal. Chosen: otherwise a certificate of an hour would be renewed in its last minutes.
	spreadMax  = 5 * time.Minute
	spreadPart = 10

	// pauseFirst and pauseMax are the pauses between requests for the same pod of which none gave a certificate; they
	// double. Chosen: the API server's cleaner keeps requests for 15 min, in which these pauses allow 7.
	pauseFirst = 10 * time.Second
	pauseMax   = 5 * time.Minute
)

// Phase is what became of a request.
type Phase string

// The phases of a request. Those but Pending are the API's conditions, and final.
const (
	Pending Phase = ""
	Issued  Phase = "Issued"
	Denied  Phase = "Denied"
	Failed  Phase = "Failed"
)

// Answer is what the API server says of a request.
type Answer struct {
	Phase           Phase
	Reason, Message string    // of Denied and Failed
	RefreshAt       unit.Wall // of Issued: when to begin with the renewal
	Expires         unit.Wall // of Issued
}

// Notice is something that the pod's user should be told once.
type Notice string

// The notices, which are upstream's reasons of Events.
const (
	Overdue Notice = "CertificateOverdueForRefresh"
	Expired Notice = "CertificateExpired"
)

// Life is what is known of one source. The zero Life is that of a new pod.
type Life struct {
	asked     unit.Wall // when the request without an answer was made; zero: there is none
	tried     unit.Wall // when a request could not be made, if tries
	tries     int       // in a row
	has       bool      // there is a certificate
	refreshAt unit.Wall
	expires   unit.Wall
	refused   Answer // Denied or Failed; Pending: it was not refused
	told      map[Notice]bool
}

// HasCertificate reports whether there is a certificate.
func (l *Life) HasCertificate() bool { return l.has }

// Waits reports whether there is a request without an answer.
func (l *Life) Waits() bool { return l.asked != 0 }

// Refused returns the answer after which nothing is requested any more, if there was one.
func (l *Life) Refused() (Answer, bool) { return l.refused, l.refused.Phase != Pending }

// Due returns when the next request is to be made. never: not before something else is recorded. began is when this
// process did, and earlier is how many requests for the same pod and signer the API server has that others made. No
// time of the API server is used: its clock may differ from this one.
func (l *Life) Due(began unit.Wall, earlier int) (at unit.Wall, never bool) {
	if l.asked != 0 || l.refused.Phase != Pending {
		return 0, true
	}
	if l.has {
		at = l.refreshAt
	}
	if l.tries > 0 {
		at = max(at, after(l.tried, pause(l.tries)))
	}
	if earlier > 0 {
		at = max(at, after(began, pause(earlier)))
	}
	return at, false
}

func after(at unit.Wall, d time.Duration) unit.Wall { return at + unit.Wall(d) }

// pause is how long to wait after n requests without a certificate.
func pause(n int) time.Duration {
	return min(pauseFirst<<min(max(n, 1)-1, 10), pauseMax)
}

// Asked records that a request was made.
func (l *Life) Asked(now unit.Wall) { l.asked, l.tries = now, 0 }

// Tried records that a request could not be made.
func (l *Life) Tried(now unit.Wall) { l.tried, l.tries = now, l.tries+1 }

// Lost records that the request is not known to the watch, and reports whether it counts as deleted: then another may
// be made.
func (l *Life) Lost(now unit.Wall) bool {
	if l.asked == 0 || now.Sub(l.asked) < LostAfter {
		return false
	}
	l.asked = 0
	return true
}

// Read records what the API server says of the request, and reports whether that was the answer. jitter, at least 0 and
// less than 1, spreads the renewals.
func (l *Life) Read(now unit.Wall, a Answer, jitter float64) bool {
	switch {
	case l.asked == 0:
		return false
	case a.Phase == Denied, a.Phase == Failed:
		l.asked, l.refused = 0, a
	case a.Phase == Issued:
		spread := min(max(a.RefreshAt.Sub(now), 0)/spreadPart, spreadMax)
		at := max(after(a.RefreshAt, part(spread, jitter)), after(now, RefreshMin))
		*l = Life{has: true, refreshAt: at, expires: a.Expires}
	default:
		return false
	}
	return true
}

// Adopt records a certificate that an earlier agent wrote. The time of renewal that its signer asked for is not known
// any more, so it is renewed after half its lifetime. If that time has passed, it is renewed soon, at a random moment,
// so that not all pods renew at once. Adopt returns false for a certificate that has expired.
func (l *Life) Adopt(now, begins, expires unit.Wall, jitter float64) bool {
	if now >= expires || begins >= expires {
		return false
	}
	at := max(begins+(expires-begins)/2, now)
	*l = Life{has: true, refreshAt: after(at, part(spreadMax, jitter)), expires: expires}
	return true
}

func part(d time.Duration, of float64) time.Duration { return time.Duration(float64(d) * of) }

// Notices returns what the pod's user should be told now. Each Notice is returned once for a certificate.
func (l *Life) Notices(now unit.Wall) (all []Notice) {
	for _, n := range []Notice{Overdue, Expired} {
		if !l.is(now, n) || l.told[n] {
			continue
		}
		if l.told == nil {
			l.told = map[Notice]bool{}
		}
		l.told[n] = true
		all = append(all, n)
	}
	return all
}

func (l *Life) is(now unit.Wall, n Notice) bool {
	if !l.has {
		return false
	}
	if n == Expired {
		return now > l.expires
	}
	return now > after(l.refreshAt, OverdueAfter)
}

// State returns upstream's word for the metric kubelet_podcertificate_states.
func (l *Life) State(now unit.Wall) string {
	switch {
	case l.refused.Phase == Denied:
		return "denied"
	case l.refused.Phase == Failed:
		return "failed"
	case !l.has:
		return "not_yet_issued"
	case l.is(now, Expired):
		return "expired"
	case l.is(now, Overdue):
		return "overdue_for_refresh"
	}
	return "fresh"
}
