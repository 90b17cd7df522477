// Command plimsoll keeps Kubernetes nodes above their load line: agent, scheduler and node-lifecycle controller around
// one decision core, and a whole one-node cluster with one command.
//
// This package holds flags and wiring only, one file per verb.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
)

// Exit codes, as design promises scripts: 0 done, 1 failed, 2 bad usage or input.
const (
	exitFailed = 1
	exitUsage  = 2
)

// usageError marks an error as the caller's: bad flag, file or object.
type usageError struct{ error }

func (e usageError) Unwrap() error { return e.error }

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := newRootCommand().ExecuteContext(ctx)
	stop()
	if err == nil {
		return
	}
	fmt.Fprintln(os.Stderr, "plimsoll:", err)
	if bad := (usageError{}); errors.As(err, &bad) {
		os.Exit(exitUsage)
	}
	os.Exit(exitFailed)
}

func newRootCommand() *cobra.Command {
	root := &cobra.Command{
		Use:               "plimsoll",
		Short:             "Keep Kubernetes nodes above their load line",
		SilenceUsage:      true,
		SilenceErrors:     true,
		CompletionOptions: cobra.CompletionOptions{HiddenDefaultCmd: true},
	}
	root.SetFlagErrorFunc(func(c *cobra.Command, err error) error {
		return usageError{fmt.Errorf("%w (see %s --help)", err, c.CommandPath())}
	})
	root.AddCommand(
		newUpCommand(), newDownCommand(), newStatusCommand(), newKubeconfigCommand(), newKubectlCommand(),
		newAgentCommand(), newSchedulerCommand(), newLifecycleCommand(), newFleetCommand(),
		newVersionCommand(),
	)
	return root
}
