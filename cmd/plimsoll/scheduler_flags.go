package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/pprof"
	"os"
	"runtime"
	"time"

	"github.com/spf13/pflag"

	"github.com/plimsoll-dev/plimsoll/internal/kube"
	"github.com/plimsoll-dev/plimsoll/internal/kube/featuregate"
	"github.com/plimsoll-dev/plimsoll/internal/kube/serving"
)

// upstreamFlags are the flags of kube-scheduler that concern how it runs, not where it places pods.
type upstreamFlags struct {
	kubeconfig, master          string
	authentication, access      string // kubeconfigs
	skipLookup, tolerate        bool   // --authentication-skip-lookup and --authentication-tolerate-lookup-failure
	tokenTTL, allowTTL, denyTTL time.Duration
	profiling, contention       bool
	verbosity                   int
	logFormat                   string
	gates                       []string // values of --feature-gates
	port                        *securePort
	flags                       *pflag.FlagSet // to see which were given
}

// idleFlags are flags of kube-scheduler that are accepted, so that its command lines work, and have no effect: each
// with the name of its value and the reason. A flag without a value is a switch.
var idleFlags = []struct{ name, value, why string }{
	{"allow-metric-labels", "map", "the number of metric labels is bounded anyway"},
	{"allow-metric-labels-manifest", "file", "the number of metric labels is bounded anyway"},
	{"cert-dir", "directory", "a generated certificate is kept in memory"},
	{"disable-http2-serving", "", "the server accepts HTTP/2 and HTTP/1.1"},
	{"disabled-metrics", "names", "all metrics are cheap"},
	{"emulated-version", "versions", "there is one version of the behaviour: 1.36"},
	{"http2-max-streams-per-connection", "number", "the number of connections is bounded"},
	{"kube-api-burst", "number", "writes are bounded by how the API server answers"},
	{"kube-api-content-type", "type", "requests are protobuf"},
	{"kube-api-qps", "number", "writes are bounded by how the API server answers"},
	{"log-flush-frequency", "duration", "logs are not buffered"},
	{"log-json-info-buffer-size", "size", "logs are not buffered"},
	{"log-json-split-stream", "", "logs go to standard error"},
	{"log-text-info-buffer-size", "size", "logs are not buffered"},
	{"log-text-split-stream", "", "logs go to standard error"},
	{"min-compatibility-version", "versions", "there is one version of the behaviour: 1.36"},
	{"permit-address-sharing", "", "ports are not shared"},
	{"permit-port-sharing", "", "ports are not shared"},
	{"pod-max-in-unschedulable-pods-duration", "duration", "a pod is tried again after each change that may help it"},
	{"requestheader-allowed-names", "names", "there is no front proxy"},
	{"requestheader-client-ca-file", "file", "there is no front proxy"},
	{"requestheader-extra-headers-prefix", "prefixes", "there is no front proxy"},
	{"requestheader-group-headers", "names", "there is no front proxy"},
	{"requestheader-uid-headers", "names", "there is no front proxy"},
	{"requestheader-username-headers", "names", "there is no front proxy"},
	{"show-hidden-metrics-for-version", "version", "no metric is hidden"},
	{"tls-sni-cert-key", "files", "there is one certificate"},
	{"vmodule", "patterns", "the level of --v applies everywhere"},
}

// schedulerFlags defines the flags of kube-scheduler, except those of leader election and --config.
func schedulerFlags(f *pflag.FlagSet) *upstreamFlags {
	u := &upstreamFlags{flags: f, port: servingFlags(f, portScheduler)}
	f.StringVar(&u.kubeconfig, "kubeconfig", "",
		"kubeconfig `file` of the cluster (default: the configuration of the pod in which this runs)")
	f.StringVar(&u.master, "master", "", "address of the API server, instead of the kubeconfig's")
	f.StringVar(&u.authentication, "authentication-kubeconfig", "",
		"kubeconfig `file` for TokenReviews (default: --kubeconfig)")
	f.StringVar(&u.access, "authorization-kubeconfig", "",
		"kubeconfig `file` for SubjectAccessReviews (default: --kubeconfig)")
	f.BoolVar(&u.skipLookup, "authentication-skip-lookup", false,
		"without --client-ca-file, do not take the CA of client certificates from the cluster")
	f.BoolVar(&u.tolerate, "authentication-tolerate-lookup-failure", true,
		"start even if that CA cannot be read; client certificates are then refused")
	f.DurationVar(&u.tokenTTL, "authentication-token-webhook-cache-ttl", 10*time.Second,
		"how long TokenReviews are cached")
	f.DurationVar(&u.allowTTL, "authorization-webhook-cache-authorized-ttl", 10*time.Second,
		"how long positive SubjectAccessReviews are cached")
	f.DurationVar(&u.denyTTL, "authorization-webhook-cache-unauthorized-ttl", 10*time.Second,
		"how long negative SubjectAccessReviews are cached")
	f.StringSliceVar(&u.port.AlwaysAllow, "authorization-always-allow-paths", serving.AlwaysAllowDefault,
		"paths that need no authorization")
	f.StringVar(&u.port.TLS.MinVersion, "tls-min-version", "",
		"least version of TLS: VersionTLS10 to VersionTLS13 (default: VersionTLS12)")
	f.StringSliceVar(&u.port.TLS.CipherSuites, "tls-cipher-suites", nil,
		"cipher suites to offer, by name (default: Go's choice)")
	f.Int32SliceVar(&u.port.TLS.Curves, "tls-curve-preferences", nil,
		"key exchanges to offer, by number (default: Go's choice)")
	f.BoolVar(&u.profiling, "profiling", true, "serve /debug/pprof/ to authorized clients")
	f.BoolVar(&u.contention, "contention-profiling", false,
		"record where goroutines block, for /debug/pprof/block; this costs CPU")
	f.IntVarP(&u.verbosity, "v", "v", 0, "log level: from 4, every decision is logged")
	f.StringVar(&u.logFormat, "logging-format", "text", "format of the log: text or json")
	f.StringArrayVar(&u.gates, "feature-gates", nil,
		"`name=bool,...` of Kubernetes 1.36's feature gates; a warning names those without an effect")
	for _, idle := range idleFlags {
		if idle.value == "" {
			f.Bool(idle.name, false, "no effect: "+idle.why)
		} else {
			f.String(idle.name, "", "no effect: `"+idle.value+"`; "+idle.why)
		}
	}
	return u
}

