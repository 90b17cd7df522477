package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
)

// fork starts children that sleep until it ends, zombies for which it never waits, and orphans: grandchildren whose
// parent has ended, so that process 1 of the PID namespace has to reap them.
func fork(ctx context.Context, p process, flags *flag.FlagSet, args []string) error {
	children := flags.Int("children", 1, "children that sleep until this process ends")
	zombies := flags.Int("zombies", 0, "children that exit at once and are never waited for")
	orphans := flags.Int("orphans", 0, "grandchildren that outlive their parent by a second")
	sleepers := flags.Int("sleepers", 0, "children that sleep one second")
	leave := flags.Bool("leave", false, "exit at once and leave children running")
	if err := noArgs(flags, args); err != nil {
		return err
	}
	var held []*exec.Cmd
	for range *children {
		child, err := spawn("sleep", "infinity")
		if err != nil {
			return err
		}
		held = append(held, child)
	}
	for range *sleepers {
		if _, err := spawn("sleep", "1"); err != nil {
			return err
		}
	}
	for range *zombies {
		if _, err := spawn("exit"); err != nil {
			return err
		}
	}
	for range *orphans {
		parent, err := spawn("fork", "--children", "0", "--sleepers", "1", "--leave")
		if err != nil {
			return err
		}
		if err := parent.Wait(); err != nil {
			return fmt.Errorf("parent of an orphan: %w", err)
		}
	}
	p.printf("started %d children, %d zombies, %d orphans\n", *children, *zombies, *orphans)
	if *leave {
		return nil
	}
	<-ctx.Done()
	for _, child := range held {
		if err := child.Process.Kill(); err != nil {
			return fmt.Errorf("stop child %d: %w", child.Process.Pid, err)
		}
	}
	return nil
}

// spawn starts this program again with another verb, without waiting for it.
func spawn(argv ...string) (*exec.Cmd, error) {
	child := exec.Command("/proc/self/exe")
	child.Args = append([]string{"workload"}, argv...)
	child.Stdout, child.Stderr = os.Stdout, os.Stderr
	if err := child.Start(); err != nil {
		return nil, fmt.Errorf("start %v: %w", argv, err)
	}
	return child, nil
}
