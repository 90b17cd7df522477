package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/plimsoll-dev/plimsoll/internal/cluster"
	"github.com/plimsoll-dev/plimsoll/internal/core/fault"
	"github.com/plimsoll-dev/plimsoll/internal/fleet"
	"github.com/plimsoll-dev/plimsoll/internal/kube"
)

// fleetFlags are the flags that are translated to fleet.Options. The others set a field of the options directly.
type fleetFlags struct {
	kubeconfig           string
	cpu, memory, storage string  // quantities
	faults               string  // path of a file; empty: none
	podQPS               float32 // requests per second
}

func newFleetCommand() *cobra.Command {
	var flags fleetFlags
	o := fleet.Options{Capacity: fleet.DefaultCapacity()}
	c := &cobra.Command{
		Use:   "fleet",
		Short: "Run hollow nodes: nodes without containers, to load-test a control plane",
		Long: `Run many hollow nodes in one process. They register, renew their leases and report their status like real
nodes. Pods bound to them become Running, with addresses from 198.18.0.0/15, and end when they are deleted, but no
container is started.

Hollow nodes have the label plimsoll.dev/hollow=true and no taint. They remain when the process ends; delete them with
kubectl delete nodes -l plimsoll.dev/hollow=true.

While it runs, "plimsoll fleet fault" makes nodes fail and return, and "plimsoll fleet status" shows their state.
--faults reads a file of the same orders, one per line, with "at DURATION" before each, counted from the moment when all
nodes are registered.`,
		Example: `  plimsoll fleet --kubeconfig admin.conf --nodes 100
  plimsoll fleet --kubeconfig admin.conf --nodes 5000 --node-prefix big- --cpu 96 --memory 768Gi --pods 250 --zones 3
  plimsoll fleet fault partition zone=zone-1 for=10m
  plimsoll fleet --kubeconfig admin.conf --nodes 500 --zones 3 --faults bad-day.txt`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if err := flags.fill(&o); err != nil {
				return usageError{err}
			}
			if err := o.Check(); err != nil {
				return usageError{err}
			}
			return fleet.Run(c.Context(), o)
		},
	}
	c.AddCommand(newFleetFaultCommand(), newFleetStatusCommand())
	f := c.Flags()
	f.StringVar(&flags.kubeconfig, "kubeconfig", "", "kubeconfig `file` of the cluster")
	f.IntVar(&o.Nodes, "nodes", 0, "number of hollow nodes")
	f.StringVar(&o.Prefix, "node-prefix", "hollow-", "prefix of node names; a number from 0 follows")
	f.IntVar(&o.Zones, "zones", 0, "spread the nodes over this many zones (topology.kubernetes.io/zone); 0: no zones")
	f.StringVar(&flags.cpu, "cpu", o.Capacity.CPU.String(), "CPUs of each node")
	f.StringVar(&flags.memory, "memory", o.Capacity.Memory.String(), "memory of each node")
	f.StringVar(&flags.storage, "ephemeral-storage", o.Capacity.EphemeralStorage.String(),
		"ephemeral storage of each node")
	f.Int64Var(&o.Capacity.Pods, "pods", o.Capacity.Pods, "how many pods each node accepts")
	f.Float32Var(&flags.podQPS, "pod-qps", 500, "limit of requests about pods per second; heartbeats are not limited")
	f.DurationVar(&o.LeaseDuration, "lease-duration", 0,
		"validity of a node's lease; it is renewed after a quarter of it; 0: 40s")
	f.DurationVar(&o.ReportEvery, "status-report-frequency", 0, "how often an unchanged status is reported; 0: 5m")
	f.Uint64Var(&o.Seed, "seed", 0, "seed of the jitter of heartbeats and of the choice of faulty nodes")
	f.StringVar(&flags.faults, "faults", "", "`file` of faults to execute")
	f.StringVar(&o.Control, "control", defaultControl(), "path of the control socket; empty: none")
	_ = c.MarkFlagRequired("kubeconfig")
	_ = c.MarkFlagRequired("nodes")
	return c
}

// fill sets what the flags say in o. It reads the file of faults and makes the clients.
func (f fleetFlags) fill(o *fleet.Options) (err error) {
	for _, q := range []struct {
		flag, text string
		into       *resource.Quantity
	}{
		{"cpu", f.cpu, &o.Capacity.CPU},
		{"memory", f.memory, &o.Capacity.Memory},
		{"ephemeral-storage", f.storage, &o.Capacity.EphemeralStorage},
	} {
		parsed, err := resource.ParseQuantity(q.text)
		if err != nil {
			return fmt.Errorf("--%s: %q: %w; write it as 4, 500m or 16Gi", q.flag, q.text, err)
		}
		*q.into = parsed
	}
	if f.faults != "" {
		text, err := os.ReadFile(f.faults)
		if err == nil {
			o.Script, err = fault.ParseScript(string(text))
		}
		if err != nil {
			return fmt.Errorf("read --faults %s: %w", f.faults, err)
		}
	}
	if o.Client, err = kube.NewClient(kube.Options{Kubeconfig: f.kubeconfig, UserAgent: "plimsoll-fleet",
		QPS: -1}); err != nil {
		return err
	}
	if o.Pods, err = kube.NewClient(kube.Options{Kubeconfig: f.kubeconfig, UserAgent: "plimsoll-fleet-pods", QPS: f.podQPS,
		Burst: int(f.podQPS)}); err != nil {
		return err
	}
	return nil
}