// begin checks the flags, sets up the log, and warns of flags without an effect.
func (u *upstreamFlags) begin() (featuregate.Set, error) {
	if err := setLog(u.logFormat, u.verbosity); err != nil {
		return nil, fmt.Errorf("--logging-format: %w", err)
	}
	for _, idle := range idleFlags {
		if u.flags.Changed(idle.name) {
			slog.Warn("flag without effect", "flag", "--"+idle.name, "why", idle.why)
		}
	}
	set, idle, err := featuregate.Parse(u.gates, gateDeclaredFeatures)
	if err != nil {
		return nil, fmt.Errorf("--feature-gates: %w", err)
	}
	for _, name := range idle {
		slog.Warn("feature gate without effect: supported features have upstream's default", "gate", name)
	}
	return set, nil
}

// gateDeclaredFeatures is the gate of the rule of that name. The other gates have no effect.
const gateDeclaredFeatures = "NodeDeclaredFeatures"

// client returns a client for agent with the first of the kubeconfigs that is not empty.
func (u *upstreamFlags) client(agent string, kubeconfigs ...string) (*kube.Client, error) {
	kubeconfig := cmp.Or(kubeconfigs...)
	if kubeconfig == "" && u.master == "" && os.Getenv("KUBERNETES_SERVICE_HOST") == "" {
		return nil,
			errors.New("--kubeconfig: required outside of a pod, as a flag or as clientConnection.kubeconfig in the " +
				"file of --config")
	}
	// Writes have no rate limit: they are bounded by --binds-in-flight and by how the server answers.
	return kube.NewClient(kube.Options{Kubeconfig: kubeconfig, Master: u.master, UserAgent: agent, QPS: -1})
}

// open prepares the HTTPS port: the clients for authentication and authorization, and what is served.
func (u *upstreamFlags) open(ctx context.Context, kubeconfig string) error {
	authentication, err := u.client("plimsoll-scheduler-authentication", u.authentication, kubeconfig)
	if err != nil {
		return err
	}
	access, err := u.client("plimsoll-scheduler-authorization", u.access, kubeconfig)
	if err != nil {
		return err
	}
	o := &u.port.Options
	o.API, o.AccessAPI = authentication, access
	o.TokenTTL = orNone(u.tokenTTL)
	o.AllowTTL = orNone(u.allowTTL)
	o.DenyTTL = orNone(u.denyTTL)
	if o.Port != 0 && o.ClientCA == "" && !u.skipLookup {
		o.ClusterCA = &serving.ClusterCA{}
		if !u.tolerate {
			if err := o.ClusterCA.Read(ctx, authentication); err != nil {
				return err
			}
		}
		go o.ClusterCA.Follow(ctx, authentication)
	}
	if u.profiling {
		if u.contention {
			runtime.SetBlockProfileRate(1)
		}
		for pattern, answer := range map[string]http.HandlerFunc{
			"GET /debug/pprof/": pprof.Index, "GET /debug/pprof/cmdline": pprof.Cmdline,
			"GET /debug/pprof/profile": pprof.Profile, "GET /debug/pprof/symbol": pprof.Symbol,
			"GET /debug/pprof/trace": pprof.Trace,
		} {
			o.Handlers[pattern] = withProfileTime(answer)
		}
	}
	return nil
}

// orNone translates a flag's value for serving.Options. A flag of zero means not to cache, which is below zero there.
func orNone(d time.Duration) time.Duration {
	if d == 0 {
		return -1
	}
	return d
}

// profileTime bounds a profile. Chosen: more than upstream's default of 30 s, and no person waits for longer.
const profileTime = 5 * time.Minute

// withProfileTime allows a handler to take profileTime. net/http/pprof reads the server's WriteTimeout from the
// context.
func withProfileTime(answer http.HandlerFunc) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(profileTime))
		answer(w, r.WithContext(context.WithValue(r.Context(), http.ServerContextKey,
			&http.Server{WriteTimeout: profileTime})))
	})
}
