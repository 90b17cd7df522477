package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/plimsoll-dev/plimsoll/internal/agent/pods"
	"github.com/plimsoll-dev/plimsoll/internal/agent/server"
	"github.com/plimsoll-dev/plimsoll/internal/host/shortage"
)

// prepareServer prepares the server of the kubelet's API.
func (a *Agent) prepareServer(context.Context) error {
	o := server.Options{
		Config:   a.o.Config,
		NodeName: a.o.NodeName,
		Names:    []string{a.o.NodeName},
		CertDir:  a.o.CertDir,
		API:      a.client,
		Pods:     servedPods{a.pods},
		Runtime:  a.runtime,
		Stats:    a.stats,
		Cgroups:  a.cgroups,
		Metrics:  a.metrics,
		Healthy:  func() error { return a.pods.Healthy(healthyWithin) },
		Journal:  a.findDecisions,
		Trace:    a.tracing.Handler,

		RootDir:      a.o.RootDir,
		Flags:        a.o.Flags,
		SetVerbosity: a.o.SetVerbosity,
	}
	if a.serving != nil {
		o.Certificate = a.serving.Get
	}
	prepared, err := server.New(o)
	if err == nil {
		a.server = prepared
	}
	return err
}

// healthyWithin is how old the last relist may be before the agent's health check fails: the kubelet's limit for a
// relist (3 min).
const healthyWithin = 3 * time.Minute

// serve serves the kubelet's API. If the server could not be prepared at the agent's start, serve prepares it first: on
// a full disk the serving certificate cannot be written until other parts have freed space.
func (a *Agent) serve(ctx context.Context) error {
	if a.server == nil {
		if err := a.prepareServer(ctx); err != nil {
			return err
		}
	}
	return a.server.Run(ctx)
}

// prepareServing calls prepareServer. A shortage (such as a full disk) is not an error, since serve tries again later.
func (a *Agent) prepareServing(ctx context.Context) error {
	err := a.prepareServer(ctx)
	if shortage.Is(err) {
		slog.Warn("the agent's server could not be prepared yet; it is retried", "err", err)
		return nil
	}
	return err
}

// retrying wraps run so that it is retried when the machine is short of something, instead of ending the agent.
func retrying(name string, run func(context.Context) error) func(context.Context) error {
	return func(ctx context.Context) error { return shortage.Retry(ctx, name, run) }
}

// servedPods lets the server ask about pods.
type servedPods struct{ *pods.Runner }

func (s servedPods) Sandbox(namespace, name string, uid types.UID) (string, error) {
	id, err := s.SandboxID(namespace, name, uid)
	return id, notFound(err)
}

func (s servedPods) Container(namespace, name, container string, uid types.UID,
	previous bool) (server.Container, error) {
	run, err := s.ContainerRun(namespace, name, container, uid, previous)
	if err != nil {
		return server.Container{}, notFound(err)
	}
	c := server.Container{
		ID:        run.ID,
		LogPath:   run.LogPath,
		State:     server.Exited,
		Attempt:   run.Attempt,
		Tty:       run.TTY,
		Stdin:     run.Stdin,
		StartedAt: run.StartedAt,
	}
	if run.Running {
		c.State = server.Running
	}
	return c, nil
}

// notFound makes the server answer 404 if the pod workers know no such pod or container.
func notFound(err error) error {
	if errors.Is(err, pods.ErrNotFound) {
		return fmt.Errorf("%w: %w", server.ErrNotFound, err)
	}
	return err
}
