package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"

	"github.com/spf13/cobra"

	"github.com/plimsoll-dev/plimsoll/internal/kube"
	"github.com/plimsoll-dev/plimsoll/internal/kube/schedulerconfig"
	"github.com/plimsoll-dev/plimsoll/internal/scheduler"
)

func newSchedulerCommand() *cobra.Command {
	var kubeconfig, config string
	sampling := "all"
	o := scheduler.Options{}
	c := &cobra.Command{
		Use:   "scheduler",
		Short: "Place pods on nodes",
		Long: `Place pods on nodes, in place of kube-scheduler or beside it under another --scheduler-name.

Every node is considered for every pod, by the default profile of kube-scheduler 1.36 or by those of a
KubeSchedulerConfiguration, the file that kube-scheduler reads: --config. What it says yields to flags that are given. Resource claims and gangs
are not supported yet: a pod that demands one stays pending with an event that says so.

Where agents report their NUMA nodes (NodeResourceTopology), pods that want CPUs, memory or devices of their own go only where the
agent will find them; NodeResourceTopologyMatch is the name of that rule in the file.`,
		Example: `  plimsoll scheduler --kubeconfig /etc/kubernetes/scheduler.conf
  plimsoll scheduler --config /etc/kubernetes/scheduler.yaml`,
		Args: cobra.NoArgs,
	}
	f := c.Flags()
	leader := leaderElectionFlags(f, "kube-scheduler")
	port := servingFlags(f, portScheduler)
	c.RunE = func(c *cobra.Command, _ []string) error {
		file, warnings, err := schedulerconfig.Load(config)
		if err != nil {
			return usageError{err}
		}
		switch sampling {
		case "all":
		case "compat":
			warnings = file.Compat(warnings)
		default:
			return usageError{fmt.Errorf("--sampling: %q: want all or compat", sampling)}
		}
		for _, w := range warnings {
			slog.Warn("scheduler configuration", "file", config, "field", w)
		}
		if config != "" && f.Changed("scheduler-name") {
			return usageError{errors.New("--scheduler-name: not with --config: the names are those of its profiles")}
		}
		if kubeconfig = cmp.Or(kubeconfig, file.Kubeconfig); kubeconfig == "" {
			return usageError{errors.New("--kubeconfig: required, here or as clientConnection.kubeconfig in the file of --config")}
		}
		if config != "" {
			o.Name, o.Profiles = file.Profiles[0].Name, file.Profiles
		} else if sampling == "compat" {
			o.Profiles = file.Profiles
			o.Profiles[0].Name = o.Name
		}
		o.BackoffFirst, o.BackoffMax = file.BackoffFirst, file.BackoffMax
		if file.LeaderElection != nil {
			leader.fill(f, file.LeaderElection)
		}
		// Binds are bounded by --binds-in-flight and by the server's priority and fairness, not by a rate.
		if o.Client, err = kube.NewClient(kube.Options{Kubeconfig: kubeconfig, UserAgent: "plimsoll-scheduler", QPS: -1}); err != nil {
			return usageError{err}
		}
		if o.Events, err = kube.NewClient(kube.Options{Kubeconfig: kubeconfig, UserAgent: "plimsoll-scheduler-events", QPS: -1}); err != nil {
			return usageError{err}
		}
		// Those who answer to one name compete with each other, upstream's scheduler among them, and with nobody else.
		named := f.Changed("leader-elect-resource-name") || file.LeaderElection != nil && file.LeaderElection.ResourceName != ""
		if o.Name != scheduler.DefaultName && !named {
			leader.Name = o.Name
		}
		if err := port.Check(); err != nil {
			return usageError{err}
		}
		o.Metrics = scheduler.NewMetrics()
		port.API, port.Registry = o.Events, o.Metrics.Registry
		return port.beside(c.Context(), func(ctx context.Context) error {
			return leader.run(ctx, kubeconfig, "plimsoll-scheduler", func(ctx context.Context, leads func() bool) error {
				o.Leads = leads
				return scheduler.Run(ctx, o)
			})
		})
	}
	f.StringVar(&kubeconfig, "kubeconfig", "", "`file` that says how to reach the API server")
	f.StringVar(&config, "config", "", "KubeSchedulerConfiguration `file`; none: upstream's defaults")
	f.StringVar(&o.Name, "scheduler-name", scheduler.DefaultName, "place pods whose spec.schedulerName is this")
	f.IntVar(&o.BindsInFlight, "binds-in-flight", scheduler.BindsInFlightDefault, "binds that may wait for the API server at once")
	f.StringVar(&sampling, "sampling", sampling, "nodes to consider for a pod: `all`, or compat: as many as kube-scheduler would, by percentageOfNodesToScore")
	f.Uint64Var(&o.Seed, "seed", 0, "decides between nodes of equal score; the same seed and history give the same placements")
	return c
}
