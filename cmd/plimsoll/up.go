package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/plimsoll-dev/plimsoll/internal/cluster"
	"github.com/plimsoll-dev/plimsoll/internal/cluster/progress"
)

func newUpCommand() *cobra.Command {
	var o cluster.Options
	var detach, noAgent bool
	c := &cobra.Command{
		Use:   "up",
		Short: "Run a whole Kubernetes cluster on this machine",
		Long: `Run etcd, kube-apiserver, kube-controller-manager and kube-proxy (upstream's), and our own agent, scheduler and
lifecycle controller, as supervised processes on this machine, until Ctrl-C or "plimsoll down". Run again after any
crash, it takes over what still runs and restarts the rest. Another build of plimsoll takes over a running cluster and
replaces its programs; pods continue to run.

As root, this machine becomes a node that runs containers. --nodes N makes it N nodes, to try what needs several: the
machine itself, and NODE-2 to NODE-N, each in a network namespace with its own runtime, agent and kube-proxy, as if
"plimsoll join" ran on another machine. Every node reports all CPUs and memory of the machine as its own. Without root,
--hollow N gives N hollow nodes, which run no containers.

With --etcd-servers the cluster's objects are in an etcd of yours. Then further machines can be servers of the same
cluster, each with a control plane: "plimsoll token create --server" prints the command for them, with --server. It is
run again without --token and --certificate-key after a reboot.`,
		Example: `  plimsoll up --detach                  # return when the node is Ready
  plimsoll up --nodes 3                 # three nodes on this machine
  plimsoll up --hollow 100              # a hundred hollow nodes too; without root, only those
  plimsoll up --etcd-servers https://10.0.0.1:2379 --etcd-cafile ca.crt --etcd-certfile client.crt --etcd-keyfile client.key
  plimsoll up --server https://10.0.0.1:6443      # a further server, started again`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			// Without root there can be no containers; with --hollow the user does not want any.
			o.Agent = !noAgent && (os.Geteuid() == 0 || o.Hollow == 0)
			if o.Nodes > 1 && !c.Flags().Changed("bind-address") {
				o.BindAddress = "" // the default follows from --node-cidr
			}
			fill, validate := o.Fill, o.Validate
			if o.FirstServer != "" {
				if err := decidedBefore(c); err != nil {
					return usageError{err}
				}
				if !c.Flags().Changed("bind-address") {
					o.BindAddress = "" // it follows from --node-ip
				}
				if !c.Flags().Changed("apiserver-port") {
					o.APIServerPort = 0 // it is that of the other servers
				}
				takeSecrets(&o, detach)
				fill, validate = o.FillServer, o.ValidateServer
			}
			if err := fill(); err != nil {
				return usageError{err}
			}
			if err := validate(); err != nil {
				return usageError{err}
			}
			return runUp(c, o, detach)
		},
	}
	f := c.Flags()
	instanceFlags(c, &o)
	nodeFlags(c, &o)
	f.BoolVar(&detach, "detach", false, "go to the background and return when the node is Ready")
	f.IntVar(&o.Nodes, "nodes", 1,
		"number of nodes that this machine becomes; those beside the first are in network namespaces")
	f.StringVar(&o.NodeCIDR, "node-cidr", "10.87.0.0/24",
		"network between the nodes of --nodes; kube-apiserver listens on its first address")
	f.IntVar(&o.Hollow, "hollow", 0, "number of hollow nodes, which run no containers")
	f.IntVar(&o.HollowZones, "hollow-zones", 0, "spread the hollow nodes over this many zones; 0: no zones")
	f.BoolVar(&noAgent, "no-agent", false, "leave out this machine's own node and its container runtime")
	f.BoolVar(&o.NoLifecycle, "no-lifecycle", false,
		"leave out the lifecycle controller; without another one nothing monitors the nodes")
	f.BoolVar(&o.NoScheduler, "no-scheduler", false, "leave out the scheduler; without another one no pod is placed")
	f.BoolVar(&o.NoControllerManager, "no-controller-manager", false,
		"leave out kube-controller-manager; without another one there are no service accounts, workloads, "+
			"quotas and garbage collection")
	f.IntVar(&o.GCPercent, "gc-percent", 0,
		"GOGC of etcd, kube-apiserver and kube-controller-manager: 400 uses more memory and less CPU, for large clusters; "+
			"0: Go's default, 100")
	f.StringVar(&o.BindAddress, "bind-address", "127.0.0.1",
		"address that all ports are bound to (with --nodes: the first of --node-cidr)")
	f.IntVar(&o.APIServerPort, "apiserver-port", cluster.DefaultAPIServerPort,
		"port of kube-apiserver; all servers of a cluster have the same, and with --server it is known")
	f.IntVar(&o.ControllerManagerPort, "controller-manager-port", 10257,
		"port of kube-controller-manager's health and metrics; 0: none")
	f.IntVar(&o.SchedulerPort, "scheduler-port", 0,
		"port of the scheduler's health and metrics, for authorized clients; 0: none")
	f.IntVar(&o.LifecyclePort, "lifecycle-port", 0,
		"port of the lifecycle controller's health and metrics, for authorized clients; 0: none")
	f.StringSliceVar(&o.Without, "without", nil,
		"add-ons to leave out: kube-proxy (Services have no addresses then), coredns (they have no names), "+
			"metrics-server (no kubectl top), csi (no volumes on demand)")
	f.StringVar(&o.PodCIDR, "pod-cidr", "10.85.0.0/16", "network of pods")
	f.StringVar(&o.ServiceCIDR, "service-cidr", "10.96.0.0/16", "network of Service addresses")
	f.DurationVar(&o.SigningDuration, "cluster-signing-duration", 0,
		"life of the certificates that kube-controller-manager signs, such as those of machines that join; 0: "+
			"its default, a year")
	f.StringSliceVar(&o.EtcdServers, "etcd-servers", nil, "URLs of an etcd to use instead of our own")
	f.StringVar(&o.EtcdCAFile, "etcd-cafile", "", "CA file of --etcd-servers")
	f.StringVar(&o.EtcdCertFile, "etcd-certfile", "", "client certificate file for --etcd-servers")
	f.StringVar(&o.EtcdKeyFile, "etcd-keyfile", "", "client key file for --etcd-servers")
	f.StringVar(&o.FirstServer, "server", "",
		"`URL` of kube-apiserver on a server of a cluster: this machine becomes, or is, a further server of it")
	f.StringVar(&o.Token, "token", "",
		"with --server for the first time: a token for servers; else that of the environment variable "+tokenVariable)
	f.StringVar(&o.TokenFile, "token-file", "", "file with the token, read when one is needed; instead of --token")
	f.StringVar(&o.AuthorityHash, "discovery-token-ca-cert-hash", "",
		"with a token: hash of the cluster's authority, sha256:<64 hexadecimal digits>")
	f.StringVar(&o.CertificateKey, "certificate-key", "",
		"with a token: key that opens what the servers share; else that of the environment variable "+keyVariable)
	f.StringVar(&o.ContainerRuntimeEndpoint, "container-runtime-endpoint", "",
		"CRI socket of a runtime to use instead of our own containerd")
	f.StringVar(&o.AgentBinary, "agent-binary", "",
		"program to run as the agent instead of ours: upstream's kubelet, which has the same flags")
	f.DurationVar(&o.Timeout, "timeout", 2*time.Minute, "give up when no step of the start has ended for this long")
	return c
}

