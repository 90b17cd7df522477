package kube

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"os"
	"sync"
	"syscall"
	"time"

	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/transport"
)

const (
	// loginCheckEvery is how often, at most, the files of a Login are checked for a change while requests are sent.
	loginCheckEvery = time.Second
	// loginWaitMax is how long a request waits for the files before it fails. Chosen: long enough that the watches of a
	// node that joins begin as soon as its certificate is there, short enough that their failures are in the log.
	loginWaitMax = 30 * time.Second
)

// A Login is a kubeconfig whose files are checked for changes. When the kubeconfig, the client's certificate or the
// certificate authority is replaced, all later requests use the new one. Requests in flight end on the connections on
// which they began. While the new files cannot be used, as when they are half written, the previous ones stay in use.
//
// A Login may exist before its kubeconfig does: then requests wait for it, up to loginWaitMax. It is safe for
// concurrent use.
type Login struct {
	path     string       // of the kubeconfig
	pairFile string       // a key and a certificate that replace the kubeconfig's; empty: there is none
	wanting  func() error // see Wanting; set before the first request

	mu      sync.Mutex        // guards what follows
	checked time.Time         // last check of the files
	stamps  map[string]stamp  // of the files, by path, at that check
	config  *rest.Config      // with the contents of its files; nil: none could be loaded so far
	leaf    *x509.Certificate // of the client certificate in config; nil: there is none
	version int               // counts the changes of config
	err     error             // why the present files cannot be used; nil: they are in config
}

// stamp tells whether a file has changed. The zero stamp is that of a file that does not exist.
type stamp struct {
	modified time.Time
	size     int64
	inode    uint64
}

func stampOf(path string) stamp {
	info, err := os.Stat(path)
	if err != nil {
		return stamp{}
	}
	s := stamp{modified: info.ModTime(), size: info.Size()}
	if sys, ok := info.Sys().(*syscall.Stat_t); ok {
		s.inode = sys.Ino
	}
	return s
}

// NewLogin returns the Login with the kubeconfig at path. If pairFile is not empty and contains a key and a
// certificate that has not expired, these are used instead of the kubeconfig's.
func NewLogin(path, pairFile string) *Login {
	l := &Login{path: path, pairFile: pairFile}
	l.Check()
	return l
}

// Wanting sets a function that says why there are no credentials yet. Requests that waited in vain fail with its error.
// Call Wanting before requests are sent.
func (l *Login) Wanting(why func() error) { l.wanting = why }

// Check reads the files if they have changed, and returns why they cannot be used; nil: they can.
func (l *Login) Check() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.check()
	return l.err
}

// Config returns a copy of the configuration in use, with the contents of its files; nil: there is none.
func (l *Login) Config() *rest.Config {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.config == nil {
		return nil
	}
	return rest.CopyConfig(l.config)
}

// Leaf returns the client certificate in use; nil: there is none.
func (l *Login) Leaf() *x509.Certificate {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.leaf
}

func (l *Login) check() {
	l.checked = time.Now()
	stamps := map[string]stamp{}
	for path := range l.stamps {
		stamps[path] = stampOf(path)
	}
	if l.err == nil && l.stamps != nil && maps.Equal(stamps, l.stamps) {
		return
	}
	config, leaf, stamps, err := loadLogin(l.path, l.pairFile)
	if err != nil {
		if l.config != nil && (l.err == nil || l.err.Error() != err.Error()) {
			slog.Warn("changed credentials for the API server cannot be used; the previous ones stay in use",
				"err", err)
		}
		l.stamps, l.err = stamps, err
		return
	}
	l.stamps, l.err = stamps, nil
	if l.config != nil && sameLogin(l.config, config) {
		return
	}
	if l.config != nil && l.config.Host != config.Host {
		slog.Warn("the kubeconfig names another API server; restart to use it",
			"file", l.path, "used", l.config.Host, "named", config.Host)
		config.Host = l.config.Host
	}
	l.config, l.leaf = config, leaf
	l.version++
}

func sameLogin(a, b *rest.Config) bool {
	return a.Host == b.Host && bytes.Equal(a.CAData, b.CAData) && bytes.Equal(a.CertData, b.CertData) &&
		bytes.Equal(a.KeyData, b.KeyData) && a.BearerToken == b.BearerToken && a.BearerTokenFile == b.BearerTokenFile &&
		a.Username == b.Username && a.Password == b.Password && a.ServerName == b.ServerName && a.Insecure == b.Insecure
}

