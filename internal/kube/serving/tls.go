package serving

import (
	"crypto/tls"
	"errors"
	"fmt"
	"strings"
)

// tlsVersions are the names of --tls-min-version.
var tlsVersions = map[string]uint16{
	"": tls.VersionTLS12, "VersionTLS10": tls.VersionTLS10, "VersionTLS11": tls.VersionTLS11,
	"VersionTLS12": tls.VersionTLS12, "VersionTLS13": tls.VersionTLS13,
}

// TLS is upstream's flags for a listener, except its certificate. The zero TLS is upstream's defaults.
type TLS struct {
	MinVersion   string   // --tls-min-version
	CipherSuites []string // --tls-cipher-suites
	Curves       []int32  // --tls-curve-preferences
}

// config checks t, reports all problems at once, and returns a listener's configuration without a certificate. The
// client's certificate is requested and not verified here: the guard verifies it, since a request without one may have
// a token.
func (t TLS) config() (*tls.Config, error) {
	var problems []error
	version, ok := tlsVersions[t.MinVersion]
	if !ok {
		problems = append(problems, fmt.Errorf("--tls-min-version: %q: want VersionTLS10, VersionTLS11, VersionTLS12 or VersionTLS13", t.MinVersion))
	}
	suites := map[string]uint16{}
	for _, s := range append(tls.CipherSuites(), tls.InsecureCipherSuites()...) {
		suites[s.Name] = s.ID
	}
	config := &tls.Config{MinVersion: version, ClientAuth: tls.RequestClientCert, NextProtos: []string{"h2", "http/1.1"}}
	for _, name := range t.CipherSuites {
		id, ok := suites[name]
		if !ok {
			problems = append(problems, fmt.Errorf("--tls-cipher-suites: %q: not a cipher suite of this build", name))
		}
		config.CipherSuites = append(config.CipherSuites, id)
	}
	for _, id := range t.Curves {
		curve := tls.CurveID(id)
		if id <= 0 || id > 1<<16-1 || strings.HasPrefix(curve.String(), "CurveID(") {
			problems = append(problems, fmt.Errorf("--tls-curve-preferences: %d: not a curve of this build", id))
		}
		config.CurvePreferences = append(config.CurvePreferences, curve)
	}
	return config, errors.Join(problems...)
}
