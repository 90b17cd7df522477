package authn

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"unicode/utf8"

	authenticationv1 "k8s.io/api/authentication/v1"

	"github.com/plimsoll-dev/plimsoll/internal/kube"
)

// tokensMax bounds the cached tokens, accepted and refused ones apart. A node's clients are the API server and a few
// scrapers; a client whose token was dropped costs one more review.
const tokensMax = 512

// tokenBytesMax bounds a token, in bytes. Chosen: service account tokens have about 1 KiB, large OIDC tokens a few KiB.
// net/http accepts headers of up to 1 MiB.
const tokenBytesMax = 64 << 10

const (
	webSocketProtocols  = "Sec-Websocket-Protocol"
	bearerProtocolStart = "base64url.bearer.authorization.k8s.io."
)

// fromToken returns the identity of a bearer token, nil if the request has none or tokens are not accepted, and a
// *Refusal if the token is invalid or cannot be reviewed.
func (g *Guard) fromToken(r *http.Request) (*Identity, error) {
	if !g.o.Tokens {
		return nil, nil
	}
	token, strip, err := bearer(r)
	if err != nil {
		return nil, &Refusal{http.StatusUnauthorized, "Unauthorized", err}
	}
	if token == "" {
		return nil, nil
	}
	if len(token) > tokenBytesMax {
		return nil, &Refusal{http.StatusUnauthorized, "Unauthorized", fmt.Errorf("bearer token: %d bytes, limit %d",
			len(token), tokenBytesMax)}
	}
	id, err := g.tokens.ask(r.Context(), []string{token}, func(ctx context.Context) (*Identity, error) {
		return g.reviewToken(ctx, token)
	})
	switch {
	case err != nil:
		return nil, unavailable("token review", err)
	case id == nil:
		return nil, &Refusal{http.StatusUnauthorized, "Unauthorized", errors.New("invalid bearer token")}
	}
	strip()
	return id, nil
}

func (g *Guard) reviewToken(ctx context.Context, token string) (*Identity, error) {
	review := &authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: token}}
	out := &authenticationv1.TokenReview{}
	if err := g.o.API.Create(ctx, kube.TokenReviews, "", "", review, out); err != nil {
		return nil, err
	}
	if !out.Status.Authenticated {
		return nil, nil
	}
	user := out.Status.User
	extra := make(map[string][]string, len(user.Extra))
	for k, v := range user.Extra {
		extra[k] = v
	}
	return &Identity{Name: user.Username, UID: user.UID, Groups: withGroup(user.Groups, groupAuthenticated),
		Extra: extra}, nil
}

// bearer returns the token of r and a function that removes it from r. The token is in the Authorization header, or,
// for browsers that cannot set headers on WebSockets, in a subprotocol.
func bearer(r *http.Request) (token string, strip func(), err error) {
	if scheme, rest, ok := strings.Cut(strings.TrimSpace(r.Header.Get("Authorization")), " "); ok &&
		strings.EqualFold(scheme, "bearer") {
		token, _, _ := strings.Cut(rest, " ")
		return token, func() { r.Header.Del("Authorization") }, nil
	}
	if !strings.EqualFold(r.Header.Get("Upgrade"), "websocket") {
		return "", nil, nil
	}
	var others []string
	for _, p := range strings.Split(strings.Join(r.Header.Values(webSocketProtocols), ","), ",") {
		p = strings.TrimSpace(p)
		encoded, ok := strings.CutPrefix(p, bearerProtocolStart)
		if !ok {
			others = append(others, p)
			continue
		}
		decoded, err := base64.RawURLEncoding.DecodeString(encoded)
		if err != nil || !utf8.Valid(decoded) || token != "" {
			return "", nil, fmt.Errorf("read bearer token from %s: want exactly one token, base64url without padding",
				webSocketProtocols)
		}
		token = string(decoded)
	}
	if token != "" && len(others) == 0 {
		return "", nil, fmt.Errorf("read bearer token from %s: no other subprotocol to answer with", webSocketProtocols)
	}
	return token, func() { r.Header.Set(webSocketProtocols, strings.Join(others, ",")) }, nil
}

// unavailable is the refusal when an answer of the API server is needed and it gives none.
func unavailable(what string, err error) *Refusal {
	return &Refusal{http.StatusServiceUnavailable, "API server does not answer a " + what +
		", and no earlier answer is cached; try again when it is back", err}
}
