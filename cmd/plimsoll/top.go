package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/plimsoll-dev/plimsoll/internal/cluster/progress"
	"github.com/plimsoll-dev/plimsoll/internal/kube"
	"github.com/plimsoll-dev/plimsoll/internal/top"
	"github.com/plimsoll-dev/plimsoll/internal/top/screen"
	"github.com/plimsoll-dev/plimsoll/internal/top/source"
)

// topFlags are the flags of top.
type topFlags struct {
	explainFlags
	once   bool
	node   string
	filter string
	sort   string
	every  time.Duration
	wait   time.Duration
}

// topPages are the pages that a command line can name.
var topPages = map[string]top.Page{"nodes": top.Nodes, "pods": top.Pods, "decisions": top.Decisions}

func newTopCommand() *cobra.Command {
	var f topFlags
	c := &cobra.Command{
		Use:   "top [nodes|pods|decisions]",
		Short: "Watch nodes and pods: capacity, reserved, requested, used, pressure, and the last decisions",
		Long: `Show the nodes of a cluster with their load lines: capacity, what is reserved, requested and used; pods; the last
decisions. Enter descends into a node (pressure over time, who has which CPU, its last decisions, its pods), and into a
pod's story, as explain pod tells it. The key ? lists the keys. On a terminal it refreshes until q; elsewhere, and with
--once, it is printed once.

The cluster may have any scheduler and any kubelets, and nothing has to be installed in it. What is not known is shown
as a question mark, and the last lines say why: use needs metrics.k8s.io (metrics-server), the CPU map plimsoll's agent
with a static CPU manager policy. Nothing is changed. deploy/rbac-top.yaml has a role for it.`,
		Example: `  plimsoll top
  plimsoll top pods --sort memory --filter shop
  plimsoll top --node worker-3
  plimsoll top --once -o json`,
		Args: cobra.MaximumNArgs(1),
	}
	c.Flags().StringVar(&f.kubeconfig, "kubeconfig", "",
		"kubeconfig `file` of the cluster (default: $KUBECONFIG, else this machine's own cluster)")
	f.output = addOutputFlag(c, outputTable, outputJSON)
	instanceFlags(c, &f.cluster)
	f.addJournals(c)
	c.Flags().BoolVar(&f.once, "once", false, "print once, without a terminal's control codes")
	c.Flags().StringVar(&f.node, "node", "", "begin with this node")
	c.Flags().StringVar(&f.filter, "filter", "", "show rows with these `words` only")
	c.Flags().StringVar(&f.sort, "sort", "", "sort by this `column`: "+strings.Join(topSorts(), ", "))
	c.Flags().DurationVar(&f.every, "every", 2*time.Second, "time between two refreshes; longer where a refresh is costly")
	c.Flags().DurationVar(&f.wait, "timeout", time.Minute, "with --once: how long reading the cluster may take")
	c.RunE = func(c *cobra.Command, args []string) error {
		v, err := f.view(args)
		if err != nil {
			return usageError{err}
		}
		return f.run(c, v)
	}
	return c
}

// topSorts are the columns by which some page can be sorted.
func topSorts() []string {
	all := append(top.Sorts(top.Nodes), top.Sorts(top.Pods)...)
	slices.Sort(all)
	return slices.Compact(all)
}

// view returns the view with which to begin.
func (f *topFlags) view(args []string) (*top.View, error) {
	v := &top.View{Filter: f.filter, Every: f.every, Sort: map[top.Page]string{}}
	if len(args) > 0 {
		page, known := topPages[args[0]]
		if !known {
			return nil, fmt.Errorf("top: %q: want nodes, pods or decisions", args[0])
		}
		v.Page = page
	}
	if f.node != "" {
		if len(args) > 0 {
			return nil, fmt.Errorf("top: --node %s: want it without %q", f.node, args[0])
		}
		v.Page, v.Node = top.OneNode, f.node
	}
	if f.every <= 0 {
		return nil, fmt.Errorf("top: --every %v: want more than 0", f.every)
	}
	if by := f.sort; by != "" {
		of := top.Sorts(v.Page)
		if !slices.Contains(of, by) {
			return nil, fmt.Errorf("top: --sort %q: want one of %s", by, strings.Join(of, ", "))
		}
		v.Sort[min(v.Page, top.Pods)] = by
		if v.Page == top.OneNode {
			v.Sort = map[top.Page]string{top.Pods: by}
		}
	}
	return v, nil
}

func (f *topFlags) run(c *cobra.Command, v *top.View) error {
	file, isFile := c.OutOrStdout().(*os.File)
	live := isFile && progress.IsTerminal(file) && progress.IsTerminal(os.Stdin)
	live = live && !f.once && f.output.chosen == outputTable
	if live { // messages of watches would be drawn over
		slog.SetDefault(slog.New(slog.NewTextHandler(io.Discard, nil)))
		kube.LogToSlog()
	}
	asker, err := f.asker(c)
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancel(c.Context())
	defer stop()
	from := &source.Source{Client: asker.Client, Asker: asker}
	if err := from.Start(ctx); err != nil {
		return err
	}
	from.Look(ctx, v.Page, v.Node)
	if live {
		go from.Run(ctx)
		shown := &screen.Screen{
			View:  v,
			State: from.State,
			Look:  func(page top.Page, node string) { from.Look(ctx, page, node) },
			See:   from.See,
			Story: func(pod string) []string { return from.Story(ctx, pod) },
		}
		return shown.Run(ctx)
	}
	return f.print(ctx, c.OutOrStdout(), from, v)
}

// print prints the view once.
func (f *topFlags) print(ctx context.Context, to io.Writer, from *source.Source, v *top.View) error {
	bounded, end := context.WithTimeout(ctx, f.wait)
	defer end()
	if err := from.Synced(bounded); err != nil {
		return err
	}
	from.Measure(bounded)
	from.Ask(bounded, true)
	s := from.State()
	if v.Page == top.OneNode && !slices.ContainsFunc(s.Nodes, func(n *top.Node) bool { return n.Name == v.Node }) {
		return fmt.Errorf("top: the API has no node %s", v.Node)
	}
	if f.output.chosen == outputJSON {
		enc := json.NewEncoder(to)
		enc.SetIndent("", "  ")
		return enc.Encode(s)
	}
	_, err := to.Write(v.Text(s))
	return err
}
