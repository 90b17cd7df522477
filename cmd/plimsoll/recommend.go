package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/plimsoll-dev/plimsoll/internal/cluster/progress"
	corerecommend "github.com/plimsoll-dev/plimsoll/internal/core/recommend"
	"github.com/plimsoll-dev/plimsoll/internal/host/machineinfo"
	"github.com/plimsoll-dev/plimsoll/internal/host/procfs"
	"github.com/plimsoll-dev/plimsoll/internal/recommend"
)

func newRecommendCommand() *cobra.Command {
	c := &cobra.Command{
		Use:     "recommend",
		Short:   "Recommend settings for this machine, from measurements",
		Long:    `Recommend settings for this machine, from measurements. The result is printed; nothing is changed.`,
		Example: `  plimsoll recommend reservations --for 10m`,
	}
	c.AddCommand(newRecommendReservationsCommand())
	c.RunE = func(c *cobra.Command, args []string) error {
		return usageError{fmt.Errorf("recommend: %q: want reservations (see plimsoll recommend --help)",
			strings.Join(args, " "))}
	}
	return c
}

func newRecommendReservationsCommand() *cobra.Command {
	o := recommend.Options{Proc: procfs.Default, Cgroups: "/sys/fs/cgroup"}
	c := &cobra.Command{
		Use:   "reservations",
		Short: "Measure what system, runtime and agent use, and print systemReserved and kubeReserved",
		Long: `Measure what this machine uses outside its pods, and print systemReserved and kubeReserved for a
KubeletConfiguration, with the reasons, next to what the formulas of GKE, EKS, AKS and OpenShift would reserve here.

kubeReserved is for the container runtime (with its shims) and the node agent, systemReserved for everything else
outside the pods: daemons, logins, short-lived programs, the kernel. Memory is what cannot be reclaimed: the page
cache does not count. CPU is the 99th percentile of the samples and memory is the peak, plus a tenth each; what the
runtime needs for each pod is extrapolated to --max-pods. Measure a node while it is busiest: the result only has what
happened during the measurement.

An interrupt ends the measurement early and prints the result so far. It works on any Linux machine, node or not, with
cgroup v1 or v2; with root it reads memory exactly.`,
		Example: `  plimsoll recommend reservations --for 10m
  plimsoll recommend reservations --for 24h --max-pods 250 -o json`,
		Args: cobra.NoArgs,
	}
	output := addOutputFlag(c, outputYAML, outputJSON)
	flags := c.Flags()
	flags.DurationVar(&o.For, "for", 10*time.Minute, "how long to measure")
	flags.DurationVar(&o.Every, "every", time.Second, "time between samples; at least 100ms")
	flags.Int64Var(&o.MaxPods, "max-pods", 110, "pods that the node may have (maxPods of its configuration)")
	c.RunE = func(c *cobra.Command, _ []string) error {
		if o.Every < 100*time.Millisecond || o.For < o.Every || o.MaxPods < 1 {
			return usageError{errors.New("--every: want 100ms or more; --for: want at least --every; --max-pods: " +
				"want at least 1")}
		}
		dir, err := filepath.Abs(".")
		if err != nil {
			return fmt.Errorf("find a file system: %w", err)
		}
		if o.Machine, _, err = (machineinfo.Host{Root: "/", StateDir: dir}).Look(); err != nil {
			return err
		}
		sink := progress.For(os.Stderr)
		defer sink.Close()
		var result *recommend.Result
		o.Seen = noteEvery(sink, time.Minute)
		err = progress.Step(sink, fmt.Sprintf("measure for %v (interrupt: print the result so far)", o.For),
			func() (string, error) {
				result, err = recommend.Reservations(c.Context(), o)
				return "", err
			})
		if err != nil {
			return err
		}
		text := result.YAML()
		if output.chosen == outputJSON {
			if text, err = result.JSON(); err != nil {
				return fmt.Errorf("write result: %w", err)
			}
		}
		_, err = c.OutOrStdout().Write(text)
		return err
	}
	return c
}

// noteEvery returns a function that prints a note once per period while the measurement continues.
func noteEvery(sink progress.Sink, period time.Duration) func(corerecommend.Sample) {
	samples, last := 0, time.Now()
	return func(s corerecommend.Sample) {
		samples++
		if time.Since(last) < period {
			return
		}
		last = time.Now()
		sink.Show(progress.Event{Phase: progress.Note, Detail: fmt.Sprintf("%d samples, %d pods, %d processes outside",
			samples, s.Pods, len(s.Processes))})
	}
}
