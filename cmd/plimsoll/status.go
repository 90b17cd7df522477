package main

import (
	"encoding/json"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/plimsoll-dev/plimsoll/internal/cluster"
)

func newStatusCommand() *cobra.Command {
	var o cluster.Options
	var output string
	c := &cobra.Command{
		Use:   "status",
		Short: "Show the processes and nodes of the cluster that up started",
		Long: `Show each process of this machine's cluster and its nodes. The exit code is 0 if all of them are healthy, 1
if not.`,
		Example: `  plimsoll status
  plimsoll status -o json`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if output != "table" && output != "json" {
				return usageError{fmt.Errorf("--output %q: want table or json", output)}
			}
			kept, err := cluster.Load(o)
			if err != nil {
				return err
			}
			s, err := cluster.ReadStatus(c.Context(), kept)
			if err != nil {
				return err
			}
			if output == "json" {
				enc := json.NewEncoder(c.OutOrStdout())
				enc.SetIndent("", "  ")
				err = enc.Encode(s)
			} else {
				err = s.Print(c.OutOrStdout())
			}
			if err == nil && !s.Up() {
				err = errors.New("some processes or nodes are not up")
			}
			return err
		},
	}
	instanceFlags(c, &o)
	c.Flags().StringVarP(&output, "output", "o", "table", "table or json")
	return c
}
