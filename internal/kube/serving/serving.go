// Package serving is the HTTPS server of the scheduler and the lifecycle controller. It serves their metrics to clients
// that may read them, and their health to all clients. It also has what the node's server needs, too: certificates that
// are read again when they change, self-signed ones, and the check of TLS settings.
//
// # Model
//
//	/healthz /livez /readyz    "ok", or 500 and the reason; open to all clients, as upstream's are
//	/metrics                   the registry's measurements; authn decides who may, by SubjectAccessReview on the path
//
// Client certificates are verified by a CA in a file, or else by the CA that the cluster publishes (ClusterCA), if the
// caller follows it. Without either only tokens are accepted, which is what scrapers in a cluster use.
package serving

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/plimsoll-dev/plimsoll/internal/kube/authn"
)

// Options are upstream's secure serving flags, as far as they matter here.
type Options struct {
	BindAddress string // --bind-address
	Port        int    // --secure-port; zero: do not listen
	CertFile    string // --tls-cert-file; empty with KeyFile: a self-signed certificate, kept in memory
	KeyFile     string // --tls-private-key-file
	ClientCA    string // --client-ca-file; empty: no client certificates

	TLS       TLS
	ClusterCA *ClusterCA // the CA of client certificates when there is no ClientCA; nil: none is accepted
	// --authorization-always-allow-paths; a "*" at the end stands for all paths below; nil: AlwaysAllowDefault
	AlwaysAllow []string

	API       authn.Reviewer // for TokenReviews and SubjectAccessReviews
	AccessAPI authn.Reviewer // for SubjectAccessReviews; nil: API
	// how long answers are cached; zero: upstream's 10 s; below zero: not at all
	TokenTTL, AllowTTL, DenyTTL time.Duration

	Registry          *prometheus.Registry
	Well, Live, Ready []Check                   // for /healthz, /livez and /readyz
	Handlers          map[string]http.Handler   // by pattern; a handler itself checks the method
	Resources         map[string]authn.Resource // by path: what must be allowed for it, instead of the path
}

// AlwaysAllowDefault are the paths that need no authorization; upstream's default.
var AlwaysAllowDefault = []string{"/healthz", "/readyz", "/livez"}

// The kubelet's and the API server's defaults for delegated decisions, and bounds on slow clients (chosen).
const (
	tokenTTL   = 10 * time.Second
	allowTTL   = 10 * time.Second
	denyTTL    = 10 * time.Second
	headerTime = 10 * time.Second
	answerTime = 30 * time.Second
	stopTime   = time.Second
	// idleTime is how long a connection is kept between requests, as upstream's servers do.
	idleTime = 90 * time.Second
	// connectionsMax bounds the open connections. Chosen: each scraper needs one, and there are only a few of them.
	connectionsMax = 256
)

// Check returns every problem of o at once.
func (o Options) Check() error {
	var errs []error
	if o.Port < 0 || o.Port > 65535 {
		errs = append(errs, fmt.Errorf("--secure-port: %d: must be 1 to 65535, or 0 for no server", o.Port))
	}
	if net.ParseIP(o.BindAddress) == nil {
		errs = append(errs, fmt.Errorf("--bind-address: %q: not an IP address", o.BindAddress))
	}
	if _, err := o.TLS.Config(flags); err != nil {
		errs = append(errs, err)
	}
	if (o.CertFile == "") != (o.KeyFile == "") {
		errs = append(errs, fmt.Errorf("--tls-cert-file %q and --tls-private-key-file %q: set both or neither", o.CertFile,
			o.KeyFile))
	}
	return errors.Join(errs...)
}

// Run serves until ctx ends.
func Run(ctx context.Context, o Options) error {
	if err := o.Check(); err != nil {
		return err
	}
	if o.Port == 0 {
		<-ctx.Done()
		return nil
	}
	config, err := o.tls()
	if err != nil {
		return err
	}
	handler, err := o.handler()
	if err != nil {
		return err
	}
	address := net.JoinHostPort(o.BindAddress, strconv.Itoa(o.Port))
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
	if err != nil {
		return fmt.Errorf("listen: %s: %w; free it or set --secure-port and --bind-address", address, err)
	}
	slog.Info("server listens", "address", listener.Addr())
	crowd := NewCrowd(listener, connectionsMax, nil)
	server := newServer(handler, config)
	crowd.Attach(server)
	stop := context.AfterFunc(ctx, func() {
		grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTime)
		defer cancel()
		if server.Shutdown(grace) != nil {
			_ = server.Close()
		}
	})
	defer stop()
	if err := server.ServeTLS(crowd, "", ""); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve %s: %w", address, err)
	}
	return nil
}

