package console

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// TestGuard: only whoever has the token, from a page of the console on the loopback, is answered.
func TestGuard(t *testing.T) {
	g := newGuard("7460")
	h := g.wrap(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusTeapot) }))
	const cookie = "Cookie"
	token := g.cookie + "=" + g.token
	known := map[string]string{cookie: token}
	for name, c := range map[string]struct {
		method, path, host string
		headers            map[string]string
		want               int
	}{
		"with the token":         {path: "/events", headers: known, want: 418},
		"without":                {path: "/events", want: 401},
		"with another":           {path: "/events", headers: map[string]string{cookie: token + "0"}, want: 401},
		"with that of a port":    {path: "/", headers: map[string]string{cookie: "plimsoll-console-1=" + g.token}, want: 401},
		"first":                  {path: "/?token=" + g.token, want: 303},
		"first, wrong":           {path: "/?token=x", want: 401},
		"token elsewhere":        {path: "/events?token=" + g.token, want: 401},
		"localhost":              {path: "/", host: "localhost:99", headers: known, want: 418},
		"IPv6":                   {path: "/", host: "[::1]:99", headers: known, want: 418},
		"IPv6 without port":      {path: "/", host: "[::1]", headers: known, want: 418},
		"rebinding":              {path: "/", host: "evil.example:7460", headers: known, want: 421},
		"rebinding, with token":  {path: "/?token=" + g.token, host: "evil.example", want: 421},
		"looks like localhost":   {path: "/", host: "localhost.evil.example", headers: known, want: 421},
		"address of the machine": {path: "/", host: "192.0.2.1:7460", headers: known, want: 421},
		"own page posts": {method: "POST", path: "/look", want: 418,
			headers: map[string]string{cookie: token, "Origin": "http://127.0.0.1:7460", "Sec-Fetch-Site": "same-origin"}},
		"other site posts": {method: "POST", path: "/look", want: 403,
			headers: map[string]string{cookie: token, "Origin": "http://evil.example", "Sec-Fetch-Site": "cross-site"}},
		"old browser posts from elsewhere": {method: "POST", path: "/look", want: 403,
			headers: map[string]string{cookie: token, "Origin": "http://evil.example"}},
		"other port posts": {method: "POST", path: "/look", want: 403,
			headers: map[string]string{cookie: token, "Origin": "http://127.0.0.1:8080", "Sec-Fetch-Site": "same-site"}},
		"other site reads": {path: "/events", want: 403,
			headers: map[string]string{cookie: token, "Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "cors"}},
		"link elsewhere": {path: "/?token=" + g.token, want: 303,
			headers: map[string]string{"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}},
	} {
		t.Run(name, func(t *testing.T) {
			method, host := "GET", "127.0.0.1:7460"
			if c.method != "" {
				method = c.method
			}
			if c.host != "" {
				host = c.host
			}
			r := httptest.NewRequest(method, c.path, nil)
			r.Host = host
			for k, v := range c.headers {
				r.Header.Set(k, v)
			}
			w := httptest.NewRecorder()
			h.ServeHTTP(w, r)
			if w.Code != c.want {
				t.Errorf("status %d, want %d: %s", w.Code, c.want, w.Body)
			}
			got := w.Header()
			if csp := got.Get("Content-Security-Policy"); !strings.HasPrefix(csp, "default-src 'none'") ||
				strings.Contains(csp, "unsafe") {
				t.Errorf("policy %q", csp)
			}
			if c.want == 303 && (!strings.Contains(got.Get("Set-Cookie"), "SameSite=Strict") ||
				!strings.Contains(got.Get("Set-Cookie"), "HttpOnly") || got.Get("Location") != "/") {
				t.Errorf("headers %v", got)
			}
		})
	}
}

// TestListen: no address is served that other machines reach.
func TestListen(t *testing.T) {
	for listen, ok := range map[string]bool{
		"127.0.0.1:0": true, "127.9.9.9:80": true, "[::1]:0": true, "localhost:0": true,
		"0.0.0.0:0": false, ":0": false, "[::]:80": false, "192.0.2.1:80": false, "example.com:80": false, "127.0.0.1": false,
	} {
		if err := CheckListen(listen); (err == nil) != ok {
			t.Errorf("%s: %v", listen, err)
		}
	}
}

// TestAssets: every file that the page names is there, and nothing comes from elsewhere or stands inline.
func TestAssets(t *testing.T) {
	list, err := assets.ReadDir("assets")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range list {
		text, err := assets.ReadFile("assets/" + f.Name())
		if err != nil {
			t.Fatal(err)
		}
		for _, bad := range []string{"innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "https://",
			"style=\"", " onclick=\"", "setAttribute('style'"} {
			if strings.Contains(string(text), bad) {
				t.Errorf("%s contains %s", f.Name(), bad)
			}
		}
		w := httptest.NewRecorder()
		asset(w, f.Name())
		if w.Code != http.StatusOK || w.Header().Get("Content-Type") == "" {
			t.Errorf("%s: %d %q", f.Name(), w.Code, w.Header().Get("Content-Type"))
		}
	}
	for _, name := range []string{"none.js", "../guard.go", "assets"} {
		w := httptest.NewRecorder()
		if asset(w, name); w.Code != http.StatusNotFound {
			t.Errorf("%s: %d", name, w.Code)
		}
	}
}
