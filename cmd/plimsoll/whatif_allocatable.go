package main

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/plimsoll-dev/plimsoll/internal/kube/kubeletconfig"
	"github.com/plimsoll-dev/plimsoll/internal/kube/machinefile"
	"github.com/plimsoll-dev/plimsoll/internal/whatif"
)

func newWhatifAllocatableCommand() *cobra.Command {
	var config, machine string
	c := &cobra.Command{
		Use:   "allocatable",
		Short: "Show how much of a machine a configuration leaves to pods, and why",
		Long: `Show what a node would publish as capacity and allocatable on a machine, how each number is computed, which
limits the kernel would enforce on all pods together, and which settings have an effect that may surprise.

  allocatable = capacity - systemReserved - kubeReserved - hard eviction threshold

per resource. CPU and pods have no threshold, percentages are of capacity, huge pages are subtracted from memory.
Reservations above capacity are an error with which no node would start; the numbers are still shown.`,
		Example: `  plimsoll whatif allocatable --config kubelet.yaml --machine machine.yaml
  plimsoll machine | plimsoll whatif allocatable --machine - -o json`,
		Args: cobra.NoArgs,
	}
	output := addOutputFlag(c, outputTable, outputJSON, outputYAML)
	c.Flags().StringVar(&config, "config", "", "KubeletConfiguration file (default: upstream's defaults)")
	c.Flags().StringVar(&machine, "machine", "",
		"Machine file, as plimsoll machine prints it; - is standard input; required")
	c.RunE = func(c *cobra.Command, _ []string) error {
		if machine == "" {
			return usageError{errors.New("--machine: required: a file as plimsoll machine prints it")}
		}
		f, machineErr := machinefile.Load(machine)
		settings, warnings, configErr := kubeletconfig.Load(config)
		if err := errors.Join(machineErr, configErr); err != nil {
			return usageError{err}
		}
		for _, w := range warnings {
			fmt.Fprintln(c.ErrOrStderr(), "plimsoll: warning:", config+":", w)
		}
		result, impossible := whatif.DrawAllocatable(settings, f.Machine)
		if result != nil {
			if err := printResult(c, result, output); err != nil {
				return err
			}
		}
		if impossible != nil {
			return usageError{impossible}
		}
		return nil
	}
	return c
}
