package main

import (
	"github.com/spf13/cobra"

	"github.com/plimsoll-dev/plimsoll/internal/core/health"
	"github.com/plimsoll-dev/plimsoll/internal/kube"
	"github.com/plimsoll-dev/plimsoll/internal/lifecycle"
)

func newLifecycleCommand() *cobra.Command {
	var kubeconfig string
	o := lifecycle.Options{Health: health.Defaults()}
	c := &cobra.Command{
		Use:   "lifecycle",
		Short: "Watch over the health of nodes: conditions, taints, readiness of pods on silent nodes",
		Long: `Watch over the health of nodes, in place of kube-controller-manager's node-lifecycle-controller.

It turns conditions into taints the moment they change, and marks a node that gave no sign for its grace, and the pods on
it, as not ready. It does not evict: pods on a dead node stay bound until something deletes them. As it sets NoExecute
taints without a pause between nodes, do not run it beside a taint-eviction controller yet.`,
		Example: "  plimsoll lifecycle --kubeconfig /etc/kubernetes/controller-manager.conf",
		Args:    cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			var err error
			// Writes are bounded by how many may be in flight and by the server's priority and fairness, not by a rate.
			if o.Client, err = kube.NewClient(kube.Options{Kubeconfig: kubeconfig, UserAgent: "plimsoll-lifecycle", QPS: -1}); err != nil {
				return usageError{err}
			}
			if err := lifecycle.Run(c.Context(), o); err != nil {
				return usageError{err}
			}
			return nil
		},
	}
	f := c.Flags()
	f.StringVar(&kubeconfig, "kubeconfig", "", "`file` that says how to reach the API server")
	f.DurationVar(&o.Health.Grace, "node-monitor-grace-period", o.Health.Grace, "how long a node may give no sign before it is Unknown")
	f.DurationVar(&o.Health.StartupGrace, "node-startup-grace-period", o.Health.StartupGrace, "the same for a node that has never reported, from its creation")
	_ = c.MarkFlagRequired("kubeconfig")
	return c
}
