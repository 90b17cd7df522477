package main

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"

	"github.com/plimsoll-dev/plimsoll/internal/kube/kubeletconfig"
	"github.com/plimsoll-dev/plimsoll/internal/kube/machinefile"
	"github.com/plimsoll-dev/plimsoll/internal/kube/manifests"
	"github.com/plimsoll-dev/plimsoll/internal/whatif"
)

func newWhatifAdmitCommand() *cobra.Command {
	var config, machine string
	var paths []string
	c := &cobra.Command{
		Use:   "admit",
		Short: "Show which pods a node would admit, and what is assigned to them",
		Long: `Show, for pods that arrive one after the other at a node with a configuration on a machine, whether the node
admits each, and which CPUs, memory and devices are assigned to it; or why not: the kubelet's reason and message, then
the request, what each NUMA node has, and what one of them could have provided. At the end, what is free.

Pods arrive in the order of the files. Objects of other kinds are left out, with a warning. The machine's devices
stand for healthy devices of plugins without GetPreferredAllocation.`,
		Example: `  plimsoll machine > machine.yaml
  plimsoll whatif admit --config kubelet.yaml --machine machine.yaml -f pods.yaml`,
		Args: cobra.NoArgs,
	}
	output := addOutputFlag(c, outputTable, outputJSON, outputYAML)
	c.Flags().StringVar(&config, "config", "", "KubeletConfiguration file (default: upstream's defaults)")
	c.Flags().StringVar(&machine, "machine", "", "Machine file, as plimsoll machine prints it; required")
	c.Flags().StringArrayVarP(&paths, "filename", "f", nil,
		"manifests of pods: YAML documents, Lists or JSON; may be repeated; required")
	c.RunE = func(c *cobra.Command, _ []string) error {
		var missing []error
		if machine == "" {
			missing = append(missing, errors.New("--machine: required: a file as plimsoll machine prints it"))
		}
		if len(paths) == 0 {
			missing = append(missing, errors.New("--filename: required: manifests of the pods that arrive"))
		}
		if missing != nil {
			return usageError{errors.Join(missing...)}
		}
		f, machineErr := machinefile.Load(machine)
		settings, warnings, configErr := kubeletconfig.Load(config)
		pods, podsErr := loadPods(c, paths)
		if err := errors.Join(machineErr, configErr, podsErr); err != nil {
			return usageError{err}
		}
		for _, w := range warnings {
			if !decidedHere(w) {
				fmt.Fprintln(c.ErrOrStderr(), "plimsoll: warning:", config+":", w)
			}
		}
		result, err := whatif.Admit(settings, f.Machine, f.Name, pods)
		if err != nil {
			return usageError{err}
		}
		return printResult(c, result, output)
	}
	return c
}

// loadPods reads manifests and returns the pods.
func loadPods(c *cobra.Command, paths []string) ([]*corev1.Pod, error) {
	objects, err := manifests.Load(paths)
	if err != nil {
		return nil, err
	}
	var pods []*corev1.Pod
	for _, o := range objects {
		if pod, ok := o.(*corev1.Pod); ok {
			pods = append(pods, pod)
			continue
		}
		fmt.Fprintf(c.ErrOrStderr(), "plimsoll: warning: %s: is not a pod: left out\n",
			o.GetObjectKind().GroupVersionKind().Kind)
	}
	return pods, nil
}

// decidedHere reports whether a warning is about a field that the agent does not honour yet but this question does.
func decidedHere(warning string) bool {
	for _, field := range []string{"cpuManagerPolicy", "memoryManagerPolicy", "topologyManager", "reservedMemory"} {
		if strings.HasPrefix(warning, field) {
			return true
		}
	}
	return false
}