// newServer returns a server on which no client, authenticated or not, can occupy a connection for longer than its
// timeouts. They also bound the wait for a request body that was announced and does not come.
func newServer(handler http.Handler, config *tls.Config) *http.Server {
	return &http.Server{
		Handler:           handler,
		TLSConfig:         config,
		ReadHeaderTimeout: headerTime,
		ReadTimeout:       answerTime,
		WriteTimeout:      answerTime,
		IdleTimeout:       idleTime,
		ErrorLog:          slog.NewLogLogger(slog.Default().Handler(), slog.LevelDebug), // failed handshakes of port scanners
	}
}

func (o Options) tls() (*tls.Config, error) {
	config, err := o.TLS.Config(flags)
	if err != nil {
		return nil, err
	}
	if o.CertFile != "" {
		pair := &KeyPair{CertFile: o.CertFile, KeyFile: o.KeyFile}
		config.GetCertificate = pair.Get
		_, err := pair.Get(nil)
		return config, err
	}
	host, err := os.Hostname()
	if err != nil {
		return nil, fmt.Errorf("make self-signed serving certificate: %w", err)
	}
	certPEM, keyPEM, err := SelfSigned([]string{host, "localhost", "127.0.0.1", "::1"})
	if err != nil {
		return nil, err
	}
	pair, err := tls.X509KeyPair(certPEM, keyPEM)
	config.Certificates = []tls.Certificate{pair}
	return config, err
}

func (o Options) handler() (http.Handler, error) {
	access := authn.Options{
		API: o.API, AccessAPI: o.AccessAPI, ClientCAFile: o.ClientCA, Tokens: true,
		TokenTTL: cmp.Or(o.TokenTTL, tokenTTL), AllowTTL: cmp.Or(o.AllowTTL, allowTTL), DenyTTL: cmp.Or(o.DenyTTL, denyTTL),
		Resources: o.Resources,
	}
	if o.ClusterCA != nil {
		access.ClientCAs = o.ClusterCA.Pool
	}
	guard, err := authn.New(access)
	if err != nil {
		return nil, err
	}
	var refusals Refusals
	paths := o.paths()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !o.isOpen(r.URL.Path) {
			if who, err := guard.Admit(r); err != nil {
				refuse(&refusals, w, r, who, err)
				return
			}
			Admitted(r.Context())
		}
		paths.ServeHTTP(w, r)
	}), nil
}

// paths returns the handlers of all paths, without authorization.
func (o Options) paths() *http.ServeMux {
	mux := http.NewServeMux()
	for name, checks := range map[string][]Check{"healthz": o.Well, "livez": o.Live, "readyz": o.Ready} {
		answer := health(name, checks)
		mux.HandleFunc("GET /"+name, answer)
		mux.HandleFunc("GET /"+name+"/{check}", answer)
	}
	mux.Handle("GET /metrics", promhttp.HandlerFor(o.Registry, promhttp.HandlerOpts{}))
	for pattern, answer := range o.Handlers {
		mux.Handle(pattern, answer)
	}
	return mux
}

// isOpen reports whether path needs no authorization.
func (o Options) isOpen(path string) bool {
	open := o.AlwaysAllow
	if open == nil {
		open = AlwaysAllowDefault
	}
	return slices.ContainsFunc(open, func(allowed string) bool {
		below, all := strings.CutSuffix(allowed, "*")
		return path == allowed || all && strings.HasPrefix(path, below)
	})
}

func refuse(refusals *Refusals, w http.ResponseWriter, r *http.Request, who *authn.Identity, err error) {
	status, text := http.StatusInternalServerError, "the request could not be authorized"
	if refusal := (*authn.Refusal)(nil); errors.As(err, &refusal) {
		status, text = refusal.Status, refusal.Text
	}
	name := ""
	if who != nil {
		name = who.Name
	}
	refusals.Log(r, status, name, err)
	http.Error(w, Brief(text), status)
}
