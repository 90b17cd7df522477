package main

import (
	"fmt"
	"log/slog"

	"github.com/spf13/cobra"

	"github.com/plimsoll-dev/plimsoll/internal/console"
	"github.com/plimsoll-dev/plimsoll/internal/kube"
)

func newConsoleCommand() *cobra.Command {
	var f explainFlags
	var listen string
	c := &cobra.Command{
		Use:   "console",
		Short: "Show a cluster in a browser, and ask what would be",
		Long: `Show a cluster in a browser: its nodes as load lines; of a node the pods, the NUMA nodes and who has which CPU, its
memory against the eviction thresholds with its evictions; the pods that wait, by what they lack; a pod's story; and what
would be if a threshold was another, or if there was one more pod. The page follows the cluster by watches. The cluster
may have any scheduler and any kubelets, and nothing has to be installed in it: what only plimsoll's parts know is shown
where they run. Nothing is changed: the program sends no request but GET. deploy/rbac-console.yaml has a role for it.

The page is served on the loopback only, and to whoever has the token in the address that is printed. To see it from
another machine, use a tunnel: ssh -L 7460:127.0.0.1:7460 HOST.`,
		Example: `  plimsoll console
  plimsoll console --kubeconfig cluster.conf --listen 127.0.0.1:7460`,
		Args: cobra.NoArgs,
	}
	c.Flags().StringVar(&listen, "listen", "127.0.0.1:0",
		"`address` and port of the page: of the loopback; port 0 is any that is free")
	f.newest = consoleEvictions
	f.addJournals(c)
	f.addCluster(c)
	c.RunE = func(c *cobra.Command, _ []string) error {
		if err := console.CheckListen(listen); err != nil {
			return usageError{fmt.Errorf("--listen: %w", err)}
		}
		kube.LogToSlog()
		asker, err := f.asker(c)
		if err != nil {
			return err
		}
		if asker.Client, err = asker.Client.ReadOnly(console.AgentPaths...); err != nil {
			return err
		}
		slog.Info("the console only reads", "server", asker.Client.Host())
		return console.Run(c.Context(), console.Options{
			Asker:  asker,
			Listen: listen,
			Opened: func(address string) { fmt.Fprintln(c.OutOrStdout(), address) },
		})
	}
	return c
}

// consoleEvictions is how many evictions of a node are marked at most (chosen: more than there is room for).
const consoleEvictions = 100
