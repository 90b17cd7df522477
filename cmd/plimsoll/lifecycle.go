package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"

	corelifecycle "github.com/plimsoll-dev/plimsoll/internal/core/lifecycle"
	"github.com/plimsoll-dev/plimsoll/internal/kube"
	"github.com/plimsoll-dev/plimsoll/internal/lifecycle"
	"github.com/plimsoll-dev/plimsoll/internal/version"
)

func newLifecycleCommand() *cobra.Command {
	var kubeconfig string
	o := lifecycle.Options{Monitor: corelifecycle.Defaults(), Metrics: lifecycle.NewMetrics()}
	c := &cobra.Command{
		Use:   "lifecycle",
		Short: "Monitor the health of nodes, and evict pods from nodes that are lost",
		Long: `Monitor the health of nodes, instead of kube-controller-manager's node-lifecycle-controller and
taint-eviction-controller; run kube-controller-manager with
--controllers=*,-node-lifecycle-controller,-taint-eviction-controller.

Taints follow conditions at once. A node that renewed no Lease for --node-monitor-grace-period, and the pods on it,
are marked not ready at once. It gets a NoExecute taint at the eviction rate of its zone, and its pods are evicted
when their tolerations expire. No node is marked while the watch of the API server is broken. If several of these
processes run, one of them acts.

Flags restore upstream's behaviour where this differs: --pace-by-room=false, --respect-disruption-budgets=false (the
default), --collect-pods=false, --node-monitor-period=5s, --pod-eviction-attempts=5.`,
		Example: "  plimsoll lifecycle --kubeconfig /etc/kubernetes/controller-manager.conf",
		Args:    cobra.NoArgs,
	}
	f := c.Flags()
	m := &o.Monitor
	f.StringVar(&kubeconfig, "kubeconfig", "", "kubeconfig `file` of the cluster; required outside of a pod")
	f.DurationVar(&m.Grace, "node-monitor-grace-period", m.Grace,
		"how long a node may not renew its Lease before its status becomes Unknown")
	f.DurationVar(&m.StartupGrace, "node-startup-grace-period", m.StartupGrace,
		"the same for a node that has never reported a status, counted from its creation")
	f.DurationVar(&m.MonitorPeriod, "node-monitor-period", 0,
		"check all nodes together at this interval; 0: check each node when its grace period ends")
	f.Float32Var(&m.EvictionRate, "node-eviction-rate", m.EvictionRate,
		"how many nodes per second and zone get a NoExecute taint because they are down")
	f.Float32Var(&m.SecondaryRate, "secondary-node-eviction-rate", m.SecondaryRate,
		"the same in a large zone that is unhealthy, and while the pods do not fit elsewhere")
	f.Float32Var(&m.UnhealthyZone, "unhealthy-zone-threshold", m.UnhealthyZone,
		"a zone is unhealthy if this share of its nodes, and at least 3, are down")
	f.IntVar(&m.LargeZone, "large-cluster-size-threshold", m.LargeZone,
		"a zone with more nodes is large; in a smaller one no node is tainted while the zone is unhealthy")
	f.BoolVar(&m.ByRoom, "pace-by-room", m.ByRoom,
		"use the secondary rate while the pods of a node do not fit on the healthy nodes")
	f.BoolVar(&o.RespectBudgets, "respect-disruption-budgets", false,
		"evict pods through the Eviction API, which respects PodDisruptionBudgets, instead of deleting them")
	f.IntVar(&m.EvictAttempts, "pod-eviction-attempts", 0,
		"give up the eviction of a pod after that many attempts; 0: retry until it succeeds")
	f.BoolVar(&m.Collect, "collect-pods", m.Collect,
		"delete pods of deleted nodes, and terminating pods of out-of-service nodes, as pod garbage collection does")
	f.DurationVar(&m.OrphanAfter, "orphan-quarantine", m.OrphanAfter,
		"how long a node must be missing before its pods are deleted")
	leader := leaderElectionFlags(f, "plimsoll-lifecycle")
	port := servingFlags(f, portLifecycle)
	var journalDir string
	journalFlag(f, &journalDir)
	c.RunE = func(c *cobra.Command, _ []string) error {
		// The jitter of retries differs from process to process.
		m.Seed = uint64(time.Now().UnixNano())
		if kubeconfig == "" && os.Getenv("KUBERNETES_SERVICE_HOST") == "" {
			return usageError{errors.New("--kubeconfig: required outside of a pod")}
		}
		var err error
		// Writes have no rate limit: they are bounded by how many may be in flight and by the server's priority and fairness.
		if o.Client, err = kube.NewClient(kube.Options{Kubeconfig: kubeconfig, UserAgent: "plimsoll-lifecycle",
			QPS: -1}); err != nil {
			return usageError{err}
		}
		if o.Events, err = kube.NewClient(kube.Options{Kubeconfig: kubeconfig, UserAgent: "plimsoll-lifecycle-events",
			QPS: -1}); err != nil {
			return usageError{err}
		}
		if err := errors.Join(o.Check(), port.Check(), leader.Check()); err != nil {
			return usageError{err}
		}
		port.API, port.Registry = o.Events, o.Metrics.Registry
		kube.ClientMetrics(o.Metrics.Registry)
		if o.Journal, err = port.openJournal("lifecycle", journalDir); err != nil {
			return usageError{fmt.Errorf("--journal-dir: %w", err)}
		}
		defer func() { logFailure("close the journal", o.Journal.Close()) }()
		return port.serveWhile(c.Context(), func(ctx context.Context) error {
			go o.Events.NoteSkew(ctx, version.Kubernetes, controlOlderMax)
			return leader.run(ctx, kubeconfig, "plimsoll-lifecycle", func(ctx context.Context, leads func() bool) error {
				o.Leads = leads
				return lifecycle.Run(ctx, o)
			})
		})
	}
	return c
}
