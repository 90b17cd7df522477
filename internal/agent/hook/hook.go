// Package hook runs container lifecycle hooks, postStart and preStop: a command in the container, an HTTP request to
// it, or a sleep.
//
// A hook runs once and returns its error. The caller bounds it with ctx (a preStop hook by the rest of the pod's
// termination grace period), decides what a failure means, and publishes it. So errors contain no output of a command
// and no body of a response, which may hold secrets. As in the kubelet, an HTTP hook succeeds with any response.
//
// The package stores nothing, retries nothing, and is not for probes.
package hook

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/record"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/plimsoll-dev/plimsoll/internal/agent/metrics"
	"github.com/plimsoll-dev/plimsoll/internal/agent/probe"
	"github.com/plimsoll-dev/plimsoll/internal/host/cri"
)

// bodyMax is how many bytes of a response's body are read and discarded.
const bodyMax = 10 << 10

// Runner runs hooks.
type Runner struct {
	Runtime  probe.Runtime
	Recorder record.EventRecorder
	Metrics  *metrics.Set // optional
}

// PostStart runs container c's postStart hook, if it has one. id is the runtime's container ID, ip the pod's address.
func (r Runner) PostStart(ctx context.Context, pod *corev1.Pod, c *corev1.Container, id, ip string) error {
	if c.Lifecycle == nil || c.Lifecycle.PostStart == nil {
		return nil
	}
	return r.run(ctx, pod, c, c.Lifecycle.PostStart, id, ip)
}

// PreStop runs container c's preStop hook, if it has one. ctx must end with the pod's termination grace period.
func (r Runner) PreStop(ctx context.Context, pod *corev1.Pod, c *corev1.Container, id, ip string) error {
	if c.Lifecycle == nil || c.Lifecycle.PreStop == nil {
		return nil
	}
	return r.run(ctx, pod, c, c.Lifecycle.PreStop, id, ip)
}

func (r Runner) run(ctx context.Context, pod *corev1.Pod, c *corev1.Container, h *corev1.LifecycleHandler, id,
	ip string) error {
	switch {
	case h.Exec != nil:
		return r.exec(ctx, id, h.Exec.Command)
	case h.HTTPGet != nil:
		return r.get(ctx, pod, c, h.HTTPGet, ip)
	case h.Sleep != nil:
		err := sleep(ctx, time.Duration(h.Sleep.Seconds)*time.Second)
		if err != nil && r.Metrics != nil {
			r.Metrics.HookSleepsCut.Inc()
		}
		return err
	}
	return errors.New("invalid handler: only exec, httpGet and sleep can be run")
}

func (r Runner) exec(ctx context.Context, id string, command []string) error {
	request := &runtimeapi.ExecSyncRequest{ContainerId: id, Cmd: command}
	if deadline, ok := ctx.Deadline(); ok {
		// The runtime itself ends the command too, in case the connection is gone by then. It counts whole seconds.
		request.Timeout = max(int64((time.Until(deadline)+time.Second-1)/time.Second), 1)
	}
	response, err := r.Runtime.ExecSync(ctx, request, cri.KeepOutput(0))
	switch {
	case ctx.Err() != nil:
		return fmt.Errorf("exec: not finished in time: %w", ctx.Err())
	case err != nil:
		return fmt.Errorf("exec: %w", err)
	case response.ExitCode != 0:
		return fmt.Errorf("exec: command exited with %d", response.ExitCode)
	}
	return nil
}

// get sends the request. If the hook asks for HTTPS and the server speaks HTTP, the request is sent again over HTTP,
// because kubelets before 1.24 ignored the scheme. The kubelet does the same and records the same Event.
func (r Runner) get(ctx context.Context, pod *corev1.Pod, c *corev1.Container, action *corev1.HTTPGetAction,
	ip string) error {
	request, err := probe.Request(ctx, action, c, ip, "lifecycle")
	if err != nil {
		return fmt.Errorf("httpGet: %w", err)
	}
	err = send(request)
	if err != nil && strings.Contains(err.Error(), "server gave HTTP response to HTTPS client") {
		plain := request.Clone(ctx)
		plain.URL.Scheme = "http"
		plain.Header.Del("Authorization")
		if err = send(plain); err == nil {
			if r.Metrics != nil {
				r.Metrics.HookHTTPFallbacks.Inc()
			}
			r.Recorder.Event(pod, corev1.EventTypeWarning, "LifecycleHTTPFallback",
				fmt.Sprintf("request to HTTPS lifecycle hook %s got HTTP response, retry with HTTP succeeded", request.URL.Host))
		}
	}
	if err != nil {
		return fmt.Errorf("httpGet: %w", err)
	}
	return nil
}

func send(request *http.Request) error {
	response, err := probe.Client().Do(request)
	if err != nil {
		return err
	}
	_, _ = io.CopyN(io.Discard, response.Body, bodyMax) // the body is ignored
	return response.Body.Close()
}

func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return errors.New("sleep: container terminated before sleep hook finished")
	}
}
