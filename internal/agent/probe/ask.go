package probe

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/plimsoll-dev/plimsoll/internal/agent/env"
	"github.com/plimsoll-dev/plimsoll/internal/core/probe"
	"github.com/plimsoll-dev/plimsoll/internal/host/cri"
)

const (
	// outputMax bounds in bytes how much of a command's output is kept and of a body is read. It is the kubelet's.
	outputMax = 10 << 10

	// execMargin is by how much a command's time limit may be exceeded before the runtime counts as hanging; that is
	// not the container's failure. Chosen: the runtime kills the command and answers in less than a second.
	execMargin = 10 * time.Second

	// headersMax bounds in bytes the header of an answer. Chosen: Go's own bound is 10 MiB. With that, pods that
	// answered with endless headers raised the agent from 44 to 158 MiB (test/e2e/hostile). 256 KiB is more than common
	// servers and proxies accept (nginx 32 KiB, Envoy 60 KiB).
	headersMax = 256 << 10
	// agentVersion is the version in User-Agent, as in "kube-probe/1.36": servers exempt it from their logs and from
	// authentication.
	agentVersion = "1.36"
)

// dialer leaves no socket in TIME_WAIT for a minute: in that time a node probes its containers thousands of times. It
// lingers for one second, not zero: zero would reset the connection and lose what was sent. A connection ends long
// before keep-alive packets would be sent, so none are set up.
func dialer() *net.Dialer {
	return &net.Dialer{KeepAlive: -1, Control: func(_, _ string, c syscall.RawConn) error {
		var err error
		if controlErr := c.Control(func(fd uintptr) {
			err = syscall.SetsockoptLinger(int(fd), syscall.SOL_SOCKET, syscall.SO_LINGER, &syscall.Linger{Onoff: 1, Linger: 1})
		}); controlErr != nil {
			return controlErr
		}
		return err
	}}
}

// transport connects to containers by https (http: direct): whatever proxy the agent has, with a new connection each
// time, and without verifying certificates, since containers may use any.
var transport = &http.Transport{
	DialContext:        dialer().DialContext,
	DisableKeepAlives:  true,
	DisableCompression: true,
	ForceAttemptHTTP2:  true,
	TLSClientConfig:    &tls.Config{InsecureSkipVerify: true}, //nolint:gosec // see above

	MaxResponseHeaderBytes: headersMax,
}

// Client returns an HTTP client for one request to a container. It does not follow a redirect to another host; the
// redirect is the answer.
func Client() *http.Client {
	return &http.Client{Transport: direct{}, CheckRedirect: func(r *http.Request, via []*http.Request) error {
		if r.URL.Hostname() != via[0].URL.Hostname() {
			return http.ErrUseLastResponse
		}
		if len(via) >= 10 {
			return errors.New("stopped after 10 redirects")
		}
		return nil
	}}
}

// Request returns the request that an httpGet action describes. purpose is probe or lifecycle.
func Request(ctx context.Context, action *corev1.HTTPGetAction, c *corev1.Container, ip,
	purpose string) (*http.Request, error) {
	port, err := portOf(action.Port, c)
	if err != nil {
		return nil, err
	}
	host := action.Host
	if host == "" {
		host = ip
	}
	u, err := url.Parse(action.Path)
	if err != nil {
		u = &url.URL{Path: action.Path} // not a URL, but the API accepted it: sent as it is
	}
	u.Scheme = "http"
	if action.Scheme == corev1.URISchemeHTTPS {
		u.Scheme = "https"
	}
	u.Host = net.JoinHostPort(host, strconv.Itoa(port))
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return nil, err
	}
	for _, h := range action.HTTPHeaders {
		r.Header.Add(h.Name, h.Value)
	}
	if _, given := r.Header["User-Agent"]; !given {
		r.Header.Set("User-Agent", "kube-"+purpose+"/"+agentVersion)
	}
	if _, given := r.Header["Accept"]; !given {
		r.Header.Set("Accept", "*/*")
	} else if r.Header.Get("Accept") == "" {
		r.Header.Del("Accept")
	}
	r.Host = r.Header.Get("Host")
	return r, nil
}

// portOf resolves a port that is given by number, by name, or by a number as text.
func portOf(port intstr.IntOrString, c *corev1.Container) (int, error) {
	n := port.IntValue()
	if port.Type == intstr.String {
		for _, p := range c.Ports {
			if p.Name == port.StrVal {
				n = int(p.ContainerPort)
			}
		}
		if n == 0 {
			return 0, fmt.Errorf("port %q: container %s has no port of that name", port.StrVal, c.Name)
		}
	}
	if n < 1 || n > 65535 {
		return 0, fmt.Errorf("invalid port number: %v", n)
	}
	return n, nil
}

func failure(format string, args ...any) answer {
	return answer{outcome: probe.Failure, output: fmt.Sprintf(format, args...)}
}

