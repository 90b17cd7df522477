package main

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/plimsoll-dev/plimsoll/internal/cluster"
	"github.com/plimsoll-dev/plimsoll/internal/explain"
	"github.com/plimsoll-dev/plimsoll/internal/kube"
)

func newExplainCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "explain",
		Short: "Say why something was done to a pod or a node, with numbers",
		Long: `Say why something was done to a pod or a node, with the numbers behind the decision. Nodes with plimsoll's
agent keep a journal of their evictions: which thresholds were met, the order of the pods, and which pods were
evicted.`,
		Example: `  plimsoll explain pod web-0
  plimsoll explain node worker-3`,
	}
	c.AddCommand(newExplainPodCommand(), newExplainNodeCommand())
	c.RunE = func(c *cobra.Command, args []string) error {
		return usageError{fmt.Errorf("explain: %q: want pod or node (see plimsoll explain --help)", strings.Join(args, " "))}
	}
	return c
}

// explainFlags are the flags of the verbs that read a node's journal.
type explainFlags struct {
	kubeconfig string
	cluster    cluster.Options
	output     *outputFormat
	question   explain.Question
}

func (f *explainFlags) add(c *cobra.Command) {
	c.Flags().StringVar(&f.kubeconfig, "kubeconfig", "",
		"kubeconfig `file` of the cluster (default: $KUBECONFIG, else this machine's own cluster)")
	c.Flags().IntVar(&f.question.Newest, "last", 5, "print only that many of the newest records; 0: all that are kept")
	f.output = addOutputFlag(c, outputTable, outputJSON)
	instanceFlags(c, &f.cluster)
}

func (f *explainFlags) ask(c *cobra.Command) error {
	file := cmp.Or(f.kubeconfig, os.Getenv("KUBECONFIG"))
	if file == "" {
		kept, err := cluster.Load(f.cluster)
		if err != nil {
			return usageError{fmt.Errorf("--kubeconfig: not given, and there is no cluster here: %w", err)}
		}
		if file, err = cluster.AdminKubeconfig(kept); err != nil {
			return err
		}
	}
	client, err := kube.NewClient(kube.Options{Kubeconfig: file, UserAgent: "plimsoll-explain"})
	if err != nil {
		return usageError{err}
	}
	answer, err := explain.Ask(c.Context(), client, f.question)
	if err != nil {
		return err
	}
	text, err := answer.Text()
	if f.output.chosen == outputJSON {
		text, err = answer.JSON()
	}
	if err != nil {
		return err
	}
	_, err = c.OutOrStdout().Write(text)
	return err
}

func newExplainPodCommand() *cobra.Command {
	var f explainFlags
	c := &cobra.Command{
		Use:   "pod NAME",
		Short: "Say why a pod was evicted",
		Long: `Say why a pod was evicted: which thresholds were met, how much was available and how much was missing; the
pods of its node in the order of eviction, with what each used and requested; which pods were evicted, and how long it
took. The pod's node answers from its journal, which outlives the pod and the agent. Nothing is changed.`,
		Example: `  plimsoll explain pod web-0 --namespace shop
  plimsoll explain pod web-0 --node worker-3 -o json`,
	}
	c.Flags().StringVarP(&f.question.Namespace, "namespace", "n", "default", "the pod's namespace")
	c.Flags().StringVar(&f.question.Node, "node", "",
		"the node to ask (default: the pod's node, while the pod is in the API)")
	f.add(c)
	c.RunE = func(c *cobra.Command, args []string) error {
		if len(args) != 1 {
			return usageError{errors.New("explain pod: want the name of one pod")}
		}
		f.question.Pod = args[0]
		return f.ask(c)
	}
	return c
}

func newExplainNodeCommand() *cobra.Command {
	var f explainFlags
	c := &cobra.Command{
		Use:   "node NAME",
		Short: "Say what a node decided about its pods",
		Long: `Say what a node decided about its pods: every eviction that its journal still has, the newest last, and the
changes of pressure without an eviction. Nothing is changed.`,
		Example: `  plimsoll explain node worker-3 --last 20`,
	}
	f.add(c)
	c.RunE = func(c *cobra.Command, args []string) error {
		if len(args) != 1 {
			return usageError{errors.New("explain node: want the name of one node")}
		}
		f.question.Node = args[0]
		return f.ask(c)
	}
	return c
}
