package main

import (
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/plimsoll-dev/plimsoll/internal/cluster"
)

func newKubectlCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "kubectl [--instance NAME] [--state-dir DIR] ARGUMENT...",
		Short: "Run kubectl on the cluster that up started",
		Long: `Run upstream's kubectl, which is part of plimsoll-controlplane, with the admin kubeconfig of this machine's
cluster. --instance and --state-dir, if given, come first and select the cluster; all other arguments are for kubectl.
Without them kubectl uses KUBECONFIG if it is set, so that it can access any cluster, from any machine.`,
		Example: `  plimsoll kubectl get nodes
  plimsoll kubectl --instance test describe node`,
		DisableFlagParsing: true, // the flags are for kubectl
		RunE: func(c *cobra.Command, args []string) error {
			if len(args) == 1 && (args[0] == "--help" || args[0] == "-h") {
				return c.Help() // kubectl's help is "plimsoll kubectl help"
			}
			o, args, err := splitKubectlArgs(args)
			if err != nil {
				return usageError{err}
			}
			chosen := o.Instance != "" || o.StateDir != ""
			kept := o
			kubeconfig := ""
			if chosen || os.Getenv("KUBECONFIG") == "" {
				if kept, err = cluster.Load(o); err == nil {
					kubeconfig, err = cluster.AdminKubeconfig(kept)
				}
			}
			if err != nil && (len(args) == 0 || args[0] != "version") { // version also works without a cluster
				return err
			}
			argv, env, err := cluster.KubectlCommand(kept, kubeconfig, args)
			if err != nil {
				return err
			}
			// The process becomes kubectl: signals, terminal and exit code are kubectl's.
			return fmt.Errorf("run %s: %w", argv[0], unix.Exec(argv[0], argv, env))
		},
	}
}

// splitKubectlArgs removes our two flags from the front of args.
func splitKubectlArgs(args []string) (o cluster.Options, rest []string, err error) {
	for len(args) > 0 {
		name, value, inline := strings.Cut(args[0], "=")
		var field *string
		switch name {
		case "--instance":
			field = &o.Instance
		case "--state-dir":
			field = &o.StateDir
		default:
			return o, args, nil
		}
		args = args[1:]
		if !inline {
			if len(args) == 0 {
				return o, nil, fmt.Errorf("%s: needs a value", name)
			}
			value, args = args[0], args[1:]
		}
		*field = value
	}
	return o, args, nil
}
