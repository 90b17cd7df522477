package volume

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
)

const (
	// tokenLife is the life of a token whose source does not say, in seconds: the API's default.
	tokenLife = 3600

	// tokenAgeMax is the age at which a token is renewed at the latest, upstream's: a pod's token is never older than a
	// day, however long it could live.
	tokenAgeMax = 24 * time.Hour

	// tokenSpread is the part of a token's life, as a divisor, over which renewals are spread ahead of 80% of it. Chosen:
	// 110 pods that started together renew over 3 minutes of their hour instead of upstream's 10 seconds.
	tokenSpread = 20

	// admitMax bounds how long SetUp itself retries a request that was refused because the API server's own caches have
	// not seen the pod yet, which takes them some milliseconds after the binding.
	admitMax = 2 * time.Second
)

// tokenKey tells the tokens of one pod apart.
type tokenKey struct {
	audience string
	seconds  int64
}

type token struct {
	value   string
	expires time.Time
	renew   time.Time // when to ask for the next
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
		had = readToken(written, s.pod.UID)
	}
	now := time.Now()
	if had != nil {
		s.tokens[key] = had
		if now.Before(had.renew) {
			return had.value, nil
		}
	}
	fresh, err := k.requestToken(ctx, s.pod, key)
	switch {
	case err == nil:
		s.tokens[key] = fresh
		return fresh.value, nil
	case had != nil && now.Before(had.expires):
		// Ask again soon, but not on every SetUp; the volume keeps the token that still works.
		had.renew = now.Add(min(retryMin, had.expires.Sub(now)/2))
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
		answer, err := k.Tokens(ctx, pod.Namespace, pod.Spec.ServiceAccountName, request)
		if err == nil {
			expires := answer.Status.ExpirationTimestamp.Time
			life := time.Duration(key.seconds) * time.Second
			if answer.Spec.ExpirationSeconds != nil {
				life = time.Duration(*answer.Spec.ExpirationSeconds) * time.Second
			}
			return newToken(answer.Status.Token, expires.Add(-life), expires), nil
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
func newToken(value string, issued, expires time.Time) *token {
	life := expires.Sub(issued)
	age := min(life*8/10, tokenAgeMax)
	if spread := age / tokenSpread; spread > 0 {
		age -= rand.N(spread)
	}
	return &token{value: value, expires: expires, renew: issued.Add(age)}
}

// readToken takes up a token that this agent wrote before it was restarted, so that a restart does not ask for every
// pod's token again. The file is in our own closed directory and is not verified; that it is about this pod is checked
// because a token of another would fail later and less clearly. Any doubt is nil.
func readToken(path string, uid types.UID) *token {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil
	}
	parts := strings.Split(string(text), ".")
	if len(parts) != 3 {
		return nil
	}
	raw, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil {
		return nil
	}
	var claims struct {
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
	if err := json.Unmarshal(raw, &claims); err != nil || claims.Kubernetes.Pod.UID != uid || claims.Issued == 0 {
		return nil
	}
	expires := claims.Expires
	if w := claims.Kubernetes.WarnAfter; w > 0 && w < expires {
		expires = w
	}
	return newToken(string(text), time.Unix(claims.Issued, 0), time.Unix(expires, 0))
}
