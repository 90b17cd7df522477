package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/plimsoll-dev/plimsoll/internal/cluster"
)

func newKubeconfigCommand() *cobra.Command {
	var o cluster.Options
	c := &cobra.Command{
		Use:   "kubeconfig",
		Short: "Print the path of the admin kubeconfig",
		Long: `Print the path of the kubeconfig with which an administrator accesses this machine's cluster. It contains the
address of the API server and a client key; only its owner can read it.`,
		Example: `  export KUBECONFIG=$(plimsoll kubeconfig)`,
		Args:    cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			kept, err := cluster.Load(o)
			if err != nil {
				return err
			}
			path, err := cluster.AdminKubeconfig(kept)
			if err != nil {
				return err
			}
			_, err = fmt.Fprintln(c.OutOrStdout(), path)
			return err
		},
	}
	instanceFlags(c, &o)
	return c
}
