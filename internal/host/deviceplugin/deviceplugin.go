// Package deviceplugin is the node's side of the device plugin API v1beta1: a socket where plugins register, and a
// connection to each registered plugin.
//
// # Model
//
// A Server listens on kubelet.sock in a directory. A plugin listens on a socket of its own in the same directory, and
// calls Register with that socket's name and a resource. The Server then calls the plugin: for its options, for a
// stream of its devices, and later for devices that are assigned to containers. The Server notifies a Listener about
// each plugin; it keeps only the newest plugin of each resource.
//
// # Invariants
//
//   - For one resource the Listener is called in order, one call at a time: Connected, Listed any number of times,
//     Lost. A plugin that registers again replaces the earlier one. The Listener is then called with Connected again,
//     and no longer about the earlier plugin.
//   - The server connects only to sockets directly in the directory, and not to links. It refuses a name with a slash
//     and the name of its own socket. It opens the directory once, so that a later mount or rename changes nothing.
//   - A plugin whose registration is refused gets an error that says what is wrong and what to do.
//
// When the Server starts it removes every socket in the directory, as the kubelet does: plugins watch for that, or for
// the new kubelet.sock, to register again.
//
// Plugins that register by a socket in plugins_registry (host/pluginregistry) are added by Add, and called like all
// others.
//
// The package decides nothing (core/devicemanager does) and does not evaluate plugins' answers.
package deviceplugin

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"path/filepath"
	"strings"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/apimachinery/pkg/util/validation"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/plimsoll-dev/plimsoll/internal/core/devicemanager"
	"github.com/plimsoll-dev/plimsoll/internal/core/numa"
	"github.com/plimsoll-dev/plimsoll/internal/host/socket"
)

// Listener is notified about plugins. Its methods must not call the Server.
type Listener interface {
	Connected(p *Plugin, o devicemanager.Options)
	Listed(p *Plugin, devices []numa.Device)
	Lost(p *Plugin, err error)
}

// socketName is the registration socket's name, which the API prescribes.
const socketName = "kubelet.sock"

// Server accepts registrations.
type Server struct {
	dir      *socket.Dir // of the registration socket and of the plugins' sockets
	listener Listener
	socket   net.Listener // the registration socket

	mu      sync.Mutex         // guards current and ended
	current map[string]*Plugin // by resource
	ended   bool               // Serve is stopping: no plugin is added any more
	plugins sync.WaitGroup     // the goroutines of follow

	pluginapi.UnimplementedRegistrationServer
}

// Listen prepares the directory and its socket. Plugins that see the socket may register at once; they get an answer
// when Serve runs.
func Listen(dir string, l Listener) (*Server, error) {
	open, err := socket.Open(dir)
	if err != nil {
		return nil, fmt.Errorf("listen for device plugins: %w", err)
	}
	s := &Server{dir: open, listener: l, current: map[string]*Plugin{}}
	if err = open.Clear(); err == nil {
		s.socket, err = open.Listen(socketName)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("listen for device plugins: %s: %w", dir, err), open.Close())
	}
	return s, nil
}

// close removes the socket and closes the directory. A socket without a listener would mislead plugins.
func (s *Server) close() {
	_ = s.socket.Close() // gRPC has closed it, unless it never served
	if err := errors.Join(s.dir.Remove(socketName), s.dir.Close()); err != nil {
		slog.Warn("directory of device plugins not cleaned up", "dir", s.dir.Path, "err", err)
	}
}

// Serve accepts registrations until ctx ends, and then closes every plugin's connection. The Listener is not notified
// of that.
func (s *Server) Serve(ctx context.Context) error {
	defer s.close()
	server := grpc.NewServer()
	pluginapi.RegisterRegistrationServer(server, s)
	stop := context.AfterFunc(ctx, func() {
		s.disconnectAll()
		server.Stop()
	})
	defer stop()
	err := server.Serve(s.socket)
	s.disconnectAll()
	s.plugins.Wait()
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return fmt.Errorf("serve registrations of device plugins: %s: %w", filepath.Join(s.dir.Path, socketName), err)
}

func (s *Server) disconnectAll() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ended = true
	for _, p := range s.current {
		p.close()
	}
}

