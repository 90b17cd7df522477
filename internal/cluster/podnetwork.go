package cluster

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/cache"

	"github.com/plimsoll-dev/plimsoll/internal/cluster/progress"
	"github.com/plimsoll-dev/plimsoll/internal/core/podroutes"
	"github.com/plimsoll-dev/plimsoll/internal/fleet"
	"github.com/plimsoll-dev/plimsoll/internal/host/durable"
	"github.com/plimsoll-dev/plimsoll/internal/host/link"
	"github.com/plimsoll-dev/plimsoll/internal/kube"
)

// This file connects the pods of several nodes. kube-controller-manager assigns each node a part of --pod-cidr when it
// registers (Node.spec.podCIDR). The bridge of the node's pods has that part. For every other node, the kernel has a
// route to the other node's part, through the other node's address. Package core/podroutes decides which routes there
// must be; the supervisor adds and removes them. They remain in the kernel while there is no supervisor.

// divides reports whether the pod network is divided among nodes, so that this machine's pods have only a part of it.
func (o *Options) divides() bool {
	return o.Agent && o.ContainerRuntimeEndpoint == "" && (o.joined() || o.shared() && !o.NoControllerManager)
}

func (c *cluster) divides() bool { return c.o.divides() }

// podCIDRRecord is the file with this machine's part of the pod network, so that a start need not wait for its Node.
func (l layout) podCIDRRecord() string { return l.state("pod-cidr") }

// podCIDR returns this machine's part of the pod network; empty: it has none yet.
func (l layout) podCIDR() (string, error) {
	if !l.o.divides() {
		return l.o.PodCIDR, nil
	}
	text, err := os.ReadFile(l.podCIDRRecord())
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("read this node's pod network: %w", err)
	}
	return strings.TrimSpace(string(text)), nil
}

// joinPodNetwork configures the runtime with the part of the pod network that is assigned to this machine's Node.
func (c *cluster) joinPodNetwork(ctx context.Context, client *kube.Client) error {
	return progress.Step(c.sink, "pod network", func() (string, error) {
		var pods netip.Prefix
		assigned := func(ctx context.Context) (err error) {
			node := &corev1.Node{}
			err = client.Get(ctx, kube.Nodes, "", c.o.NodeName, node)
			if apierrors.IsNotFound(err) {
				return fmt.Errorf("the agent has not registered node %s yet: %w", c.o.NodeName, err)
			}
			if err != nil {
				return fmt.Errorf("read node %s: %w", c.o.NodeName, err)
			}
			pods, err = partOf(node)
			return err
		}
		if err := c.await(ctx, "this node's pod network", assigned, childAgent, childAPIServer,
			childControllerManager); err != nil {
			return "", err
		}
		if _, err := durable.WriteIfChanged(c.podCIDRRecord(), []byte(pods.String()+"\n")); err != nil {
			return "", err
		}
		if err := c.runtime.SetNetwork(pods); err != nil {
			return "", err
		}
		nodes := &corev1.NodeList{}
		if err := client.List(ctx, kube.Nodes, "", metav1.ListOptions{}, nodes); err != nil {
			return "", fmt.Errorf("list the nodes to whose pods this machine needs routes: %w", err)
		}
		return pods.String(), c.setRoutes(nodes.Items)
	})
}

// partOf returns the part of the pod network that is assigned to a node.
func partOf(node *corev1.Node) (netip.Prefix, error) {
	if node.Spec.PodCIDR == "" {
		return netip.Prefix{}, fmt.Errorf("kube-controller-manager has not assigned node %s a part of the pod "+
			"network (its events say why: kubectl describe node %s)", node.Name, node.Name)
	}
	pods, err := netip.ParsePrefix(node.Spec.PodCIDR)
	if err != nil || !pods.Addr().Is4() {
		return pods, fmt.Errorf("node %s: spec.podCIDR %q: want an IPv4 network", node.Name, node.Spec.PodCIDR)
	}
	return pods, nil
}

// setRoutes adds missing routes to the pods of nodes, and removes those that no node needs.
func (c *cluster) setRoutes(nodes []corev1.Node) error {
	c.routing.Lock()
	defer c.routing.Unlock()
	attached, err := link.Attached(c.bridge())
	if err != nil {
		return err
	}
	var known []podroutes.Node
	for i := range nodes {
		if nodes[i].Labels[fleet.LabelHollow] == "true" {
			continue
		}
		n := podroutes.Node{Name: nodes[i].Name}
		if a, err := netip.ParseAddr(internalIP(&nodes[i])); err == nil {
			n.Address = a
		}
		if p, err := partOf(&nodes[i]); err == nil {
			n.Pods = p
		}
		known = append(known, n)
	}
	want, problems := podroutes.Plan(c.o.NodeName, known, attached)
	c.warnOfNodes(problems)
	have, err := link.Routes()
	if err != nil {
		return err
	}
	add, remove := podroutes.Changes(want, c.ownRoutes(have))
	for _, r := range remove {
		err = errors.Join(err, link.DeleteRoute(link.Route(r)))
	}
	for _, r := range add {
		err = errors.Join(err, link.AddRoute(link.Route(r)))
	}
	if len(add)+len(remove) > 0 {
		c.logger.Info("routes to other nodes' pods", "added", add, "removed", remove, "err", err)
	}
	return err
}

