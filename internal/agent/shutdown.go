package agent

import (
	"context"
	"path/filepath"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/plimsoll-dev/plimsoll/internal/agent/shutdown"
	"github.com/plimsoll-dev/plimsoll/internal/kube/kubeletconfig"
)

// shutdownState is the file of RootDir in which the kubelet, too, notes the last shutdown.
const shutdownState = "graceful_node_shutdown_state"

// prepareShutdown prepares what ends pods before the machine shuts down, if the configuration wants that.
func (a *Agent) prepareShutdown(context.Context) error {
	periods := kubeletconfig.ShutdownPeriods(a.o.Config)
	if len(periods) == 0 {
		return nil
	}
	a.shutdown = shutdown.New(shutdown.Options{
		Periods:  periods,
		Pods:     a.pods,
		Changed:  a.node.Changed,
		Recorder: a.recorder,
		// As in all Events about nodes, the UID is the name: that is what kubectl describe looks for.
		Node:      &corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: a.o.NodeName, UID: types.UID(a.o.NodeName)},
		StateFile: filepath.Join(a.o.RootDir, shutdownState),
	})
	a.shutdown.Register(a.metrics.Registry)
	return nil
}

// shuttingDown reports whether the machine is about to shut down.
func (a *Agent) shuttingDown() bool { return a.shutdown != nil && a.shutdown.ShuttingDown() }

// delayShutdowns delays shutdowns of the machine until ctx ends.
func (a *Agent) delayShutdowns(ctx context.Context) error {
	if a.shutdown == nil {
		return nil
	}
	return a.shutdown.Run(ctx)
}
