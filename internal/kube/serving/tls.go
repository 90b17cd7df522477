package serving

import (
	"crypto/tls"
	"errors"
	"fmt"
	"strings"
)

// tlsVersions are the names of MinVersion.
var tlsVersions = map[string]uint16{
	"": tls.VersionTLS12, "VersionTLS10": tls.VersionTLS10, "VersionTLS11": tls.VersionTLS11,
	"VersionTLS12": tls.VersionTLS12, "VersionTLS13": tls.VersionTLS13,
}

// TLS is upstream's settings of a listener, except its certificate: flags of the components, fields of the
// KubeletConfiguration. The zero TLS is upstream's defaults.
type TLS struct {
	MinVersion   string
	CipherSuites []string
	Curves       []int32
}

// Names are the names of the fields of TLS where the user set them, as flags or in a file. Errors contain them.
type Names struct{ MinVersion, CipherSuites, Curves string }

// flags are the names of upstream's flags.
var flags = Names{
	MinVersion: "--tls-min-version", CipherSuites: "--tls-cipher-suites", Curves: "--tls-curve-preferences",
}

// Config checks t, reports all problems at once, and returns a listener's configuration without a certificate. The
// client's certificate is requested and not verified here: the guard verifies it, since a request without one may have
// a token.
func (t TLS) Config(names Names) (*tls.Config, error) {
	var problems []error
	version, ok := tlsVersions[t.MinVersion]
	if !ok {
		const versions = "VersionTLS10, VersionTLS11, VersionTLS12 or VersionTLS13"
		problems = append(problems, fmt.Errorf("%s: %q: want %s", names.MinVersion, t.MinVersion, versions))
	}
	suites := map[string]uint16{}
	for _, s := range append(tls.CipherSuites(), tls.InsecureCipherSuites()...) {
		suites[s.Name] = s.ID
	}
	config := &tls.Config{
		MinVersion: version, ClientAuth: tls.RequestClientCert, NextProtos: []string{"h2", "http/1.1"},
	}
	for _, name := range t.CipherSuites {
		id, ok := suites[name]
		if !ok {
			problems = append(problems, fmt.Errorf("%s: %q: not a cipher suite of this build", names.CipherSuites, name))
		}
		config.CipherSuites = append(config.CipherSuites, id)
	}
	for _, id := range t.Curves {
		curve := tls.CurveID(id)
		if id <= 0 || id > 1<<16-1 || strings.HasPrefix(curve.String(), "CurveID(") {
			problems = append(problems, fmt.Errorf("%s: %d: not a curve of this build", names.Curves, id))
		}
		config.CurvePreferences = append(config.CurvePreferences, curve)
	}
	return config, errors.Join(problems...)
}