// decidedBefore returns an error for flags that a further server cannot choose.
func decidedBefore(c *cobra.Command) error {
	var errs []error
	for _, name := range []string{"pod-cidr", "service-cidr", "without", "cluster-signing-duration"} {
		if c.Flags().Changed(name) {
			errs = append(errs, fmt.Errorf("--%s: has no effect with --server: the cluster has decided it", name))
		}
	}
	return errors.Join(errs...)
}

// instanceFlags adds the flags of every verb that acts on an instance.
func instanceFlags(c *cobra.Command, o *cluster.Options) {
	c.Flags().StringVar(&o.Instance, "instance", cluster.DefaultInstance,
		"name of the cluster; several can run on one machine, with different ports and networks")
	c.Flags().StringVar(&o.StateDir, "state-dir", "",
		"directory of what survives down (default /var/lib/plimsoll[-INSTANCE]; without root, in the user's state directory)")
}

func runUp(c *cobra.Command, o cluster.Options, detach bool) error {
	if parent, ok := cluster.DetachedSink(); ok {
		_ = os.Chdir("/") // best effort, so that the process keeps no file system busy
		err := cluster.Up(c.Context(), o, parent, parent.Up)
		if errors.Is(err, cluster.ErrHandedOver) {
			return nil
		}
		if err != nil {
			parent.Failed(err)
		}
		return err
	}
	sink := progress.For(os.Stdout)
	defer sink.Close()
	began := time.Now()
	show := func() {
		sink.Show(progress.Event{Phase: progress.Note, Detail: fmt.Sprintf("up in %.1f s", time.Since(began).Seconds())})
		if kept, err := cluster.Load(o); err == nil {
			o = kept // with what the cluster decides
		}
		if err := cluster.Describe(c.Context(), c.OutOrStdout(), o); err != nil {
			sink.Show(progress.Event{Step: "describe", Phase: progress.Note, Detail: err.Error()})
		}
	}
	var err error
	if detach {
		args := slices.DeleteFunc(withoutSecrets(os.Args[1:]), func(a string) bool {
			return a == "--detach" ||
				a == "--detach=true"
		})
		if err = cluster.UpDetached(c.Context(), o, args, sink); err == nil {
			show()
		}
	} else {
		err = cluster.Up(c.Context(), o, sink, func() {
			show()
			what := "cluster"
			if o.Joined() {
				what = "node"
			}
			fmt.Fprintf(c.OutOrStdout(), "\nCtrl-C ends the %s.\n", what)
		})
	}
	switch {
	case errors.Is(err, cluster.ErrAlreadyUp):
		return describeAlreadyUp(c.Context(), c, o, sink)
	case errors.Is(err, cluster.ErrHandedOver):
		sink.Show(progress.Event{Phase: progress.Note, Detail: "handed over to another plimsoll process"})
		return nil
	}
	return err
}

// describeAlreadyUp handles an instance that another process supervises: it waits until the instance is up and shows
// it.
func describeAlreadyUp(ctx context.Context, c *cobra.Command, o cluster.Options, sink progress.Sink) error {
	kept, err := cluster.Load(o)
	if errors.As(err, new(*cluster.NotUpError)) {
		return fmt.Errorf("instance %s is being brought up by another plimsoll process that has just begun: try again",
			o.Instance)
	}
	if err != nil {
		return err
	}
	if !kept.Equal(&o) {
		sink.Show(progress.Event{Phase: progress.Note,
			Detail: "it keeps the options with which it was started; to change them, run plimsoll down and up again"})
	}
	err = progress.Step(sink, "instance "+kept.Instance, func() (string, error) {
		return "is already up", cluster.AwaitUp(ctx, kept, o.Timeout)
	})
	if err != nil {
		return err
	}
	return cluster.Describe(ctx, c.OutOrStdout(), kept)
}
