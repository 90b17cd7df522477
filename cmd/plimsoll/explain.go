package main

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/plimsoll-dev/plimsoll/internal/cluster"
	"github.com/plimsoll-dev/plimsoll/internal/explain"
	"github.com/plimsoll-dev/plimsoll/internal/journal/replay"
	"github.com/plimsoll-dev/plimsoll/internal/kube"
	"github.com/plimsoll-dev/plimsoll/internal/kube/schedulerconfig"
)

func newExplainCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "explain",
		Short: "Say why pods wait, what became of a pod, what a node carries, with numbers",
		Long: `Say why pods wait and what would let them in, what became of a pod, what a node carries and what keeps pods
off it, with the numbers behind it. The cluster may have any scheduler and any kubelets, and nothing has to be installed
in it: its objects are read once, and judged as kube-scheduler judges. Nothing is changed. deploy/rbac-explain.yaml has
a role for it. Plimsoll's own parts keep journals of their decisions, which are printed too.`,
		Example: `  plimsoll explain pending
  plimsoll explain pod shop/web-0
  plimsoll explain node worker-3
  plimsoll explain --replay copied/decisions`,
	}
	c.AddCommand(newExplainPendingCommand(), newExplainPodCommand(), newExplainNodeCommand())
	var recorded string
	c.Flags().StringVar(&recorded, "replay", "",
		"repeat each decision in this `file`: of a journal (or its directory), or of plimsoll scheduler --facts-file")
	output := addOutputFlag(c, outputTable, outputJSON, outputYAML)
	c.RunE = func(c *cobra.Command, args []string) error {
		if recorded != "" {
			return replayFile(c, recorded, args, output)
		}
		return usageError{fmt.Errorf("explain: %q: want pending, pod or node (see plimsoll explain --help)",
			strings.Join(args, " "))}
	}
	return c
}

// replayFile repeats the decisions in a file. The exit code is 1 if one has another outcome.
func replayFile(c *cobra.Command, path string, args []string, output *outputFormat) error {
	if len(args) > 0 {
		return usageError{fmt.Errorf("explain --replay: %q: want no arguments", strings.Join(args, " "))}
	}
	result, err := replay.File(path)
	if err != nil {
		return usageError{fmt.Errorf("--replay: %w", err)}
	}
	if err := printResult(c, result, output); err != nil {
		return err
	}
	if n := len(result.Differ); n > 0 {
		return fmt.Errorf("explain --replay: %d decisions have another outcome", n)
	}
	return nil
}

// explainFlags are the flags of the verbs of explain.
type explainFlags struct {
	kubeconfig string
	config     string
	cluster    cluster.Options
	output     *outputFormat
	newest     int
	journals   []string
	journalCA  string
}

func (f *explainFlags) add(c *cobra.Command) {
	f.output = addOutputFlag(c, outputTable, outputJSON, outputYAML)
	f.addCluster(c)
}

// addCluster adds the flags that say which cluster is asked about.
func (f *explainFlags) addCluster(c *cobra.Command) {
	c.Flags().StringVar(&f.kubeconfig, "kubeconfig", "",
		"kubeconfig `file` of the cluster (default: $KUBECONFIG, else this machine's own cluster)")
	c.Flags().StringVar(&f.config, "config", "",
		"KubeSchedulerConfiguration `file` of the cluster's scheduler (default: upstream's defaults)")
	instanceFlags(c, &f.cluster)
}

// addLast adds the flag that bounds how much of a node's journal is printed.
func (f *explainFlags) addLast(c *cobra.Command) {
	c.Flags().IntVar(&f.newest, "last", 5,
		"print only that many of the newest evictions in the node's journal; 0: all that are kept")
}

// addJournals adds the flags for the journals of the scheduler and the lifecycle controller.
func (f *explainFlags) addJournals(c *cobra.Command) {
	c.Flags().StringArrayVar(&f.journals, "journal", nil,
		"journal of the scheduler or the lifecycle controller: `https://HOST:PORT`, a copied file, or a directory; may be "+
			"repeated (default: those of this machine's own cluster)")
	c.Flags().StringVar(&f.journalCA, "journal-ca", "",
		"`file` with the CA of the certificates at the addresses of --journal (default: the cluster's)")
}

// sources returns the journals to ask.
func (f *explainFlags) sources(client *kube.Client) (out []explain.Source, err error) {
	for _, text := range f.journals {
		if !strings.Contains(text, "://") {
			out = append(out, explain.FileSource(text))
			continue
		}
		from, err := explain.URLSource(text, client.RESTConfig(), f.journalCA)
		if err != nil {
			return nil, fmt.Errorf("--journal: %w", err)
		}
		out = append(out, from)
	}
	if kept, err := cluster.Load(f.cluster); err == nil && len(f.journals) == 0 {
		dirs := cluster.Journals(kept, client.RESTConfig().Host)
		for _, name := range slices.Sorted(maps.Keys(dirs)) {
			out = append(out, explain.FileSource(dirs[name]))
		}
	}
	return out, nil
}

// asker returns what asks the cluster.
func (f *explainFlags) asker(c *cobra.Command) (*explain.Asker, error) {
	config, warnings, err := schedulerconfig.Load(f.config)
	if err != nil {
		return nil, usageError{err}
	}
	for _, w := range warnings {
		fmt.Fprintln(c.ErrOrStderr(), "plimsoll: warning:", f.config+":", w)
	}
	client, err := readerClient(f.kubeconfig, f.cluster, "plimsoll-explain")
	if err != nil {
		return nil, err
	}
	sources, err := f.sources(client)
	if err != nil {
		return nil, usageError{err}
	}
	return &explain.Asker{Client: client, Config: config, Newest: f.newest, Sources: sources, Judges: f.config != ""}, nil
}

