package main

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/plimsoll-dev/plimsoll/internal/cluster"
	corelifecycle "github.com/plimsoll-dev/plimsoll/internal/core/lifecycle"
	"github.com/plimsoll-dev/plimsoll/internal/kube/schedulerconfig"
	"github.com/plimsoll-dev/plimsoll/internal/shadow"
)

func newShadowCommand() *cobra.Command {
	var kubeconfig, config string
	var during, grace time.Duration
	var own cluster.Options
	c := &cobra.Command{
		Use:   "shadow",
		Short: "Watch a cluster, and say what our scheduler and lifecycle controller would decide otherwise",
		Long: `Watch a cluster that runs any scheduler and any node-lifecycle controller, and decide beside them, without
acting. For each pod: did they choose the node that our scheduler would choose, or one as good; is the node possible at
all; does a pod fit that they say fits nowhere; how much sooner was our decision. For nodes: when would our controller
have set a condition to Unknown, added or removed a taint, evicted a pod, and when did theirs.

Each comparison is printed as it happens; "!" marks those in which the decisions differ. The summary is printed at the
end: after --for, or when interrupted. Nothing is written: the client refuses every request but get, list and watch,
whatever the kubeconfig allows. deploy/rbac-shadow.yaml has a role that allows no more than what is read.

The lead is the time from our decision until the watch shows what they wrote. It includes their write; ours would need
one, too.`,
		Example: `  plimsoll shadow --kubeconfig reader.conf --for 1h
  plimsoll shadow --kubeconfig reader.conf --config kube-scheduler.yaml -o json > decisions.jsonl`,
		Args: cobra.NoArgs,
	}
	f := c.Flags()
	f.StringVar(&kubeconfig, "kubeconfig", "",
		"kubeconfig `file` of the cluster (default: $KUBECONFIG, else this machine's own cluster)")
	f.StringVar(&config, "config", "",
		"KubeSchedulerConfiguration `file` of the cluster's scheduler (default: upstream's defaults)")
	f.DurationVar(&during, "for", 0, "end after that `time`; 0: when interrupted")
	f.DurationVar(&grace, "node-monitor-grace-period", corelifecycle.Defaults().Grace,
		"the `time` of the cluster's kube-controller-manager after which a silent node becomes Unknown")
	output := addOutputFlag(c, outputText, outputJSON)
	instanceFlags(c, &own)
	c.RunE = func(c *cobra.Command, _ []string) error {
		monitor := corelifecycle.Defaults()
		monitor.Grace = grace
		if err := monitor.Check(); err != nil {
			return usageError{err}
		}
		if during < 0 {
			return usageError{fmt.Errorf("--for: %v: must not be negative", during)}
		}
		known, warnings, err := schedulerconfig.Load(config)
		if err != nil {
			return usageError{err}
		}
		for _, w := range warnings {
			fmt.Fprintln(c.ErrOrStderr(), "plimsoll: warning:", config+":", w)
		}
		client, err := readerClient(kubeconfig, own, "plimsoll-shadow")
		if err != nil {
			return err
		}
		ctx := c.Context()
		if during > 0 {
			var stop context.CancelFunc
			ctx, stop = context.WithTimeout(ctx, during)
			defer stop()
		}
		p := shadowPrinter{c: c, json: output.chosen == outputJSON}
		summary, err := shadow.Run(ctx, shadow.Options{
			Client:  client,
			Config:  known,
			Monitor: monitor,
			Line:    p.line,
			Seed:    uint64(time.Now().UnixNano()),
		})
		if err != nil {
			return err
		}
		return p.summary(summary)
	}
	return c
}

// shadowPrinter prints lines, and keeps the first error.
type shadowPrinter struct {
	c      *cobra.Command
	json   bool
	failed error
}

func (p *shadowPrinter) print(text []byte, err error) {
	if err == nil {
		_, err = p.c.OutOrStdout().Write(append(text, '\n'))
	}
	if p.failed == nil && err != nil {
		p.failed = fmt.Errorf("write result: %w", err)
	}
}

func (p *shadowPrinter) line(l shadow.Line) {
	if p.json {
		p.print(l.JSON())
		return
	}
	p.print([]byte(l.String()), nil)
}

func (p *shadowPrinter) summary(s *shadow.Summary) error {
	if p.json {
		p.print(s.JSON())
	} else {
		p.print(s.Text(), nil)
	}
	return p.failed
}
