package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/plimsoll-dev/plimsoll/internal/cluster"
	"github.com/plimsoll-dev/plimsoll/internal/cluster/progress"
)

func newStatusCommand() *cobra.Command {
	var o cluster.Options
	var output string
	var watch bool
	c := &cobra.Command{
		Use:   "status",
		Short: "Show the processes and nodes of the cluster that up started",
		Long: `Show each process of this machine's cluster and its nodes. The exit code is 0 if all of them are healthy, 1
if not.

With --watch, show it until interrupted: on a terminal every 2 seconds in the same place, elsewhere each time that more
has changed than uptimes and memory. The exit code is then that of the last status.`,
		Example: `  plimsoll status
  plimsoll status --watch
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
			var s cluster.Status
			if watch {
				s, err = watchStatus(c, kept, output)
			} else if s, err = cluster.ReadStatus(c.Context(), kept); err == nil {
				err = printStatus(s, c.OutOrStdout(), output)
			}
			if err == nil && !s.Up() {
				err = errors.New("some processes or nodes are not up")
			}
			return err
		},
	}
	instanceFlags(c, &o)
	c.Flags().StringVarP(&output, "output", "o", "table", "table or json")
	c.Flags().BoolVarP(&watch, "watch", "w", false, "show it again when it changes, until interrupted")
	return c
}

func printStatus(s cluster.Status, to io.Writer, output string) error {
	if output != "json" {
		return s.Print(to)
	}
	enc := json.NewEncoder(to)
	enc.SetIndent("", "  ")
	return enc.Encode(s)
}

// watchStatus shows the status until the command is interrupted, and returns the last one. As JSON, each takes a line.
func watchStatus(c *cobra.Command, kept cluster.Options, output string) (cluster.Status, error) {
	view := &cluster.StatusView{Out: c.OutOrStdout()}
	if output == "json" {
		view.Write = func(s cluster.Status, to io.Writer) error { return json.NewEncoder(to).Encode(s) }
	} else if file, is := c.OutOrStdout().(*os.File); is {
		view.Screen = progress.IsTerminal(file)
	}
	ticker := time.NewTicker(cluster.StatusPeriod)
	defer ticker.Stop()
	return view.Watch(c.Context(), ticker.C, func(ctx context.Context) (cluster.Status, error) {
		return cluster.ReadStatus(ctx, kept)
	})
}
