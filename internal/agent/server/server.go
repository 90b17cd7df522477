// Package server is the agent's HTTPS server, with the kubelet's API. Its clients are the API server, kubectl (through
// the API server), metrics-server and Prometheus.
//
//	/containerLogs/<ns>/<pod>/<container>             a container's log, also as it grows
//	/exec /attach /portForward /run                   streams into containers, passed on to the runtime
//	/pods /runningpods/ /configz                      the node's pods, and the agent's configuration
//	/stats/summary /metrics /metrics/resource ...     usage and metrics
//	/journal                                          the node's decisions with their numbers (not in the kubelet)
//	/checkpoint/<ns>/<pod>/<container>                has the runtime write a container's state into a file
//	/healthz /logs/ /debug/pprof/ /debug/flags/v      health, the machine's log directory, profiles, the log's level
//	/statusz /flagz                                   versions and flags of the agent
//
// Only /healthz is also served without TLS, authentication and authorization, on healthzBindAddress:healthzPort
// (loopback by default).
//
// Paths, parameters, statuses and texts are the kubelet's, since its clients rely on them.
//
// The guard (internal/kube/authn) authenticates and authorizes every request first. Ordinary requests are bounded in
// size and time. Streams (logs, exec, attach, port-forward) end when either side ends them, or with the server; those
// of exec, attach and port-forward also end when no byte has passed for streamingConnectionIdleTimeout. The numbers of
// open connections and streams are bounded, well below the descriptors of the process (limitsFor). The server has no
// state: pods come from Pods, usage from stats, everything else from the runtime.
//
// A stream's bytes are copied between the client and the runtime's streaming server without being parsed. So SPDY and
// WebSocket both work, in the versions that the runtime implements. (The 1.36 API server translates kubectl's newer
// WebSocket protocols to SPDY for every node that does not declare ExtendWebSocketsToKubelet. This agent does not
// declare it, since containerd does not implement them.)
package server

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"

	"google.golang.org/grpc"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	kubeletconfigv1beta1 "k8s.io/kubelet/config/v1beta1"
	statsapi "k8s.io/kubelet/pkg/apis/stats/v1alpha1"

	"github.com/plimsoll-dev/plimsoll/internal/agent/metrics"
	"github.com/plimsoll-dev/plimsoll/internal/agent/stats"
	"github.com/plimsoll-dev/plimsoll/internal/journal"
	"github.com/plimsoll-dev/plimsoll/internal/kube/authn"
	"github.com/plimsoll-dev/plimsoll/internal/kube/serving"
)

const (
	// headerTime bounds the TLS handshake and the request's header. Chosen: no legitimate client takes longer.
	headerTime = 10 * time.Second
	// answerTime bounds an ordinary request from its header to the last byte of the answer. A client that cannot read a
	// /metrics answer in that time is disconnected. Raising it lets slow clients use more memory.
	answerTime = time.Minute
	// idleTime is how long a connection stays open between requests (kubelet: the same).
	idleTime = 90 * time.Second
	// stopTime is how long requests may continue after Run's context has ended.
	stopTime = 5 * time.Second
	// headerBytesMax and bodyBytesMax bound the memory of a request. Exec commands are in the URL, up to the API
	// server's limit (1 MiB of header); no endpoint reads a body.
	headerBytesMax = 1 << 20
	bodyBytesMax   = 64 << 10
)

// ErrNotFound is in the chain of errors about a pod or container that is not on this node.
var ErrNotFound = errors.New("not found")

// Pods knows the pods on this node.
type Pods interface {
	// List returns every pod that the agent runs, with its latest status. The objects are shared and must not be
	// written to.
	List() []*corev1.Pod
	// Sandbox returns the CRI ID of the pod's running sandbox. An empty uid means any.
	Sandbox(namespace, name string, uid types.UID) (id string, err error)
	// Container returns the latest attempt of a container that the runtime has, or the one before it. For a container
	// that has not started, the error tells what it waits for. It is called often and must not call the runtime.
	Container(namespace, name, container string, uid types.UID, previous bool) (Container, error)
}

// State tells whether a container's process runs.
type State string

// States of a container.
const (
	Running State = "running"
	Exited  State = "exited"
	Waiting State = "waiting" // created or about to be; it has no process
)

