package main

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/plimsoll-dev/plimsoll/internal/core/eviction"
	"github.com/plimsoll-dev/plimsoll/internal/kube/kubeletconfig"
	"github.com/plimsoll-dev/plimsoll/internal/kube/manifests"
	"github.com/plimsoll-dev/plimsoll/internal/whatif"
)

func newWhatifEvictCommand() *cobra.Command {
	var config, summary, signal string
	var paths []string
	var held time.Duration
	c := &cobra.Command{
		Use:   "evict",
		Short: "Show which pods a node would evict at some usage, in which order, and why",
		Long: `Show how a node would react to its usage: the signals, the thresholds that are met, the conditions, what is
removed before any pod is evicted, the order of pods, and the victims, with the message that each pod gets.

The usage is the Summary of a kubelet or of this agent (kubectl get --raw /api/v1/nodes/NAME/proxy/stats/summary), the
pods are manifests (kubectl get pods -A -o yaml --field-selector spec.nodeName=NAME), which may contain priority
classes. By default the usage has lasted long enough for soft thresholds; --for says for how long, 0s that it has just
begun. A Summary does not have unused images and containers: it is assumed that removing them frees nothing, so at
most the shown victims are evicted.`,
		Example: `  plimsoll whatif evict --config kubelet.yaml --summary summary.json -f pods.yaml
  plimsoll whatif evict --summary summary.json -f pods.yaml --memory-signal available -o json`,
		Args: cobra.NoArgs,
	}
	output := addOutputFlag(c, outputTable, outputJSON, outputYAML)
	c.Flags().StringVar(&config, "config", "", "KubeletConfiguration file (default: upstream's defaults)")
	c.Flags().StringVar(&summary, "summary", "", "Summary API JSON of the node (/stats/summary); required")
	c.Flags().StringArrayVarP(&paths, "filename", "f", nil,
		"manifests of the node's pods: YAML documents, Lists or JSON; may be repeated; required")
	c.Flags().DurationVar(&held, "for", -1,
		"how long the usage has lasted; below zero: long enough for every soft threshold")
	c.Flags().StringVar(&signal, "memory-signal", "working-set",
		"what counts as used memory: working-set, as upstream, or available, which excludes memory that the kernel can drop")
	c.RunE = func(c *cobra.Command, _ []string) error {
		var problems []error
		if summary == "" {
			problems = append(problems, errors.New("--summary: required: what a kubelet serves under /stats/summary"))
		}
		if len(paths) == 0 {
			problems = append(problems, errors.New("--filename: required: manifests of the node's pods"))
		}
		memory, ok := map[string]eviction.MemorySignal{"working-set": eviction.SignalWorkingSet,
			"available": eviction.SignalAvailable}[signal]
		if !ok {
			problems = append(problems, fmt.Errorf("--memory-signal: %q: want working-set or available", signal))
		}
		if problems != nil {
			return usageError{errors.Join(problems...)}
		}
		settings, warnings, configErr := kubeletconfig.Load(config)
		usage, usageErr := whatif.LoadSummary(summary)
		objects, podsErr := manifests.Load(paths)
		if err := errors.Join(configErr, usageErr, podsErr); err != nil {
			return usageError{err}
		}
		for _, w := range warnings {
			if !strings.HasPrefix(w, "eviction") && !strings.HasPrefix(w, "imageGC") {
				fmt.Fprintln(c.ErrOrStderr(), "plimsoll: warning:", config+":", w)
			}
		}
		result, err := whatif.Evict(settings, whatif.Usage{Summary: usage, For: held, Memory: memory}, objects)
		if err != nil {
			return usageError{err}
		}
		return printResult(c, result, output)
	}
	return c
}
