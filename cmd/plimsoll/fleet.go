package main

import (
	"fmt"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/plimsoll-dev/plimsoll/internal/fleet"
	"github.com/plimsoll-dev/plimsoll/internal/kube"
)

func newFleetCommand() *cobra.Command {
	var (
		kubeconfig, cpu, memory, storage string
		podQPS                           float32
	)
	o := fleet.Options{Capacity: fleet.DefaultCapacity()}
	c := &cobra.Command{
		Use:   "fleet",
		Short: "Run hollow nodes: real leases and status, pretended pods",
		Long: `Run many hollow nodes in one process. They register, renew their leases and report their status for real; pods bound to
them become Running, with addresses from 198.18.0.0/15, and go when they are deleted, but nothing is executed.

Hollow nodes carry the label plimsoll.dev/hollow=true and no taint. They stay when the process ends; remove them with
kubectl delete nodes -l plimsoll.dev/hollow=true.`,
		Example: `  plimsoll fleet --kubeconfig admin.conf --nodes 100
  plimsoll fleet --kubeconfig admin.conf --nodes 5000 --node-prefix big- --cpu 96 --memory 768Gi --pods 250 --zones 3`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			for _, q := range []struct {
				flag, text string
				into       *resource.Quantity
			}{{"cpu", cpu, &o.Capacity.CPU}, {"memory", memory, &o.Capacity.Memory}, {"ephemeral-storage", storage, &o.Capacity.EphemeralStorage}} {
				parsed, err := resource.ParseQuantity(q.text)
				if err != nil {
					return usageError{fmt.Errorf("--%s: %q: %w; write it as 4, 500m or 16Gi", q.flag, q.text, err)}
				}
				*q.into = parsed
			}
			var err error
			if o.Client, err = kube.NewClient(kube.Options{Kubeconfig: kubeconfig, UserAgent: "plimsoll-fleet", QPS: -1}); err != nil {
				return usageError{err}
			}
			if o.Pods, err = kube.NewClient(kube.Options{Kubeconfig: kubeconfig, UserAgent: "plimsoll-fleet-pods", QPS: podQPS, Burst: int(podQPS)}); err != nil {
				return usageError{err}
			}
			if err := o.Check(); err != nil {
				return usageError{err}
			}
			return fleet.Run(c.Context(), o)
		},
	}
	f := c.Flags()
	f.StringVar(&kubeconfig, "kubeconfig", "", "`file` that says how to reach the API server")
	f.IntVar(&o.Nodes, "nodes", 0, "how many hollow nodes")
	f.StringVar(&o.Prefix, "node-prefix", "hollow-", "node names are this and a number from 0")
	f.IntVar(&o.Zones, "zones", 0, "spread the nodes over this many zones (topology.kubernetes.io/zone); 0: no zones")
	f.StringVar(&cpu, "cpu", o.Capacity.CPU.String(), "CPUs of each node")
	f.StringVar(&memory, "memory", o.Capacity.Memory.String(), "memory of each node")
	f.StringVar(&storage, "ephemeral-storage", o.Capacity.EphemeralStorage.String(), "ephemeral storage of each node")
	f.Int64Var(&o.Capacity.Pods, "pods", o.Capacity.Pods, "pods each node takes")
	f.Float32Var(&podQPS, "pod-qps", 500, "requests about pods per second, at most; heartbeats are not limited")
	f.Uint64Var(&o.Seed, "seed", 0, "of the jitter of heartbeats")
	_ = c.MarkFlagRequired("kubeconfig")
	_ = c.MarkFlagRequired("nodes")
	return c
}
