package main

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/plimsoll-dev/plimsoll/internal/kube/manifests"
	"github.com/plimsoll-dev/plimsoll/internal/kube/schedulerconfig"
	"github.com/plimsoll-dev/plimsoll/internal/whatif"
)

func newWhatifPlaceCommand() *cobra.Command {
	var config string
	var paths []string
	c := &cobra.Command{
		Use:   "place",
		Short: "Show where the scheduler would place pods, or why it would not",
		Long: `Let the scheduler place pods on a cluster that is described in files. Show each pod's node; if it fits on no
node, show for each node why, and which evictions would make room.

The files contain nodes and pods, and other objects that matter: priority classes, disruption budgets, namespaces,
services, ReplicaSets, StatefulSets, and NodeResourceTopology objects, in which agents report NUMA nodes. Pods with
spec.nodeName are on their nodes already. The others are placed one after the other, by priority and then in the order
of the files. No pod is evicted.`,
		Example: `  kubectl get nodes,pods -A -o yaml > cluster.yaml
  plimsoll whatif place -f cluster.yaml -f new-pods.yaml -o json`,
		Args: cobra.NoArgs,
	}
	output := addOutputFlag(c, outputTable, outputJSON, outputYAML)
	c.Flags().StringVar(&config, "config", "", "KubeSchedulerConfiguration file (default: upstream's defaults)")
	c.Flags().StringArrayVarP(&paths, "filename", "f", nil,
		"manifests: YAML documents, Lists or JSON; may be repeated; required")
	c.RunE = func(c *cobra.Command, _ []string) error {
		if len(paths) == 0 {
			return usageError{errors.New("--filename: required: manifests of nodes and pods")}
		}
		settings, warnings, configErr := schedulerconfig.Load(config)
		objects, objectsErr := manifests.Load(paths)
		if err := errors.Join(configErr, objectsErr); err != nil {
			return usageError{err}
		}
		for _, w := range warnings {
			fmt.Fprintln(c.ErrOrStderr(), "plimsoll: warning:", config+":", w)
		}
		result, warnings, err := whatif.Place(settings, objects)
		if err != nil {
			return usageError{err}
		}
		for _, w := range warnings {
			fmt.Fprintln(c.ErrOrStderr(), "plimsoll: warning:", w)
		}
		return printResult(c, result, output)
	}
	return c
}