// Container is one attempt of a container.
type Container struct {
	ID         string // CRI ID; may be empty while Waiting
	LogPath    string // absolute path
	State      State
	Attempt    uint32
	Tty, Stdin bool // as in its specification
	StartedAt  time.Time
}

// Runtime is the part of the CRI that the server calls; *cri.Client implements it.
type Runtime interface {
	Exec(context.Context, *runtimeapi.ExecRequest, ...grpc.CallOption) (*runtimeapi.ExecResponse, error)
	ExecSync(context.Context, *runtimeapi.ExecSyncRequest, ...grpc.CallOption) (*runtimeapi.ExecSyncResponse, error)
	Attach(context.Context, *runtimeapi.AttachRequest, ...grpc.CallOption) (*runtimeapi.AttachResponse, error)
	PortForward(context.Context, *runtimeapi.PortForwardRequest,
		...grpc.CallOption) (*runtimeapi.PortForwardResponse, error)
	ListContainers(context.Context, *runtimeapi.ListContainersRequest,
		...grpc.CallOption) (*runtimeapi.ListContainersResponse, error)
	CheckpointContainer(context.Context, *runtimeapi.CheckpointContainerRequest,
		...grpc.CallOption) (*runtimeapi.CheckpointContainerResponse, error)
}

// Stats reads usage at the time of a request; *stats.Reader implements it.
type Stats interface {
	Summary(ctx context.Context, parts stats.Parts) (*statsapi.Summary, error)
}

// Cgroups writes the metrics of the node's cgroups; *cadvisor.Collector implements it.
type Cgroups interface {
	Write(context.Context, io.Writer) error
}

// Options are what a Server needs. All fields are required unless they say otherwise.
type Options struct {
	Config   *kubeletconfigv1beta1.KubeletConfiguration // with defaults filled in
	NodeName string
	Names    []string // further names and addresses for a self-signed certificate; may be empty
	CertDir  string   // of the node's certificates; a self-signed one is written there
	// Certificate is the GetCertificate of the port's TLS, in place of the configuration's files. Optional.
	Certificate func(*tls.ClientHelloInfo) (*tls.Certificate, error)
	API         authn.Reviewer // may be nil only with token authentication off and AlwaysAllow
	Pods        Pods
	Runtime     Runtime
	Stats       Stats
	Cgroups     Cgroups // optional
	Metrics     *metrics.Set
	Healthy     func() error // returns nil while the agent's loop makes progress
	LogDir      string       // served at /logs/; empty: /var/log
	RootDir     string       // of the agent; checkpoints are written below it
	// Flags are those of the command line, with their values, for /flagz.
	Flags map[string]string
	// SetVerbosity sets how much the agent logs, as -v does. Optional: it cannot be set.
	SetVerbosity func(verbosity int)
	// Descriptors is how many files the process may have open; zero: RLIMIT_NOFILE. The server leaves half of them to
	// others.
	Descriptors uint64
	// Journal returns the node's decisions. Optional.
	Journal func(journal.Query) (journal.Answer, error)
	// Trace adds a span to each request that the guard admits. Optional.
	Trace func(http.Handler) http.Handler
}

// Server answers requests about one node.
type Server struct {
	o         Options
	guard     *authn.Guard
	tls       *tls.Config
	began     time.Time // when it was made, which is when the agent starts
	slots     slots
	refusals  serving.Refusals
	handler   http.Handler
	streams   context.Context // ends when streams must end
	endStream context.CancelFunc
}

