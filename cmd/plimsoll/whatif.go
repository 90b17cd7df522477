package main

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/plimsoll-dev/plimsoll/internal/whatif"
)

func newWhatifCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "whatif",
		Short: "Ask what a node or a cluster would decide, from files: without a cluster or root",
		Long: `Ask in advance what a node or a cluster would decide. The answers come from the code that decides on real
nodes, and depend on files only: a machine (plimsoll machine prints this one), a kubelet's configuration, its Summary,
manifests.

The formats of -o json and -o yaml are stable: keys may be added, but existing keys do not change.`,
		Example: `  plimsoll machine > machine.yaml
  plimsoll whatif allocatable --config kubelet.yaml --machine machine.yaml
  plimsoll whatif admit --config kubelet.yaml --machine machine.yaml -f pods.yaml
  plimsoll whatif evict --config kubelet.yaml --summary summary.json -f pods.yaml`,
	}
	c.AddCommand(newWhatifAllocatableCommand(), newWhatifAdmitCommand(), newWhatifEvictCommand(), newWhatifPlaceCommand())
	c.RunE = func(c *cobra.Command, args []string) error {
		var questions []string
		for _, verb := range c.Commands() {
			questions = append(questions, verb.Name())
		}
		return usageError{fmt.Errorf("whatif: %q is not a question: want one of %s (see plimsoll whatif --help)",
			strings.Join(args, " "), strings.Join(questions, ", "))}
	}
	return c
}

// tabler is a result that can be printed as a table for people.
type tabler interface{ Table() []byte }

// printResult writes the result of a question.
func printResult(c *cobra.Command, result tabler, output *outputFormat) error {
	var text []byte
	var err error
	switch output.chosen {
	case outputJSON:
		text, err = whatif.JSON(result)
	case outputYAML:
		text, err = whatif.YAML(result)
	case outputTable:
		text = result.Table()
	}
	if err != nil {
		return err
	}
	if _, err = c.OutOrStdout().Write(text); err != nil {
		return fmt.Errorf("write result: %w", err)
	}
	return nil
}
