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
	// tokenLife is the lifetime of a token whose source does not set one, in seconds: the API's default.
	tokenLife = 3600

	// tokenAgeMax is the age at which a token is renewed at the latest, as in the kubelet: a pod's token is never older
	// than a day, whatever its lifetime.
	tokenAgeMax = 24 * time.Hour

	// tokenSpread is the part of a token's lifetime, as a divisor, over which renewals are spread before 80% of it.
	// Chosen: 110 pods that started together renew over 3 minutes of their hour; in the kubelet it is 10 seconds.
	tokenSpread = 20

	// tokenBytesMax bounds a token that is read back. Chosen: far more than the usual kilobyte or two.
	tokenBytesMax = 64 << 10

	// admitMax bounds how long SetUp itself retries a request that was refused because the API server's own caches have
	// not seen the pod yet; that takes them some milliseconds after the binding.
	admitMax = 2 * time.Second
)

// tokenKey distinguishes the tokens of one pod.
type tokenKey struct {
	audience string
	seconds  int64
}

// token is a service account token with the moment at which it was received. Its lifetime is the server's statement.
// How much of that has passed is measured by this machine's own clocks, so that they need not agree with the server's.
type token struct {
	value string
	got   moment
	life  time.Duration // from got until it expires
	renew time.Duration // from got until it is renewed
}

// moment is a point in time by two clocks. The calendar continues while the machine is suspended, and may be set; time
// since start does neither.
type moment struct {
	wall  time.Time     // without a monotonic part
	since time.Duration // since the Manager began
}

// clockFrom returns a function that reads both clocks. since starts at a second, so that it is never zero.
func clockFrom(start time.Time) func() moment {
	return func() moment {
		now := time.Now()
		return moment{now.Round(0), now.Sub(start) + time.Second}
	}
}

// skewMax is how far the calendar may go back before that counts as having been set. Chosen: the largest step of time
// daemons.
const skewMax = 10 * time.Second

// reached reports whether d has passed since t.got. If the calendar was set back, that is not known, and the answer is
// true, to be safe.
func (t *token) reached(now moment, d time.Duration) bool {
	return now.since-t.got.since >= d || now.wall.Sub(t.got.wall) >= d || now.wall.Sub(t.got.wall) < -skewMax
}

// token returns a token for source. It requests one if there is none or if it must be renewed. If the request fails, a
// token that is still valid is returned. written is the path of the token, if an earlier agent wrote it.
func (k *Manager) token(ctx context.Context, s *podState, source *corev1.ServiceAccountTokenProjection,
	written string) (string, error) {
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
		// Request again soon, but not with every SetUp; the volume keeps the token that is still valid.
		passed := max(now.since-had.got.since, now.wall.Sub(had.got.wall))
		had.renew = passed + min(retryMin, (had.life-passed)/2)
		return had.value, nil
	}
	return "", fmt.Errorf("failed to fetch token: %w", err)
}

func (k *Manager) requestToken(ctx context.Context, pod *corev1.Pod, key tokenKey) (*token, error) {
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{
		ExpirationSeconds: &key.seconds,
		BoundObjectRef: &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Pod", Name: pod.Name,
			UID: pod.UID},
	}}
	if key.audience != "" {
		request.Spec.Audiences = []string{key.audience}
	}
	var asked moment // the lifetime in the answer begins later than this
	var answer *authenticationv1.TokenRequest
	err := admitted(ctx, func() (err error) {
		asked = k.clock()
		answer, err = k.Tokens(ctx, pod.Namespace, pod.Spec.ServiceAccountName, request)
		return err
	})
	if err != nil {
		return nil, err
	}
	life := time.Duration(key.seconds) * time.Second
	if answer.Spec.ExpirationSeconds != nil {
		life = time.Duration(*answer.Spec.ExpirationSeconds) * time.Second
	}
	return newToken(answer.Status.Token, asked, life), nil
}

// admitted repeats a request for a while that may have come too early.
func admitted(ctx context.Context, request func() error) error {
	began := time.Now()
	for wait := 20 * time.Millisecond; ; wait *= 2 {
		err := request()
		if err == nil || !tooEarly(err) || time.Since(began)+wait > admitMax {
			return err
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return err
		}
	}
}

// tooEarly reports whether err may come from parts of the API server that have not seen the pod yet: the Node
// authorizer forbids, the NodeRestriction admission plugin does not find it.
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

// newToken decides when to renew: at 80% of the lifetime or after a day, less a random part.
func newToken(value string, got moment, life time.Duration) *token {
	age := min(life*8/10, tokenAgeMax)
	if spread := age / tokenSpread; spread > 0 {
		age -= rand.N(spread)
	}
	return &token{value: value, got: got, life: life, renew: age}
}

// readToken reads a token that this agent wrote before it was restarted, so that a restart does not request every pod's
// token again. The file is in the agent's own directory, which is closed to others, and its signature is not verified.
// It must be about this pod, since another pod's token would fail later and less clearly. In any doubt it returns nil;
// also for a token from the future, since then the clock that issued it or this one is wrong.
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

// tokenClaims are the claims that are read from a token.
type tokenClaims struct {
	Issued     int64 `json:"iat"`
	Expires    int64 `json:"exp"`
	Kubernetes struct {
		Pod struct {
			UID types.UID `json:"uid"`
		} `json:"pod"`
		// WarnAfter is the requested expiry, if the server extends tokens to a year for old clients.
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
