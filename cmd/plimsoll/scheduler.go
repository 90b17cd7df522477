package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/plimsoll-dev/plimsoll/internal/explain"
	"github.com/plimsoll-dev/plimsoll/internal/journal"
	"github.com/plimsoll-dev/plimsoll/internal/kube"
	"github.com/plimsoll-dev/plimsoll/internal/kube/schedulerconfig"
	"github.com/plimsoll-dev/plimsoll/internal/kube/serving"
	"github.com/plimsoll-dev/plimsoll/internal/scheduler"
	"github.com/plimsoll-dev/plimsoll/internal/version"
)

func newSchedulerCommand() *cobra.Command {
	s := schedulerCommand{sampling: "all"}
	c := &cobra.Command{
		Use:   "scheduler",
		Short: "Place pods on nodes",
		Long: `Place pods on nodes, instead of kube-scheduler or next to it under another --scheduler-name.

Every node is considered for every pod, by the default profile of kube-scheduler 1.36 or by those of a
KubeSchedulerConfiguration, the file that kube-scheduler reads (--config). Flags override the file. Resource claims
and gangs are not supported yet: a pod that requires one stays pending, with an Event that says so.

It accepts kube-scheduler's flags, so that existing command lines and manifests work; flags without an effect say so
here and in the log. If plimsoll is started under the name kube-scheduler, it runs this verb.

Where agents report their NUMA nodes (NodeResourceTopology), pods that get CPUs, memory or devices assigned go only
where the agent can assign them; in the file that rule is called NodeResourceTopologyMatch.`,
		Example: `  plimsoll scheduler --kubeconfig /etc/kubernetes/scheduler.conf
  plimsoll scheduler --config /etc/kubernetes/scheduler.yaml`,
		Args: cobra.NoArgs,
	}
	f := c.Flags()
	s.flags = f
	s.leader = leaderElectionFlags(f, "kube-scheduler")
	addVersionFlag(f)
	s.upstream = schedulerFlags(f)
	f.StringVar(&s.config, "config", "", "KubeSchedulerConfiguration `file` (default: upstream's defaults)")
	f.StringVar(&s.writeTo, "write-config-to", "", "write the effective configuration to this `file`, and exit")
	f.StringVar(&s.o.Name, "scheduler-name", scheduler.DefaultName, "place pods with this spec.schedulerName")
	f.IntVar(&s.o.BindsInFlight, "binds-in-flight", scheduler.BindsInFlightDefault,
		"how many binds may be in flight to the API server at once")
	f.StringVar(&s.sampling, "sampling", s.sampling,
		"which nodes to consider for a pod: `all`, or compat: as many as kube-scheduler would, by percentageOfNodesToScore")
	f.Uint64Var(&s.o.Seed, "seed", 0,
		"seed of the choice among nodes with equal scores; the same seed and history give the same placements")
	journalFlag(f, &s.journalDir)
	f.BoolVar(&s.explains, "explain", false,
		"watch the cluster for plimsoll explain too, and answer it at /explain: to clients that may get the journal; takes "+
			"memory for a second view of all pods")
	f.StringVar(&s.o.FactsFile, "facts-file", "",
		"write everything that decisions depend on to this new `file`, from the beginning, at most 48 MiB, so that "+
			"plimsoll explain --replay can repeat each decision; for reports of bugs")
	c.RunE = func(c *cobra.Command, _ []string) error {
		if said, err := printVersion(c); said {
			return err
		}
		return s.run(c.Context())
	}
	return c
}

// schedulerCommand is the parsed command line of the verb.
type schedulerCommand struct {
	config, writeTo, sampling, journalDir string
	explains                              bool

	o        scheduler.Options
	flags    *pflag.FlagSet
	leader   *leaderElection
	upstream *upstreamFlags
}