// defaultControl returns the default control socket of a fleet that `up` did not start.
func defaultControl() string {
	dir := os.Getenv("XDG_RUNTIME_DIR")
	switch {
	case os.Geteuid() == 0:
		dir = "/run"
	case dir == "":
		return filepath.Join(os.TempDir(), fmt.Sprintf("plimsoll-fleet-%d.sock", os.Geteuid()))
	}
	return filepath.Join(dir, "plimsoll-fleet.sock")
}

// fleetSocket adds the flags that select a fleet. It returns a function that returns the path of the fleet's control
// socket.
func fleetSocket(c *cobra.Command) func() (string, error) {
	var o cluster.Options
	var control string
	c.Flags().StringVar(&control, "control", defaultControl(), "control socket of the fleet")
	c.Flags().StringVar(&o.Instance, "instance", "",
		"select the fleet that up --hollow started for this cluster, instead of --control")
	c.Flags().StringVar(&o.StateDir, "state-dir", "", "select it by the cluster's state directory")
	return func() (string, error) {
		if o.Instance == "" && o.StateDir == "" {
			return control, nil
		}
		o.Instance = cmp.Or(o.Instance, cluster.DefaultInstance)
		kept, err := cluster.Load(o)
		return kept.FleetSocket(), err
	}
}

func newFleetFaultCommand() *cobra.Command {
	var socket func() (string, error)
	var output string
	c := &cobra.Command{
		Use:   "fault KIND [key=value...]",
		Short: "Make nodes of a running fleet fail, or return",
		Long: `Make nodes of a running fleet fail, or return. A node has at most one fault: a new order replaces it.

Kinds:
  silence      the node does nothing, as if its machine had stopped, and continues afterwards
  partition    the node runs, but its requests get no answer
  slow         each request takes longer, by delay=DURATION
  flap         silent for down=DURATION, running for up=DURATION, alternately; each node begins at another moment
  notready     the node runs and reports that its container runtime is down
  return       end the faults of the nodes

Which nodes; without any of these, all. Matching nodes without a fault are chosen first:
  zone=ZONE    the nodes of a zone
  nodes=A,B    the nodes with these names
  count=N      that many, chosen by the fleet's --seed
  percent=N    that percentage

for=DURATION ends the fault after that time.`,
		Example: `  plimsoll fleet fault silence count=50
  plimsoll fleet fault partition zone=zone-1 for=10m
  plimsoll fleet fault flap up=2m down=1m percent=5
  plimsoll fleet fault slow delay=3s nodes=hollow-1,hollow-2
  plimsoll fleet fault return`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			if output != "text" && output != "json" {
				return usageError{fmt.Errorf("--output %q: want text or json", output)}
			}
			path, err := socket()
			if err != nil {
				return err
			}
			obeyed, err := fleet.Command(c.Context(), path, strings.Join(args, " "))
			if errors.As(err, new(fleet.RefusedError)) {
				return usageError{err}
			}
			if err != nil {
				return err
			}
			if output == "json" {
				return printJSON(c, obeyed)
			}
			_, err = fmt.Fprintf(c.OutOrStdout(), "%s: %d nodes\n", obeyed.Order, len(obeyed.Nodes))
			return err
		},
	}
	socket = fleetSocket(c)
	c.Flags().StringVarP(&output, "output", "o", "text", "text, or json with the names of the nodes")
	return c
}

func newFleetStatusCommand() *cobra.Command {
	var socket func() (string, error)
	c := &cobra.Command{
		Use:   "status",
		Short: "Show the state of a running fleet, as JSON",
		Long: `Show how many nodes of a running fleet are registered and faulty, and how many requests they made and how
long those took.`,
		Example: `  plimsoll fleet status`,
		Args:    cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			path, err := socket()
			if err != nil {
				return err
			}
			s, err := fleet.Look(c.Context(), path)
			if err != nil {
				return err
			}
			return printJSON(c, s)
		},
	}
	socket = fleetSocket(c)
	return c
}

func printJSON(c *cobra.Command, v any) error {
	enc := json.NewEncoder(c.OutOrStdout())
	enc.SetIndent("", "  ")
	return enc.Encode(v)
}
