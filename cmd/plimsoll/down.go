package main

import (
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/plimsoll-dev/plimsoll/internal/cluster"
	"github.com/plimsoll-dev/plimsoll/internal/cluster/progress"
)

func newDownCommand() *cobra.Command {
	var o cluster.Options
	var purge bool
	c := &cobra.Command{
		Use:   "down",
		Short: "Stop the cluster that up started, and leave nothing running or mounted",
		Long: `Stop the components and the pods of this machine's cluster and remove what they left: processes, mounts,
cgroups, network interfaces and rules. The cluster's data stay in the state directory for the next "plimsoll up",
unless --purge removes them too. It works after any crash. It is no error if the cluster is not up.`,
		Example: `  plimsoll down
  plimsoll down --purge                 # remove all data too`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			kept, err := cluster.Load(o)
			if errors.As(err, new(*cluster.NotUpError)) && !purge {
				fmt.Fprintf(c.OutOrStdout(), "instance %s is not up\n", kept.Instance)
				return nil
			}
			if err != nil && !errors.As(err, new(*cluster.NotUpError)) {
				return err
			}
			sink := progress.For(os.Stdout)
			defer sink.Close()
			return cluster.Down(c.Context(), kept, purge, sink)
		},
	}
	instanceFlags(c, &o)
	c.Flags().StringVar(&o.RunDir, "run-dir", "", "directory of sockets and process records, as given to up; only "+
		"needed if up ended before it saved its options")
	c.Flags().BoolVar(&purge, "purge", false, "remove the state directory too: all objects, images, certificates and logs")
	return c
}