// New checks o, reads certificates and builds the routes; it does not listen.
func New(o Options) (*Server, error) {
	c := o.Config
	guard, err := authn.New(authn.Options{
		NodeName: o.NodeName, API: o.API,
		ClientCAFile: c.Authentication.X509.ClientCAFile,
		Tokens:       isTrue(c.Authentication.Webhook.Enabled), TokenTTL: c.Authentication.Webhook.CacheTTL.Duration,
		Anonymous:   isTrue(c.Authentication.Anonymous.Enabled),
		AlwaysAllow: c.Authorization.Mode == kubeletconfigv1beta1.KubeletAuthorizationModeAlwaysAllow,
		AllowTTL:    c.Authorization.Webhook.CacheAuthorizedTTL.Duration,
		DenyTTL:     c.Authorization.Webhook.CacheUnauthorizedTTL.Duration,
		Resources: map[string]authn.Resource{
			journal.Path: {Group: journal.Group, Resource: journal.Resource, Name: o.NodeName},
		},
	})
	if err != nil {
		return nil, err
	}
	if o.Descriptors == 0 {
		if o.Descriptors, err = descriptorsMax(); err != nil {
			return nil, err
		}
	}
	s := &Server{o: o, guard: guard, began: time.Now(), slots: slots{limits: limitsFor(o.Descriptors)}}
	if s.tls, err = tlsConfig(o); err != nil {
		return nil, err
	}
	if s.handler, err = s.routes(); err != nil {
		return nil, err
	}
	s.streams, s.endStream = context.WithCancel(context.Background())
	return s, nil
}

func isTrue(b *bool) bool { return b != nil && *b }

// Run listens on the configured address and port, and on healthzPort, and serves until ctx ends. Then streams are
// closed, ordinary requests get a moment to finish, and Run returns nil.
func (s *Server) Run(ctx context.Context) error {
	defer s.endStream()
	c := s.o.Config
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel(nil) // must run before Wait
	if c.HealthzPort != nil && *c.HealthzPort > 0 {
		listener, err := listen(ctx, "healthzBindAddress and healthzPort", c.HealthzBindAddress, *c.HealthzPort)
		if err != nil {
			return err
		}
		wg.Go(func() {
			if err := s.serve(ctx, listener, &http.Server{Handler: s.healthOnly()}, (*http.Server).Serve); err != nil {
				cancel(err)
			}
		})
	}
	if c.EnableServer != nil && !*c.EnableServer {
		slog.Info("server is off", "reason", "enableServer: false")
		<-ctx.Done()
	} else {
		listener, err := listen(ctx, "address and port", c.Address, c.Port)
		if err != nil {
			return err
		}
		if err := s.Serve(ctx, listener); err != nil {
			return err
		}
	}
	if cause := context.Cause(ctx); cause != ctx.Err() {
		return cause
	}
	return nil
}

func listen(ctx context.Context, fields, host string, port int32) (net.Listener, error) {
	address := net.JoinHostPort(host, strconv.Itoa(int(port)))
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
	if err != nil {
		return nil, fmt.Errorf("listen for the agent's server: %s: %w; free it or set %s in the KubeletConfiguration",
			address, err, fields)
	}
	return listener, nil
}

// Serve is Run on a given listener, which it closes, and without healthzPort.
func (s *Server) Serve(ctx context.Context, listener net.Listener) error {
	defer s.endStream()
	return s.serve(ctx, listener, &http.Server{Handler: s.handler, TLSConfig: s.tls},
		func(h *http.Server, l net.Listener) error {
			return h.ServeTLS(l, "", "")
		})
}

func (s *Server) serve(ctx context.Context, listener net.Listener, server *http.Server,
	start func(*http.Server, net.Listener) error) error {
	server.ReadHeaderTimeout = headerTime
	server.IdleTimeout = idleTime
	server.MaxHeaderBytes = headerBytesMax
	// applies to requests that the guard refuses too; streams remove it
	server.ReadTimeout = answerTime
	server.WriteTimeout = answerTime
	crowd := serving.NewCrowd(listener, s.slots.limits.connections, s.o.Metrics.ConnectionsRefused.Inc)
	crowd.Attach(server)
	// failed handshakes of port scanners are logged as debug
	server.ErrorLog = slog.NewLogLogger(slog.Default().Handler(), slog.LevelDebug)
	slog.Info("server listens", "address", listener.Addr())
	done := make(chan error, 1)
	go func() { done <- start(server, crowd) }()
	select {
	case err := <-done:
		return fmt.Errorf("serve %s: %w", listener.Addr(), err)
	case <-ctx.Done():
	}
	s.endStream()
	grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTime)
	defer cancel()
	if err := server.Shutdown(grace); err != nil {
		slog.Warn("server stops with requests unfinished", "after", stopTime, "err", errors.Join(err, server.Close()))
	}
	<-done
	return nil
}