func askHTTP(ctx context.Context, action *corev1.HTTPGetAction, c *corev1.Container, ip string,
	timeout time.Duration) answer {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	request, err := Request(ctx, action, c, ip, "probe")
	if err != nil {
		return answer{err: err}
	}
	response, err := Client().Do(request)
	switch {
	// users know the text that http.Client.Timeout makes
	case err != nil && errors.Is(ctx.Err(), context.DeadlineExceeded):
		return failure("%v (Client.Timeout exceeded while awaiting headers)", err)
	case err != nil:
		return failure("%v", err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(io.LimitReader(response.Body, outputMax))
	switch {
	case err != nil && errors.Is(ctx.Err(), context.DeadlineExceeded):
		return failure("read response body: %v (Client.Timeout or context cancellation while reading body)", err)
	case err != nil:
		return failure("read response body: %v", err)
	}
	switch code := response.StatusCode; {
	case code >= 200 && code < 300:
		return answer{}
	case code >= 300 && code < 400:
		return answer{warning: true, output: "Probe terminated redirects, Response body: " + string(body)}
	default:
		return failure("HTTP probe failed with statuscode: %d", code)
	}
}

func askTCP(ctx context.Context, action *corev1.TCPSocketAction, c *corev1.Container, ip string,
	timeout time.Duration) answer {
	port, err := portOf(action.Port, c)
	if err != nil {
		return answer{err: err}
	}
	host := action.Host
	if host == "" {
		host = ip
	}
	d := dialer()
	d.Timeout = timeout
	conn, err := d.DialContext(ctx, "tcp", net.JoinHostPort(host, strconv.Itoa(port)))
	if err != nil {
		return failure("%v", err)
	}
	_ = conn.Close() // opening it was the probe
	return answer{}
}

func askGRPC(ctx context.Context, action *corev1.GRPCAction, ip string, timeout time.Duration) answer {
	address := net.JoinHostPort(ip, strconv.Itoa(int(action.Port)))
	conn, err := grpc.NewClient("passthrough:///"+address,
		grpc.WithUserAgent("kube-probe/"+agentVersion),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) {
			return dialer().DialContext(ctx, "tcp", address)
		}))
	if err != nil {
		return answer{err: err}
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	service := ""
	if action.Service != nil {
		service = *action.Service
	}
	response, err := grpc_health_v1.NewHealthClient(conn).Check(ctx, &grpc_health_v1.HealthCheckRequest{Service: service})
	connected := conn.GetState() == connectivity.Ready
	switch code := status.Code(err); {
	case err == nil && response.GetStatus() == grpc_health_v1.HealthCheckResponse_SERVING:
		return answer{}
	case err == nil:
		return failure("service unhealthy (responded with %q)", response.GetStatus().String())
	case code == codes.Unimplemented:
		return failure("error: this server does not implement the grpc health protocol (grpc.health.v1.Health): %s",
			status.Convert(err).Message())
	case code == codes.DeadlineExceeded && connected:
		return failure("timeout: health rpc did not complete within %v", timeout)
	case code == codes.DeadlineExceeded:
		return failure("timeout: failed to connect service %q within %v: %v", address, timeout, err)
	case code == codes.Unavailable && !connected:
		return failure("error: failed to connect service at %q: %v", address, err)
	}
	return failure("error: health rpc probe failed: %v", err)
}

// askExec runs a command in the container. Exit code 0 is success.
func askExec(ctx context.Context, runtime Runtime, id string, command []string, timeout time.Duration) answer {
	limited, cancel := context.WithTimeout(ctx, timeout+execMargin)
	defer cancel()
	request := &runtimeapi.ExecSyncRequest{ContainerId: id, Cmd: command,
		Timeout: int64((timeout + time.Second - 1) / time.Second)}
	response, err := runtime.ExecSync(limited, request, cri.KeepOutput(outputMax))
	switch {
	case err != nil && limited.Err() == nil && status.Code(err) == codes.DeadlineExceeded:
		return failure("command timed out: %q timed out after %s", strings.Join(command, " "), timeout)
	case err != nil:
		return answer{err: err}
	case response.ExitCode == 0:
		return answer{}
	}
	output := append(response.Stdout, response.Stderr...)
	return failure("%s", output[:min(len(output), outputMax)])
}

// staticCommand expands $(NAME) in a probe's command by the literal values of the container's variables. As in the
// kubelet, probes have no access to the values that were resolved when the container was created. A command that is too
// long for a process is an error.
func staticCommand(command []string, vars []corev1.EnvVar) ([]string, error) {
	values := make(map[string]string, len(vars))
	for _, v := range vars {
		values[v.Name] = v.Value
	}
	lookup := func(name string) (string, bool) { v, ok := values[name]; return v, ok }
	out, err := env.ExpandAll(command, lookup)
	if err != nil {
		return nil, fmt.Errorf("expand the probe's command: %w", err)
	}
	return out, nil
}