// readerClient returns a client of the cluster that a verb reads: by the kubeconfig file, else that in $KUBECONFIG,
// else that of this machine's own cluster.
func readerClient(file string, own cluster.Options, userAgent string) (*kube.Client, error) {
	file = cmp.Or(file, os.Getenv("KUBECONFIG"))
	if file == "" {
		kept, err := cluster.Load(own)
		if err != nil {
			return nil, usageError{fmt.Errorf("--kubeconfig: not given, and there is no cluster here: %w", err)}
		}
		if file, err = cluster.AdminKubeconfig(kept); err != nil {
			return nil, err
		}
	}
	client, err := kube.NewClient(kube.Options{Kubeconfig: file, UserAgent: userAgent, QPS: -1})
	if err != nil {
		return nil, usageError{err}
	}
	return client, nil
}

func newExplainPendingCommand() *cobra.Command {
	var f explainFlags
	c := &cobra.Command{
		Use:   "pending",
		Short: "Say what waiting pods lack, and what would let them in",
		Long: `Say what the pods that wait for a node lack. Pods with the same answer are one group, the largest first: how
many nodes give each reason, which node is the nearest miss, and the smallest change of the pod, of a node, or of a
disruption budget that lets the pod in. Each change was tried on the scheduler's rules before it is proposed. Pods are
judged one by one: what lets one of a group in need not have room for all of it. A plimsoll scheduler --explain that
--journal names is asked; otherwise the cluster is read.`,
		Example: `  plimsoll explain pending --kubeconfig cluster.conf
  plimsoll explain pending -o json`,
		Args: cobra.NoArgs,
	}
	f.addJournals(c)
	f.add(c)
	c.RunE = func(c *cobra.Command, _ []string) error {
		asker, err := f.asker(c)
		if err != nil {
			return err
		}
		answer, err := asker.Waiting(c.Context())
		if err != nil {
			return err
		}
		return printResult(c, answer, f.output)
	}
	return c
}

func newExplainPodCommand() *cobra.Command {
	var f explainFlags
	var namespace, node string
	c := &cobra.Command{
		Use:   "pod [NAMESPACE/]NAME",
		Short: "Say what became of a pod, and why",
		Long: `Say what became of a pod, in order: what its status, the Events about it and the journals of plimsoll's parts say.
The scheduler's journal says which nodes it lacked and why it got its node, that of the lifecycle controller why it was
evicted from a node that is lost. That of the node's agent says why the pod was admitted or rejected, which CPUs and
devices it got, what its images, containers and probes did, and why it was evicted there: which thresholds were met, how
much was missing, the pods of the node in the order of eviction. Journals outlive the pod. What could not be read, or is not
in a journal any more, is named; each part is told without the others. Of a pod that waits for a node, also how many
nodes reject it now for each reason, the nearest miss, and the smallest changes that let it in, each tried on the
scheduler's rules. Nothing is changed.`,
		Example: `  plimsoll explain pod shop/web-0
  plimsoll explain pod shop/web-0 --journal https://scheduler:10259 --journal copied/decisions
  plimsoll explain pod web-0 --namespace shop --node worker-3 -o json`,
	}
	c.Flags().StringVarP(&namespace, "namespace", "n", "",
		"the pod's namespace (default: that before the slash, else default)")
	c.Flags().StringVar(&node, "node", "",
		"the node whose journal is read (default: the pod's node, while the pod is in the API)")
	f.addLast(c)
	f.addJournals(c)
	f.add(c)
	c.RunE = func(c *cobra.Command, args []string) error {
		if len(args) != 1 {
			return usageError{errors.New("explain pod: want the name of one pod")}
		}
		name := args[0]
		if before, after, slash := strings.Cut(name, "/"); slash {
			if namespace != "" && namespace != before {
				return usageError{fmt.Errorf("explain pod: %q: is in namespace %q, but --namespace is %q", name, before, namespace)}
			}
			namespace, name = before, after
		}
		if name == "" || strings.Contains(name, "/") {
			return usageError{fmt.Errorf("explain pod: %q: want NAME or NAMESPACE/NAME", args[0])}
		}
		asker, err := f.asker(c)
		if err != nil {
			return err
		}
		answer, err := asker.Pod(c.Context(), cmp.Or(namespace, "default"), name, node)
		if err != nil {
			return err
		}
		return printResult(c, answer, f.output)
	}
	return c
}

func newExplainNodeCommand() *cobra.Command {
	var f explainFlags
	c := &cobra.Command{
		Use:   "node NAME",
		Short: "Say what a node carries, and what keeps pods off it",
		Long: `Say what a node carries: of each resource the capacity, what is reserved, allocatable, requested by its pods, and
free; its largest pods; its conditions and taints with their causes and since when; for which reasons it rejects the
pods that wait. What the lifecycle controller decided about it is told from its journal. If it has plimsoll's agent, also every eviction that its journal still has, the newest last, and the
changes of pressure without an eviction. Nothing is changed.`,
		Example: `  plimsoll explain node worker-3 --last 20`,
	}
	f.addLast(c)
	f.addJournals(c)
	f.add(c)
	c.RunE = func(c *cobra.Command, args []string) error {
		if len(args) != 1 || args[0] == "" {
			return usageError{errors.New("explain node: want the name of one node")}
		}
		asker, err := f.asker(c)
		if err != nil {
			return err
		}
		answer, err := asker.Node(c.Context(), args[0])
		if err != nil {
			return err
		}
		return printResult(c, answer, f.output)
	}
	return c
}
