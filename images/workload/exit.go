package main

import (
	"context"
	"flag"
	"os"
)

// exit ends with a code after a delay; after a SIGTERM during the delay it ends with --on-term.
func exit(ctx context.Context, p process, flags *flag.FlagSet, args []string) error {
	status := flags.Int("code", 0, "exit code, 0 to 255")
	after := flags.Duration("after", 0, "wait this long first")
	onTerm := flags.Int("on-term", 0, "exit code when SIGTERM comes first")
	message := flags.String("message", "", "text for the termination log before exiting")
	messagePath := flags.String("message-path", "/dev/termination-log", "the termination log")
	if err := noArgs(flags, args); err != nil {
		return err
	}
	if *status < 0 || *status > 255 {
		return usagef("--code %d: want 0 to 255", *status)
	}
	if !pause(ctx, *after) {
		*status = *onTerm
	}
	if *message != "" {
		if err := os.WriteFile(*messagePath, []byte(*message), 0o644); err != nil {
			return err
		}
	}
	p.printf("exiting with %d\n", *status)
	if *status == 0 {
		return nil
	}
	return exitCode(*status)
}
