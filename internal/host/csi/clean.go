package csi

import (
	"encoding/json"
	"slices"
	"strings"
)

const (
	// textMax bounds the text of an error, in bytes (chosen: an Event has at most 1 KiB of it).
	textMax = 4 << 10
	// secretMin is the length of the shortest text that is removed from errors, in bytes (chosen). A shorter secret is
	// easily guessed, and its removal would take pieces out of ordinary words.
	secretMin = 4
	// removed replaces a secret in an error, as in upstream's logs of requests.
	removed = "***stripped***"
)

// tokensKey is where the volume context has service account tokens, as JSON: {"audience": {"token": ...}}
// (CSIDriver.spec.tokenRequests).
const tokensKey = "csi.storage.k8s.io/serviceAccount.tokens"

// cleaned returns a driver's error text without the secrets of the request, in bounded length. Drivers may repeat their
// requests in errors.
func cleaned(text string, request any) string {
	for _, secret := range secretsOf(request) {
		text = strings.ReplaceAll(text, secret, removed)
	}
	text = strings.ToValidUTF8(text, "?")
	if len(text) > textMax {
		text = strings.ToValidUTF8(text[:textMax], "") + " (cut)"
	}
	return text
}

// secretsOf returns the secrets of a request, the longest first, since one may be part of another.
func secretsOf(request any) []string {
	var out []string
	add := func(text string) {
		if len(text) >= secretMin {
			out = append(out, text)
		}
	}
	addTokens := func(text string) {
		add(text)
		var tokens map[string]struct{ Token string }
		if json.Unmarshal([]byte(text), &tokens) == nil {
			for _, t := range tokens {
				add(t.Token)
			}
		}
	}
	if r, ok := request.(interface{ GetSecrets() map[string]string }); ok {
		for key, value := range r.GetSecrets() {
			if key == tokensKey {
				addTokens(value)
			} else {
				add(value)
			}
		}
	}
	if r, ok := request.(interface{ GetVolumeContext() map[string]string }); ok {
		addTokens(r.GetVolumeContext()[tokensKey])
	}
	slices.SortFunc(out, func(a, b string) int { return len(b) - len(a) })
	return out
}
