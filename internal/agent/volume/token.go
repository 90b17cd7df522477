package volume

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	"github.com/plimsoll-dev/plimsoll/internal/host/untrusted"
)

const (
	// tokenLife is the life of a token whose source does not say, in seconds: the API's default.
	tokenLife = 3600

	// tokenAgeMax is the age at which a token is renewed at the latest, upstream's: a pod's token is never older than a
	// day, however long it could live.
	tokenAgeMax = 24 * time.Hour

	// tokenSpread is the part of a token's life, as a divisor, over which renewals are spread ahead of 80% of it.
	// Chosen: 110 pods that started together renew over 3 minutes of their hour instead of upstream's 10 seconds.
	tokenSpread = 20

	// tokenBytesMax bounds a token that is read back. Chosen: far above the kilobyte or two that they have.
	tokenBytesMax = 64 << 10

	// admitMax bounds how long SetUp itself retries a request that was refused because the API server's own caches have
	// not seen the pod yet, which takes them some milliseconds after the binding.
	admitMax = 2 * time.Second
)

// tokenKey tells the tokens of one pod apart.
type tokenKey struct {
	audience string
	seconds  int64
}

// token is a service-account token with the moment at which it came. How long it lives is what its server said; how
// much of that has passed is what this machine's own clocks say, so that they need not agree with the server's.
type token struct {
	value string
	got   moment
	life  time.Duration // from got until it expires
	renew time.Duration // from got until the next is asked for
}

// moment is now, by two clocks. The calendar goes on while the machine is suspended, and may be set; time since start
// does neither.
type moment struct {
	wall  time.Time     // without a monotonic part
	since time.Duration // the Keeper began
}

// clockFrom reads both clocks. since begins at a second, so that it is never zero.
func clockFrom(start time.Time) func() moment {
	return func() moment {
		now := time.Now()
		return moment{now.Round(0), now.Sub(start) + time.Second}
	}
}

// skewMax is how far the calendar may go back before that means that it was set. Chosen: what time daemons step by at
// once.
const skewMax = 10 * time.Second

// reached reports whether d has passed since t.got. A calendar that was set back tells nothing of that: yes, to be
// safe.
func (t *token) reached(now moment, d time.Duration) bool {
	return now.since-t.got.since >= d || now.wall.Sub(t.got.wall) >= d || now.wall.Sub(t.got.wall) < -skewMax
}

// token returns a token for source, asking for one if there is none or it is time. A token that still lives is
// returned if asking fails. written is where the token is, if an earlier life of this agent wrote it.
func (k *Keeper) token(ctx context.Context, s *place, source *corev1.ServiceAccountTokenProjection, written string) (string, error) {
	key := tokenKey{source.Audience, tokenLife}
	if source.ExpirationSeconds != nil {
		key.seconds = *source.ExpirationSeconds
	}
	had := s.tokens[key]
	if had == nil {
		had = readToken(written, s.pod.UID, k.clock())
	}
	now := k.clock()
	if had != nil {
		s.tokens[key] = had
		if !had.reached(now, had.renew) {
			return had.value, nil
		}
	}
	fresh, err := k.requestToken(ctx, s.pod, key)
	switch {
	case err == nil:
		s.tokens[key] = fresh
		return fresh.value, nil
	case had != nil && !had.reached(now, had.life):
		// Ask again soon, but not on every SetUp; the volume keeps the token that still works.
		passed := max(now.since-had.got.since, now.wall.Sub(had.got.wall))
		had.renew = passed + min(retryMin, (had.life-passed)/2)
		return had.value, nil
	}
	return "", fmt.Errorf("failed to fetch token: %w", err)
}

func (k *Keeper) requestToken(ctx context.Context, pod *corev1.Pod, key tokenKey) (*token, error) {
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{
		ExpirationSeconds: &key.seconds,
		BoundObjectRef:    &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Pod", Name: pod.Name, UID: pod.UID},
	}}
	if key.audience != "" {
		request.Spec.Audiences = []string{key.audience}
	}
	began := time.Now()
	for wait := 20 * time.Millisecond; ; wait *= 2 {
		asked := k.clock() // the life of the answer begins later
		answer, err := k.Tokens(ctx, pod.Namespace, pod.Spec.ServiceAccountName, request)
		if err == nil {
			life := time.Duration(key.seconds) * time.Second
			if answer.Spec.ExpirationSeconds != nil {
				life = time.Duration(*answer.Spec.ExpirationSeconds) * time.Second
			}
			return newToken(answer.Status.Token, asked, life), nil
		}
		if !tooEarly(err) || time.Since(began)+wait > admitMax {
			return nil, err
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return nil, err
		}
	}
}

// tooEarly reports whether err may come from parts of the API server that have not seen the pod yet: the Node
// authorizer forbids, the NodeRestriction admission does not find it.
func tooEarly(err error) bool {
	if apierrors.IsForbidden(err) {
		return true
	}
	var status apierrors.APIStatus
	if !apierrors.IsNotFound(err) || !errors.As(err, &status) || status.Status().Details == nil {
		return false
	}
	kind := status.Status().Details.Kind
	return kind == "pod" || kind == "pods"
}

// newToken decides when to renew: at 80% of the life or after a day, ahead of that by a random part.
func newToken(value string, got moment, life time.Duration) *token {
	age := min(life*8/10, tokenAgeMax)
	if spread := age / tokenSpread; spread > 0 {
		age -= rand.N(spread)
	}
	return &token{value: value, got: got, life: life, renew: age}
}

// readToken takes up a token that this agent wrote before it was restarted, so that a restart does not ask for every
// pod's token again. The file is in our own closed directory and is not verified; that it is about this pod is checked
// because a token of another would fail later and less clearly. Any doubt is nil: also a token from the future, since
// one of the two clocks that it and we go by is wrong then.
func readToken(path string, uid types.UID, now moment) *token {
	text, err := untrusted.Read(path, tokenBytesMax)
	if err != nil {
		return nil
	}
	claims, ok := readClaims(string(text))
	if !ok || claims.Kubernetes.Pod.UID != uid || claims.Issued == 0 {
		return nil
	}
	expires := claims.Expires
	if w := claims.Kubernetes.WarnAfter; w > 0 && w < expires {
		expires = w
	}
	issued := time.Unix(claims.Issued, 0)
	passed := now.wall.Sub(issued)
	if passed < -skewMax {
		return nil
	}
	return newToken(string(text), moment{issued, now.since - passed}, time.Unix(expires, 0).Sub(issued))
}

// tokenClaims are what is read of a token.
type tokenClaims struct {
	Issued     int64 `json:"iat"`
	Expires    int64 `json:"exp"`
	Kubernetes struct {
		Pod struct {
			UID types.UID `json:"uid"`
		} `json:"pod"`
		// WarnAfter is the expiry that was asked for, where the server extends tokens to a year for old clients.
		WarnAfter int64 `json:"warnafter"`
	} `json:"kubernetes.io"`
}

func readClaims(text string) (claims tokenClaims, ok bool) {
	parts := strings.Split(text, ".")
	if len(parts) != 3 {
		return claims, false
	}
	raw, err := base64.RawURLEncoding.DecodeString(parts[1])
	return claims, err == nil && json.Unmarshal(raw, &claims) == nil
}