// loadLogin reads a kubeconfig and the files that it names. It returns the stamps of all of them, also with an error.
func loadLogin(path, pairFile string) (*rest.Config, *x509.Certificate, map[string]stamp, error) {
	stamps := map[string]stamp{path: stampOf(path)}
	failed := func(err error) (*rest.Config, *x509.Certificate, map[string]stamp, error) {
		return nil, nil, stamps, fmt.Errorf("read kubeconfig: %s: %w", path, err)
	}
	config, err := LoadKubeconfig(path)
	if err != nil {
		return nil, nil, stamps, err
	}
	for _, file := range []string{config.CAFile, config.CertFile, config.KeyFile} {
		if file != "" {
			stamps[file] = stampOf(file)
		}
	}
	if err := rest.LoadTLSFiles(config); err != nil {
		return failed(err)
	}
	for file, text := range map[string][]byte{config.CAFile: config.CAData, config.CertFile: config.CertData} {
		// half written; without a certificate authority, those of the machine would be trusted
		if file != "" && len(text) == 0 {
			return failed(fmt.Errorf("%s: the file is empty", file))
		}
	}
	config.CAFile = ""
	config.CertFile, config.KeyFile = "", ""
	if pairFile != "" {
		stamps[pairFile] = stampOf(pairFile)
		text, err := os.ReadFile(pairFile)
		switch pair, pairErr := tls.X509KeyPair(text, text); {
		case errors.Is(err, fs.ErrNotExist):
		case err != nil:
			return failed(err)
		case pairErr != nil:
			return failed(fmt.Errorf("%s: %w", pairFile, pairErr))
		case time.Now().Before(pair.Leaf.NotAfter):
			config.CertData, config.KeyData = text, text
		}
	}
	var leaf *x509.Certificate
	if len(config.CertData) > 0 {
		pair, err := tls.X509KeyPair(config.CertData, config.KeyData)
		if err != nil {
			return failed(fmt.Errorf("client certificate and key: %w", err))
		}
		leaf = pair.Leaf
	}
	if _, err := rest.TLSConfigFor(config); err != nil {
		return failed(err)
	}
	return config, leaf, stamps, nil
}

// LoadKubeconfig reads a kubeconfig.
func LoadKubeconfig(path string) (*rest.Config, error) {
	config, err := clientcmd.BuildConfigFromFlags("", path)
	if err != nil {
		return nil, fmt.Errorf("read kubeconfig: %s: %w", path, err)
	}
	return config, nil
}

// current returns the configuration for a request, and a number that changes with it. It waits for the first one.
func (l *Login) current(ctx context.Context) (*rest.Config, int, error) {
	end := time.Now().Add(loginWaitMax)
	for {
		l.mu.Lock()
		if l.config == nil || time.Since(l.checked) >= loginCheckEvery {
			l.check()
		}
		config, version := l.config, l.version
		err := l.err
		l.mu.Unlock()
		if config != nil {
			return config, version, nil
		}
		if time.Now().After(end) {
			if l.wanting != nil {
				err = l.wanting()
			}
			return nil, 0, err
		}
		select {
		case <-ctx.Done():
			return nil, 0, ctx.Err()
		case <-time.After(loginCheckEvery):
		}
	}
}

// NewClientFor prepares a client that logs in with l to the API server at host. It does not dial. o.Kubeconfig and
// o.Master are not used.
func NewClientFor(l *Login, host string, o Options) (*Client, error) {
	return NewClientForConfig(&rest.Config{
		Host:      host,
		UserAgent: o.UserAgent,
		QPS:       o.QPS,
		Burst:     o.Burst,
		Transport: &loginTransport{login: l},
	})
}

// loginTransport sends each request with the Login's configuration at that moment. A connection belongs to one
// configuration. After a change, connections of the previous configuration take no more requests, and are closed when
// they are idle.
type loginTransport struct {
	login *Login // whose configuration is used

	mu      sync.Mutex        // guards what follows
	version int               // of the configuration in base
	base    *http.Transport   // of the newest configuration; nil: there was no request yet
	send    http.RoundTripper // base, with a wrapper that authenticates in headers
}

func (t *loginTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	config, version, err := t.login.current(r.Context())
	var send http.RoundTripper
	if err == nil {
		send, err = t.transport(config, version)
	}
	if err != nil {
		if r.Body != nil {
			_ = r.Body.Close() // as every RoundTripper must
		}
		return nil, err
	}
	return send.RoundTrip(r)
}

func (t *loginTransport) transport(config *rest.Config, version int) (http.RoundTripper, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if version <= t.version { // less: another request has seen a later change already
		return t.send, nil
	}
	base, send, err := dial(config)
	if err != nil {
		if t.send != nil {
			slog.Warn("connections to the API server keep the previous credentials", "err", err)
			return t.send, nil
		}
		return nil, err
	}
	if t.base != nil {
		t.base.CloseIdleConnections() // the others are closed once they have been idle for a while
	}
	t.base, t.send = base, send
	t.version = version
	return send, nil
}

// dial makes a new transport for a configuration.
func dial(config *rest.Config) (*http.Transport, http.RoundTripper, error) {
	c, err := config.TransportConfig()
	if err != nil {
		return nil, nil, fmt.Errorf("connect to %s: %w", config.Host, err)
	}
	tlsConfig, err := transport.TLSConfigFor(c)
	if err != nil {
		return nil, nil, fmt.Errorf("connect to %s: %w", config.Host, err)
	}
	proxy := http.ProxyFromEnvironment
	if c.Proxy != nil {
		proxy = c.Proxy
	}
	base := utilnet.SetTransportDefaults(&http.Transport{
		Proxy:               proxy,
		TLSClientConfig:     tlsConfig,
		TLSHandshakeTimeout: 10 * time.Second, // client-go's
		DialContext:         (&net.Dialer{Timeout: 10 * time.Second, KeepAlive: 15 * time.Second}).DialContext,
	})
	send, err := transport.HTTPWrappersForConfig(c, base)
	if err != nil {
		return nil, nil, fmt.Errorf("connect to %s: %w", config.Host, err)
	}
	return base, send, nil
}