func (s *schedulerCommand) run(ctx context.Context) error {
	file, err := s.compile()
	if err != nil {
		return usageError{err}
	}
	if s.writeTo != "" {
		return file.WriteTo(s.writeTo)
	}
	u, kubeconfig := s.upstream, cmp.Or(s.upstream.kubeconfig, file.Kubeconfig)
	if s.o.Client, err = u.client("plimsoll-scheduler", kubeconfig); err != nil {
		return usageError{err}
	}
	if s.o.Events, err = u.client("plimsoll-scheduler-events", kubeconfig); err != nil {
		return usageError{err}
	}
	if err := errors.Join(u.port.Check(), s.leader.Check()); err != nil {
		return usageError{err}
	}
	s.o.Metrics, s.o.Health = scheduler.NewMetrics(), scheduler.NewHealth()
	s.o.Version = version.Plimsoll()
	port := &u.port.Options
	// As in kube-scheduler, /livez checks this process alone, so that it is not restarted because another one is late.
	loop, lists := serving.Check{Name: "sched-loop", Do: s.o.Health.Alive}, serving.Check{Name: "sched-handler-sync",
		Do: s.o.Health.Synced}
	port.Live = []serving.Check{loop}
	port.Well = []serving.Check{s.leader.health(), loop}
	port.Ready = []serving.Check{s.leader.health(), lists, loop}
	registry := s.o.Metrics.Registry
	port.Registry = registry
	kube.ClientMetrics(registry)
	registry.MustRegister(s.leader.status())
	resources := &scheduler.PodResources{Client: s.o.Events, Leads: s.leader.acts}
	port.Handlers = map[string]http.Handler{"GET /configz": file, "GET /metrics/resources": resources}
	if err := u.open(ctx, kubeconfig); err != nil {
		return err
	}
	if s.o.Journal, err = u.port.openJournal("scheduler", s.journalDir); err != nil {
		return usageError{fmt.Errorf("--journal-dir: %w", err)}
	}
	defer func() { logFailure("close the journal", s.o.Journal.Close()) }()
	live, err := s.answer(kubeconfig, file)
	if err != nil {
		return usageError{err}
	}
	s.leader.Client = func(agent string) (*kube.Client, error) { return u.client(agent, kubeconfig) }
	return u.port.serveWhile(ctx, func(ctx context.Context) error {
		go s.o.Events.NoteSkew(ctx, version.Kubernetes, controlOlderMax)
		if live != nil {
			go func() { logFailure("watch the cluster for explain", live.Run(ctx)) }()
		}
		return s.leader.run(ctx, kubeconfig, "plimsoll-scheduler", func(ctx context.Context, leads func() bool) error {
			s.o.Leads = leads
			return scheduler.Run(ctx, s.o)
		})
	})
}

// answer serves what plimsoll explain asks, if that is wanted, to those who may read the journal. It watches with its
// own client, also while another process leads; nothing that decides waits for it.
func (s *schedulerCommand) answer(kubeconfig string, file *schedulerconfig.Config) (*explain.Live, error) {
	if !s.explains {
		return nil, nil
	}
	client, err := s.upstream.client("plimsoll-scheduler-explain", kubeconfig)
	if err != nil {
		return nil, err
	}
	if client, err = client.ReadOnly(); err != nil {
		return nil, err
	}
	live := explain.NewLive(&explain.Asker{Client: client, Config: file})
	port := &s.upstream.port.Options
	port.Handlers["GET "+explain.Path] = live.Handler()
	port.Resources[explain.Path] = port.Resources[journal.Path]
	return live, nil
}

// compile reads the configuration file; flags override it.
func (s *schedulerCommand) compile() (*schedulerconfig.Config, error) {
	gates, err := s.upstream.begin()
	if err != nil {
		return nil, err
	}
	file, warnings, err := schedulerconfig.Load(s.config)
	if err != nil {
		return nil, err
	}
	switch s.sampling {
	case "all":
	case "compat":
		warnings = file.Compat(warnings)
	default:
		return nil, fmt.Errorf("--sampling: %q: want all or compat", s.sampling)
	}
	for _, w := range warnings {
		slog.Warn("scheduler configuration", "file", s.config, "field", w)
	}
	if s.config != "" && s.flags.Changed("scheduler-name") {
		return nil, errors.New("--scheduler-name: cannot be used with --config, whose profiles have names")
	}
	if s.config == "" {
		file.Profiles[0].Name = s.o.Name
	}
	if !gates.On(gateDeclaredFeatures) {
		file.Disable("NodeDeclaredFeatures")
	}
	s.o.Name, s.o.Profiles = file.Profiles[0].Name, file.Profiles
	s.o.BackoffFirst = file.BackoffFirst
	s.o.BackoffMax = file.BackoffMax
	s.o.Extenders = file.Extenders
	if file.LeaderElection != nil {
		s.leader.fill(s.flags, file.LeaderElection)
	}
	// Schedulers for pods of the same schedulerName compete for one Lease, upstream's scheduler included.
	named := s.flags.Changed("leader-elect-resource-name") || file.LeaderElection != nil &&
		file.LeaderElection.ResourceName != ""
	if s.o.Name != scheduler.DefaultName && !named {
		s.leader.Name = s.o.Name
	}
	file.SetElection(s.leader.effective())
	profiling, contention := file.Profiling()
	merge(s.flags.Changed("profiling"), &s.upstream.profiling, profiling)
	merge(s.flags.Changed("contention-profiling"), &s.upstream.contention, contention)
	return file, nil
}

// merge sets flag and file to the same value: the flag's if it was given, otherwise the file's.
func merge[T any](given bool, flag, file *T) {
	if given {
		*file = *flag
	}
	*flag = *file
}
