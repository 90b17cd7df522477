// Command plimsoll is node software for Kubernetes: agent, scheduler and node-lifecycle controller around one decision
// core, and a whole cluster on one machine with one command.
//
// This package contains only flags and wiring, one file per verb.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"syscall"

	"github.com/spf13/cobra"
)

// Exit codes, documented for scripts: 0 done, 1 failed, 2 bad usage or input.
const (
	exitFailed = 1
	exitUsage  = 2
)

// usageError marks an error in the user's input: a bad flag, file or object.
type usageError struct{ error }

func (e usageError) Unwrap() error { return e.error }

// memProfileRate is how many bytes are allocated between two samples of the heap profile. Go keeps a record of each
// stack that was sampled, for ever: in an agent that had started 9,000 pods these took 1 MiB with Go's rate, 512 KiB
// (measured 2026-11-27). Raising it, a profile misses more of what is small.
const memProfileRate = 4 << 20

func main() {
	runtime.MemProfileRate = memProfileRate
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, asUpstream(os.Args[0], os.Args[1:]))
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "plimsoll:", err)
	}
	os.Exit(exitCode(err))
}

// run runs the command line args. An error before a verb began is an error of the command line: an unknown verb, a
// surplus argument, a missing flag.
func run(ctx context.Context, args []string) error {
	root, began := newRootCommand(), false
	note(root, func() { began = true })
	root.SetArgs(args)
	err := root.ExecuteContext(ctx)
	if err != nil && !began {
		return usageError{err}
	}
	return err
}

// note calls began when the verb of c, or of a command below it, begins.
func note(c *cobra.Command, began func()) {
	if do := c.RunE; do != nil {
		c.RunE = func(c *cobra.Command, args []string) error {
			began()
			return do(c, args)
		}
	}
	for _, below := range c.Commands() {
		note(below, began)
	}
}

func exitCode(err error) int {
	switch bad := (usageError{}); {
	case err == nil:
		return 0
	case errors.As(err, &bad):
		return exitUsage
	}
	return exitFailed
}

func newRootCommand() *cobra.Command {
	root := &cobra.Command{
		Use:               "plimsoll",
		Short:             "Node agent, scheduler and node-lifecycle controller for Kubernetes",
		SilenceUsage:      true,
		SilenceErrors:     true,
		Version:           versions(), // for --version
		CompletionOptions: cobra.CompletionOptions{HiddenDefaultCmd: true},
	}
	root.SetFlagErrorFunc(func(c *cobra.Command, err error) error {
		return usageError{fmt.Errorf("%w (see %s --help)", err, c.CommandPath())}
	})
	root.AddCommand(
		newUpCommand(), newDownCommand(), newJoinCommand(), newTokenCommand(), newNodeCommand(),
		newStatusCommand(), newKubeconfigCommand(), newKubectlCommand(), newImageCommand(),
		newAgentCommand(), newSchedulerCommand(), newLifecycleCommand(), newFleetCommand(), newSimCommand(),
		newMachineCommand(), newWhatifCommand(), newExplainCommand(), newTopCommand(), newConsoleCommand(),
		newShadowCommand(), newRecommendCommand(), newVersionCommand(),
	)
	return root
}
