// Command plimsoll-lab is a command line for the virtual machines of package lab: it lists them, builds their image,
// boots one with a shell, or runs one command in one.
//
// It contains only flags and wiring, one function per verb. Exit codes are those of plimsoll: 0 done, 1 failed, 2 bad
// usage. exec returns the exit code of the command in the guest.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/plimsoll-dev/plimsoll/lab"
)

// Exit codes of plimsoll-lab's own failures.
const (
	exitFailed = 1
	exitUsage  = 2
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	began := false
	root := newRootCommand(&began)
	err := root.ExecuteContext(ctx)
	stop()
	var command *lab.ExitError
	switch {
	case err == nil:
	case errors.As(err, &command) && command.Exit.Error == "":
		os.Exit(command.Exit.Code)
	default:
		fmt.Fprintln(os.Stderr, "plimsoll-lab:", err)
		if !began {
			os.Exit(exitUsage)
		}
		os.Exit(exitFailed)
	}
}

// newRootCommand returns the root command. It sets began when a verb begins. An error before that is an error of the
// command line.
func newRootCommand(began *bool) *cobra.Command {
	root := &cobra.Command{
		Use:               "plimsoll-lab",
		Short:             "Boot machines with other hardware than yours, in QEMU",
		SilenceUsage:      true,
		SilenceErrors:     true,
		CompletionOptions: cobra.CompletionOptions{HiddenDefaultCmd: true},
	}
	o := lab.Options{Say: say}
	root.PersistentFlags().StringVar(&o.Cache, "cache", "", "directory of the guest image (default: "+lab.CacheVariable+
		", else plimsoll-lab in your cache directory)")
	root.AddCommand(newBuildCommand(&o), newListCommand(), newRunCommand(&o), newExecCommand(&o))
	for _, verb := range root.Commands() {
		do := verb.RunE
		verb.RunE = func(c *cobra.Command, args []string) error {
			*began = true
			return do(c, args)
		}
	}
	return root
}

func say(step string) { fmt.Fprintln(os.Stderr, "build guest image:", step) }

func newBuildCommand(o *lab.Options) *cobra.Command {
	return &cobra.Command{
		Use:   "build",
		Short: "Build the guest image, unless the cache has it, and print its directory (root, apt)",
		Args:  cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			image, err := lab.Build(c.Context(), o.Cache, o.Say)
			if err == nil {
				fmt.Println(image.Dir)
			}
			return err
		},
	}
}

func newListCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "list",
		Short: "List the predefined machines",
		Args:  cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			for _, name := range lab.Names() {
				fmt.Println(name)
			}
			return nil
		},
	}
}

// guestFlags adds the flags of the verbs that boot a machine.
func guestFlags(c *cobra.Command, o *lab.Options) {
	flags := c.Flags()
	flags.StringVar((*string)(&o.Init), "init", string(lab.Tiny), "process 1 of the guest: tiny or systemd")
	flags.StringVar(&o.Name, "name", "", "host name of the guest (default: the machine's name)")
	flags.StringArrayVar(&o.KernelArgs, "kernel-arg", nil,
		"additional argument of the guest's kernel, like isolcpus=1; may be repeated")
	flags.StringVar(&o.Bin, "bin", binBeside(), "directory of the built binaries (make build)")
}

// binBeside returns the directory of this program, if `make build` built it there.
func binBeside() string {
	self, err := os.Executable()
	if err != nil {
		return ""
	}
	dir := filepath.Dir(self)
	if _, err := os.Stat(filepath.Join(dir, "lab/guest")); err != nil {
		return ""
	}
	return dir
}

func newRunCommand(o *lab.Options) *cobra.Command {
	c := &cobra.Command{
		Use:     "run MACHINE",
		Short:   "Boot a machine with a shell on this terminal; exit the shell, or press Ctrl-A X, to switch it off",
		Example: "  plimsoll-lab run two-socket\n  plimsoll-lab run tiny --init systemd",
		Args:    cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			o.Stdin, o.Console = os.Stdin, os.Stdout
			defer restoreTerminal()()
			g, err := lab.Start(c.Context(), args[0], *o)
			if err != nil {
				return err
			}
			_, err = g.Wait(c.Context())
			return errors.Join(err, g.Close())
		},
	}
	guestFlags(c, o)
	return c
}

// restoreTerminal returns a function that restores the terminal's current settings: QEMU changes them, and may be
// killed.
func restoreTerminal() func() {
	fd := int(os.Stdin.Fd())
	state, err := unix.IoctlGetTermios(fd, unix.TCGETS)
	if err != nil {
		return func() {} // standard input is not a terminal
	}
	return func() { _ = unix.IoctlSetTermios(fd, unix.TCSETS, state) } // best effort: the terminal may be gone
}

func newExecCommand(o *lab.Options) *cobra.Command {
	c := &cobra.Command{
		Use: "exec MACHINE -- COMMAND [ARG...]",
		Short: "Boot a machine, run one command in it with standard input and outputs connected, " +
			"and exit with its exit code",
		Example: "  plimsoll-lab exec two-socket -- numactl --hardware",
		Args:    cobra.MinimumNArgs(2),
		RunE: func(c *cobra.Command, args []string) error {
			began := time.Now()
			g, err := lab.Start(c.Context(), args[0], *o)
			if err != nil {
				return err
			}
			fmt.Fprintf(os.Stderr, "%s is up after %v\n", args[0], time.Since(began).Round(100*time.Millisecond))
			return errors.Join(g.Exec(c.Context(), lab.Command{Args: args[1:], Stdin: os.Stdin, Stdout: os.Stdout,
				Stderr: os.Stderr}), g.Close())
		},
	}
	guestFlags(c, o)
	return c
}
