package console

import (
	"crypto/rand"
	"crypto/subtle"
	"encoding/hex"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
)

// guard decides who may see the console: whoever has its token, from a page of its own.
type guard struct {
	token  string
	cookie string // the name of the cookie; it has the port, because browsers do not keep cookies of ports apart
}

// tokenBytes is how many random bytes a token has. Chosen: nobody guesses 256 bits.
const tokenBytes = 32

func newGuard(port string) *guard {
	random := make([]byte, tokenBytes)
	_, _ = rand.Read(random) // it never fails: it ends the process instead
	return &guard{token: hex.EncodeToString(random), cookie: "plimsoll-console-" + port}
}

// csp is what the page may do: load the program's own files and talk to the program, nothing else. There is no inline
// script and no inline style.
const csp = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; " +
	"base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

// wrap returns a handler that passes on only what may be answered.
func (g *guard) wrap(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Content-Security-Policy", csp)
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("Cross-Origin-Opener-Policy", "same-origin")
		h.Set("Cross-Origin-Resource-Policy", "same-origin")
		h.Set("Cache-Control", "no-store")
		switch {
		case !isLoopback(r.Host):
			// Another name means that some page has this address under its own name (DNS rebinding).
			http.Error(w, fmt.Sprintf("host %.80q: want a loopback address or localhost", r.Host), http.StatusMisdirectedRequest)
		case !sameOrigin(r):
			http.Error(w, "another site's page may not ask the console", http.StatusForbidden)
		case r.URL.Path == "/" && r.URL.Query().Has("token"):
			g.enter(w, r)
		case !g.has(r):
			http.Error(w, "open the address that plimsoll console printed: it has the token", http.StatusUnauthorized)
		default:
			next.ServeHTTP(w, r)
		}
	})
}

// enter turns the token in the address into a cookie, so that the address bar, the history and screenshots do not show
// it.
func (g *guard) enter(w http.ResponseWriter, r *http.Request) {
	if !g.is(r.URL.Query().Get("token")) {
		http.Error(w, "this token is not the console's: open the address that plimsoll console printed last",
			http.StatusUnauthorized)
		return
	}
	http.SetCookie(w, &http.Cookie{Name: g.cookie, Value: g.token, Path: "/", HttpOnly: true,
		SameSite: http.SameSiteStrictMode})
	http.Redirect(w, r, "/", http.StatusSeeOther)
}

func (g *guard) has(r *http.Request) bool {
	c, err := r.Cookie(g.cookie)
	return err == nil && g.is(c.Value)
}

func (g *guard) is(token string) bool {
	return subtle.ConstantTimeCompare([]byte(token), []byte(g.token)) == 1
}

// isLoopback reports whether a Host header names this machine's loopback. The port may differ: a tunnel may have
// another.
func isLoopback(host string) bool {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	} else if len(host) > 1 && host[0] == '[' && host[len(host)-1] == ']' {
		host = host[1 : len(host)-1]
	}
	if host == "localhost" {
		return true
	}
	address, err := netip.ParseAddr(host)
	return err == nil && address.IsLoopback()
}

// sameOrigin reports whether a request may come from a page of the console, or from no page. Old browsers send neither
// header; they send no cookie from other sites, either.
func sameOrigin(r *http.Request) bool {
	if site := r.Header.Get("Sec-Fetch-Site"); site != "" && site != "same-origin" && site != "none" {
		// a link to the console, in a mail or a chat in the browser: the token is in it
		return r.Method == http.MethodGet && r.URL.Path == "/" && r.Header.Get("Sec-Fetch-Mode") == "navigate"
	}
	origin := r.Header.Get("Origin")
	if origin == "" {
		return true
	}
	from, err := url.Parse(origin)
	return err == nil && from.Scheme == "http" && from.Host == r.Host
}
