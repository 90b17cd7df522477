package main

import (
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/plimsoll-dev/plimsoll/internal/cluster"
	"github.com/plimsoll-dev/plimsoll/internal/cluster/progress"
)

func newNodeCommand() *cobra.Command {
	c := &cobra.Command{
		Use:     "node",
		Short:   "Remove nodes from the cluster",
		Long:    `Remove nodes from this machine's cluster. Machines become nodes by "plimsoll join".`,
		Example: `  plimsoll node remove worker-1`,
		Args:    cobra.NoArgs,
	}
	c.AddCommand(newNodeRemoveCommand())
	return c
}

func newNodeRemoveCommand() *cobra.Command {
	var o cluster.Options
	var r cluster.Removal
	c := &cobra.Command{
		Use:     "remove NAME",
		Aliases: []string{"rm"},
		Short:   "Evict a node's pods, let its machine leave the cluster, and delete the node",
		Long: `Evict the pods of a node, respecting disruption budgets; ask its machine to leave, which ends everything that
"plimsoll join" runs there and removes its state; then delete the node. Data in emptyDir volumes are lost. Run it on
the machine with the control plane. If the node's machine is gone, it does not wait for the pods to end.`,
		Example: `  plimsoll node remove worker-1
  plimsoll node remove worker-1 --force`,
		Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			if r.Timeout <= 0 {
				return usageError{fmt.Errorf("--timeout %s: want more than 0", r.Timeout)}
			}
			r.Node = args[0]
			kept, err := cluster.Load(o)
			if err != nil {
				return err
			}
			sink := progress.For(os.Stdout)
			defer sink.Close()
			return cluster.RemoveNode(c.Context(), kept, r, sink)
		},
	}
	instanceFlags(c, &o)
	c.Flags().BoolVar(&r.Force, "force", false, "also delete pods without a controller, which nothing creates again")
	c.Flags().DurationVar(&r.Timeout, "timeout", 2*time.Minute,
		"give up if the node's pods have not ended by then; the node stays cordoned")
	return c
}