// ownRoutes leaves out routes of other instances in this network namespace.
func (c *cluster) ownRoutes(all []link.Route) (own []podroutes.Route) {
	pods, err := netip.ParsePrefix(c.o.PodCIDR)
	if err != nil {
		return nil // Validate has reported it
	}
	for _, r := range all {
		if pods.Overlaps(r.To) {
			own = append(own, podroutes.Route(r))
		}
	}
	return own
}

// warnOfNodes logs, once for each node, why its pods cannot be reached.
func (c *cluster) warnOfNodes(problems []podroutes.Problem) {
	if slices.Equal(problems, c.unreachable) {
		return
	}
	c.unreachable = problems
	for _, p := range problems {
		c.logger.Warn("pods of a node cannot be reached", "node", p.Node, "why", p.Text)
		c.sink.Show(progress.Event{Step: "node " + p.Node, Phase: progress.Note, Detail: p.Text})
	}
}

// removeRoutes removes this instance's routes.
func (c *cluster) removeRoutes() error {
	pods, err := netip.ParsePrefix(c.o.PodCIDR)
	if err != nil || !c.divides() {
		return nil
	}
	return link.DeleteRoutes(pods)
}

// routesPeriod is how often the routes are compared although no node has changed, because another program may have
// removed one (chosen; it costs one request to the kernel).
const routesPeriod = 30 * time.Second

// keepCluster does, until ctx ends, what every machine of a cluster must do: it keeps routes, and on the server it also
// answers requests for certificates. It calls dismiss once if this machine is to leave its cluster, and sends to move
// the server that it should use from now on.
func (c *cluster) keepCluster(ctx context.Context, dismiss func(), move chan<- string) {
	if c.o.joined() && move != nil {
		go c.keepServer(ctx, move)
	}
	if c.divides() {
		go c.keepRoutes(ctx, dismiss)
	}
	if c.o.shared() {
		go c.keepRequests(ctx)
	}
}

// keepRoutes keeps the routes to the pods of other nodes until ctx ends or this machine is to leave.
func (c *cluster) keepRoutes(ctx context.Context, dismiss func()) {
	client, err := c.client(whoLauncher)
	if err != nil {
		c.logger.Warn("watch nodes", "err", err)
		return
	}
	changed := make(chan struct{}, 1)
	notice := func() {
		select {
		case changed <- struct{}{}:
		default:
		}
	}
	store, informer := client.Informer(kube.Nodes, kube.Selection{Trim: trimNode}, cache.ResourceEventHandlerFuncs{
		AddFunc:    func(any) { notice() },
		UpdateFunc: func(was, is any) { notifyIfMoved(was, is, notice) },
		DeleteFunc: func(any) { notice() },
	})
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	running.Go(func() { informer.RunWithContext(ctx) })
	defer running.Wait()
	defer cancel()
	tick := time.NewTicker(routesPeriod)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-changed:
		case <-tick.C:
		}
		if !informer.HasSynced() {
			continue
		}
		var nodes []corev1.Node
		for _, object := range store.List() {
			if node, ok := object.(*corev1.Node); ok {
				nodes = append(nodes, *node)
				if c.isAskedToLeave(node) {
					dismiss()
					return
				}
			}
		}
		if err := c.setRoutes(nodes); err != nil {
			c.logger.Warn("set routes to other nodes' pods", "err", err)
		}
	}
}

// trimNode removes from a Node everything except what routes need, and the annotation by which it is to leave.
func trimNode(o runtime.Object) {
	if node, ok := o.(*corev1.Node); ok {
		node.Annotations = map[string]string{annotationLeave: node.Annotations[annotationLeave]}
		node.Status = corev1.NodeStatus{Addresses: node.Status.Addresses}
	}
}

// notifyIfMoved calls notice if an update of a node may change routes. Most updates are heartbeats and do not.
func notifyIfMoved(was, is any, notice func()) {
	a, okA := was.(*corev1.Node)
	b, okB := is.(*corev1.Node)
	if okA && okB && a.Spec.PodCIDR == b.Spec.PodCIDR && internalIP(a) == internalIP(b) &&
		a.Annotations[annotationLeave] == b.Annotations[annotationLeave] {
		return
	}
	notice()
}

// checkNetworks returns an error if the network of pods or Services is also one of this machine's: its hosts would not
// be reached any more.
func (c *cluster) checkNetworks() error {
	var errs []error
	check := func(flag, value string) {
		network, err := netip.ParsePrefix(value)
		if err != nil {
			return // Validate has reported it
		}
		overlap, err := link.Overlapping(network, c.bridge())
		if err != nil || overlap == nil {
			errs = append(errs, err)
			return
		}
		help := "choose another --" + flag
		if c.o.joined() {
			help = "give this machine an address in another network, or start the cluster with another --" + flag
		}
		errs = append(errs, fmt.Errorf("--%s %s overlaps %s of interface %s: %s", flag, network, overlap.Address,
			overlap.Link, help))
	}
	if c.o.Agent && c.o.ContainerRuntimeEndpoint == "" {
		check("pod-cidr", c.o.PodCIDR)
	}
	if c.o.has(childKubeProxy) {
		check("service-cidr", c.o.ServiceCIDR)
	}
	return errors.Join(errs...)
}
