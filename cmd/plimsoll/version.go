package main

import (
	"fmt"
	"runtime"

	"github.com/spf13/cobra"

	"github.com/plimsoll-dev/plimsoll/internal/version"
)

// controlOlderMax is how many minor releases a scheduler or controllers may be older than their API server
// (https://kubernetes.io/releases/version-skew-policy/).
const controlOlderMax = 1

func newVersionCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "version",
		Short:   "Print the version of plimsoll and of the Kubernetes it is built for",
		Long:    "Print one line: the versions of plimsoll, of the Kubernetes whose API and behaviour it follows, and of Go.",
		Example: "  plimsoll version",
		Args:    cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			_, err := fmt.Fprintf(c.OutOrStdout(), "plimsoll %s\n", versions())
			return err
		},
	}
}

// versions are those that the command prints, and `plimsoll --version`.
func versions() string {
	return fmt.Sprintf("%s (Kubernetes %s, %s, %s/%s)", version.Plimsoll(), version.Kubernetes, runtime.Version(),
		runtime.GOOS, runtime.GOARCH)
}