// Register is called by plugins.
func (s *Server) Register(ctx context.Context, r *pluginapi.RegisterRequest) (*pluginapi.Empty, error) {
	if err := check(r); err != nil {
		slog.Warn("device plugin refused", "resource", r.GetResourceName(), "endpoint", r.GetEndpoint(),
			"version", r.GetVersion(), "err", err)
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	p, options, err := s.connect(ctx, r.ResourceName, r.Endpoint)
	if err != nil {
		slog.Warn("device plugin not reached", "resource", r.ResourceName, "endpoint", r.Endpoint, "err", err)
		return nil, status.Error(codes.Unavailable, err.Error())
	}
	if !s.keep(p, options) {
		return nil, status.Error(codes.Unavailable, "register device plugin: the agent is stopping: register again when "+
			socketName+" appears again")
	}
	return &pluginapi.Empty{}, nil
}

// Add connects to a plugin that did not call Register, at the absolute path of its socket.
func (s *Server) Add(ctx context.Context, resource, path string) error {
	if why := badResource(resource); why != "" {
		return fmt.Errorf("resource name %q: %s", resource, why)
	}
	ctx, cancel := context.WithTimeout(ctx, connectMax)
	defer cancel()
	if err := reachable(ctx, path); err != nil {
		return err
	}
	p, options, err := connect(ctx, resource, path,
		func(ctx context.Context) (net.Conn, error) { return socket.Connect(ctx, path) })
	if err != nil {
		return err
	}
	if !s.keep(p, options) {
		return errors.New("the agent is stopping")
	}
	return nil
}

// reachable returns an error at once if nothing listens at path; a gRPC call would wait instead.
func reachable(ctx context.Context, path string) error {
	conn, err := socket.Connect(ctx, path)
	if err != nil {
		return err
	}
	return conn.Close()
}

// Remove disconnects a plugin that Add connected to. The Listener is called with Lost.
func (s *Server) Remove(resource, path string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p := s.current[resource]; p != nil && p.path == path {
		p.close()
	}
}

// keep makes p the plugin of its resource, unless the Server is stopping.
func (s *Server) keep(p *Plugin, options devicemanager.Options) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended {
		p.close()
		return false
	}
	if before := s.current[p.Resource]; before != nil {
		before.close()
	}
	s.current[p.Resource] = p
	s.listener.Connected(p, options)
	s.plugins.Go(func() { s.follow(p) })
	return true
}

// follow passes on a plugin's devices until it disconnects.
func (s *Server) follow(p *Plugin) {
	err := p.watch(func(devices []numa.Device) {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.current[p.Resource] == p && !s.ended {
			s.listener.Listed(p, devices)
		}
	})
	p.close()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.current[p.Resource] == p && !s.ended {
		delete(s.current, p.Resource)
		s.listener.Lost(p, err)
	}
}

// check returns all problems of a registration.
func check(r *pluginapi.RegisterRequest) error {
	var problems []string
	if r.GetVersion() != pluginapi.Version {
		problems = append(problems, fmt.Sprintf("version %q: this agent supports only %s", r.GetVersion(), pluginapi.Version))
	}
	if why := badResource(r.GetResourceName()); why != "" {
		problems = append(problems, fmt.Sprintf("resource name %q: %s", r.GetResourceName(), why))
	}
	if why := badEndpoint(r.GetEndpoint()); why != "" {
		problems = append(problems, fmt.Sprintf("endpoint %q: %s", r.GetEndpoint(), why))
	}
	if problems == nil {
		return nil
	}
	return fmt.Errorf("register device plugin: %s", strings.Join(problems, "; "))
}

// badResource applies the kubelet's rule for names of extended resources.
func badResource(name string) string {
	switch {
	case !strings.Contains(name, "/"):
		return "want a name with a domain of your own, like example.com/gpu"
	case strings.Contains(name, "kubernetes.io/"):
		return "the domain kubernetes.io is not for device plugins"
	case strings.HasPrefix(name, "requests."):
		return `names that begin with "requests." are those of quotas`
	}
	// A quota's name is the resource's with a prefix, and must be valid too.
	return strings.Join(validation.IsQualifiedName("requests."+name), ", ")
}

func badEndpoint(name string) string {
	switch {
	case name == "" || name == "." || name == "..":
		return "want the name of the plugin's socket"
	case strings.ContainsAny(name, "/\x00"):
		return "want the name of a socket in the directory of " + socketName + ", without a directory"
	case name == socketName || name == socket.UnfinishedName(socketName):
		return "that is the agent's own socket"
	}
	return ""
}
