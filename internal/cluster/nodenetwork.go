package cluster

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/plimsoll-dev/plimsoll/internal/cluster/progress"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
	"github.com/plimsoll-dev/plimsoll/internal/host/link"
	"github.com/plimsoll-dev/plimsoll/internal/host/nat"
	"github.com/plimsoll-dev/plimsoll/internal/host/procfs"
)

// nodeBridge is the network interface that connects the nodes of this machine.
func (l layout) nodeBridge() string { return l.linkName("-nodes") }

// prepareNodeNetwork makes the bridge between the nodes, with the address on which kube-apiserver will listen. It
// returns an error if the machine lacks the address range or the memory for the nodes.
func (c *cluster) prepareNodeNetwork() error {
	if !c.o.several() {
		return nil
	}
	network, err := netip.ParsePrefix(c.o.NodeCIDR)
	if err != nil {
		return err // cannot be: Validate has checked it
	}
	attached, err := link.Attached(c.nodeBridge())
	if err != nil {
		return err
	}
	for _, other := range attached {
		if other.Overlaps(network) {
			return fmt.Errorf("make the network of --nodes %d: --node-cidr %s overlaps %s, a network that this machine "+
				"has: choose another --node-cidr", c.o.Nodes, network, other)
		}
	}
	if err := c.checkNodeMemory(); err != nil {
		return err
	}
	return link.EnsureBridge(c.nodeBridge(), netip.PrefixFrom(network.Addr().Next(), network.Bits()))
}

// checkNodeMemory returns an error if the local nodes that do not run yet would not fit into the machine's memory.
func (c *cluster) checkNodeMemory() error {
	memory, err := procfs.Default.Memory()
	if err != nil {
		return err
	}
	missing := c.o.Nodes - 1
	for _, s := range c.supervisor.Status() {
		if s.PID != 0 && slices.ContainsFunc(c.localNodes(), func(n localNode) bool { return n.child == s.Name }) {
			missing--
		}
	}
	available, known := memory.Available.Get()
	if needs := unit.Bytes(missing) * localNodeMemory; known && needs > available {
		return fmt.Errorf("start %d nodes beside the first: they need %s of memory before they have pods, %s are "+
			"available: choose fewer --nodes, or --hollow %d, which run no containers", missing, mebibytes(needs),
			mebibytes(available), missing)
	}
	return nil
}

// masqueradeNodes lets the local nodes reach what is beyond this machine, to pull images.
func (c *cluster) masqueradeNodes() error {
	network, err := netip.ParsePrefix(c.o.NodeCIDR)
	if err != nil {
		return err
	}
	pods, err := netip.ParsePrefix(c.o.PodCIDR)
	if err != nil {
		return err
	}
	err = nat.Masquerade(c.nodeBridge(), network, pods)
	if errors.Is(err, nat.ErrUnsupported) {
		c.sink.Show(progress.Event{Step: "--nodes", Phase: progress.Note,
			Detail: err.Error() + ": nodes beside the first reach nothing beyond this machine"})
		return nil
	}
	return err
}

// connectLocalNode makes a local node's network namespace and its cable.
func (c *cluster) connectLocalNode(n localNode) error {
	network, err := netip.ParsePrefix(c.o.NodeCIDR)
	if err != nil {
		return err
	}
	if err := link.EnsureNamespace(n.namespace); err != nil {
		return err
	}
	return link.Connect(link.Cable{
		Bridge:    c.nodeBridge(),
		Here:      n.cable,
		Namespace: n.namespace,
		There:     localLink,
		Address:   netip.PrefixFrom(n.address, network.Bits()),
		Gateway:   network.Addr().Next(),
	})
}

// removeNodeNetwork removes the network between the nodes. Call it when no process has connections over it any more,
// because these would not end.
func (c *cluster) removeNodeNetwork() error {
	all, err := c.knownNodes()
	if err != nil || len(all) == 0 {
		return err
	}
	return errors.Join(link.DeleteBridge(c.nodeBridge()), nat.Delete(c.nodeBridge()))
}
