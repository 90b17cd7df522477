package cluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/plimsoll-dev/plimsoll/internal/cluster/progress"
	"github.com/plimsoll-dev/plimsoll/internal/cluster/supervise"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
	"github.com/plimsoll-dev/plimsoll/internal/host/link"
	"github.com/plimsoll-dev/plimsoll/internal/kube"
)

// Several nodes on this machine (`up --nodes N`). The first node is the machine itself, with the same name and ports as
// without the flag. Each further node, called a local node, is a network namespace in which a child of this supervisor
// runs `plimsoll join`, as it would run on another machine. A bridge connects the nodes. kube-apiserver and the first
// node have the first address of the bridge's network.
//
//	this machine                                 namespace plimsoll-2
//	  supervisor ---------- child node-2 ---------> plimsoll join: containerd, agent, kube-proxy
//	  kube-apiserver 10.87.0.1:6443 -- bridge -- veth -- eth0 10.87.0.2
//
// A local node's directories are nodes/NUMBER in those of the instance, so that `down` keeps or removes both together.

// A localNode is one of the nodes of `up --nodes` beside the first. It follows from the options alone and does not
// change.
type localNode struct {
	number    int        // from localNodeFirst
	child     string     // the name of the child that runs it
	name      string     // of the Node
	namespace string     // the network namespace
	cable     string     // the end of its cable on this machine
	address   netip.Addr // on the bridge's network; invalid if --node-cidr is
	o         Options    // of its instance: only what is needed to find its files
}

const (
	// localNodeFirst is the number of the first local node: the machine itself is number 1.
	localNodeFirst = 2
	// localNodeMemory is how much memory a local node needs before it has pods, for its supervisor, agent, containerd and
	// kube-proxy. Chosen: about twice what a node at rest adds without shared pages (70 MiB, bench/results/up.md), since
	// they need more while they work.
	localNodeMemory = 160 * unit.MiB
	// localJoinTimeout is how long a local node may take to be Ready (chosen). At `up` the shorter --timeout counts. When
	// a local node is restarted later, the machine may be busy.
	localJoinTimeout = 10 * time.Minute
	// localTokenLife is how long a token of local nodes lasts (chosen). A new one is made when one is needed.
	localTokenLife = time.Hour
	// localLink is the name of the network interface in a local node's namespace, as on many machines.
	localLink = "eth0"
)

// localNode returns a local node by its number.
func (l layout) localNode(number int) localNode {
	suffix := "-" + strconv.Itoa(number)
	n := localNode{
		number:    number,
		child:     "node" + suffix,
		name:      l.o.NodeName + suffix,
		namespace: l.o.fullName() + suffix,
		cable:     l.linkName(suffix),
		o:         Options{Instance: l.o.Instance + "." + strconv.Itoa(number), Agent: true},
	}
	n.o.StateDir = l.state(nodesDirectory, strconv.Itoa(number))
	n.o.RunDir = l.run(nodesDirectory, strconv.Itoa(number))
	n.o.NodeName = n.name
	if network, err := netip.ParsePrefix(l.o.NodeCIDR); err == nil {
		n.address = network.Addr()
		for range number {
			n.address = n.address.Next()
		}
		n.o.NodeIP = n.address.String()
	}
	return n
}

// nodesDirectory has the directories of the local nodes, in each of those of their instance.
const nodesDirectory = "nodes"

// localNodes returns the local nodes that the options ask for.
func (l layout) localNodes() (all []localNode) {
	for number := localNodeFirst; number <= l.o.Nodes; number++ {
		all = append(all, l.localNode(number))
	}
	return all
}

// knownNodes returns the local nodes that the options ask for or that have state from an earlier run.
func (l layout) knownNodes() ([]localNode, error) {
	all := l.localNodes()
	entries, err := os.ReadDir(l.state(nodesDirectory))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("find this machine's nodes: %w", err)
	}
	for _, e := range entries {
		number, err := strconv.Atoi(e.Name())
		if err == nil && number >= localNodeFirst && number > l.o.Nodes {
			all = append(all, l.localNode(number))
		}
	}
	return all, nil
}

// wanted reports whether the options ask for the local node.
func (l layout) wanted(n localNode) bool { return n.number <= l.o.Nodes }

// localNodeSpec returns the child that runs a local node.
func (c *cluster) localNodeSpec(n localNode) (supervise.Spec, error) {
	hash, err := c.authorityHash()
	if err != nil {
		return supervise.Spec{}, err
	}
	images, err := c.imageDir()
	if err != nil {
		return supervise.Spec{}, err
	}
	port := func(flag string, number int) string { return "--" + flag + "=" + strconv.Itoa(number) }
	argv := []string{
		c.build.plimsoll, "join", c.o.publicURL(),
		"--instance=" + n.o.Instance,
		"--state-dir=" + n.o.StateDir,
		"--run-dir=" + n.o.RunDir,
		"--node-name=" + n.name,
		"--node-ip=" + n.address.String(),
		"--token-file=" + c.nodeToken(),
		"--discovery-token-ca-cert-hash=" + hash,
		"--timeout=" + localJoinTimeout.String(),
		"--controlplane-binary=" + c.build.controlplane,
		"--image-dir=" + images,
		"--registries-dir=" + c.registries(),
		port("agent-port", c.o.AgentPort),
		port("agent-health-port", c.o.AgentHealthPort),
		port("kube-proxy-port", c.o.KubeProxyPort),
		port("kube-proxy-health-port", c.o.KubeProxyHealthPort),
	}
	for _, mirror := range c.o.RegistryMirrors {
		argv = append(argv, "--registry-mirror="+mirror)
	}
	if c.o.has(addonCSI) {
		argv = append(argv, "--storage-kubeconfig="+c.kubeconfig(whoStorage))
	}
	if c.o.AgentConfig != "" {
		argv = append(argv, "--agent-config="+c.o.AgentConfig)
	}
	if c.o.VolumesMax > 0 {
		argv = append(argv, "--volumes-max="+strconv.FormatInt(c.o.VolumesMax, 10))
	}
	return supervise.Spec{
		Name:      n.child,
		Argv:      argv,
		Env:       environment("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy"),
		Dir:       c.o.RunDir,
		Log:       c.log(n.child),
		Grace:     handoverTimeout,
		End:       unix.SIGUSR1, // it ends and leaves its own children running, for its successor
		Namespace: n.namespace,
	}, nil
}

// startLocalNodes removes the local nodes that the options no longer ask for, starts the others, and waits until these
// are Ready.
func (c *cluster) startLocalNodes(ctx context.Context, client *kube.Client) error {
	if err := c.removeLocalNodes(ctx, client); err != nil || !c.o.several() {
		return err
	}
	if err := errors.Join(c.masqueradeNodes(), c.keepToken(ctx, client)); err != nil {
		return err
	}
	signed := func(ctx context.Context) error { return c.tokenSigned(ctx, client) }
	err := c.await(ctx, "the token of this machine's nodes", signed, childControllerManager, childAPIServer)
	if err != nil {
		return err
	}
	// Processes of pods with user namespaces must be able to pass through it, as through the run directory
	// (makeDirectories).
	nodes := c.run(nodesDirectory)
	if err := errors.Join(os.MkdirAll(nodes, 0o711), os.Chmod(nodes, 0o711)); err != nil {
		return fmt.Errorf("make directories: %w", err)
	}
	var waits []func(context.Context) error
	for _, n := range c.localNodes() {
		if err := c.connectLocalNode(n); err != nil {
			return err
		}
		spec, err := c.localNodeSpec(n)
		if err != nil {
			return err
		}
		if err := c.apply(ctx, spec); err != nil {
			return err
		}
		ready := func(ctx context.Context) error {
			if err := nodeReady(ctx, client, n.name, c.startOf(n.child)); err != nil || !c.o.has(childKubeProxy) {
				return err
			}
			return proxyReady(ctx, address(n.address.String(), c.o.KubeProxyHealthPort))
		}
		waits = append(waits, c.step("node "+n.name, "Ready", ready, n.child, childAPIServer))
		if c.o.has(addonCSI) {
			waits = append(waits, func(ctx context.Context) error { return c.awaitDriver(ctx, client, n.name, n.child) })
		}
	}
	if err := parallel(ctx, waits...); err != nil {
		return err
	}
	return c.keepToken(ctx, client) // deletes it: no node needs it any more
}

// removeLocalNodes removes nodes of an earlier run with a larger --nodes.
func (c *cluster) removeLocalNodes(ctx context.Context, client *kube.Client) error {
	all, err := c.knownNodes()
	if err != nil {
		return err
	}
	for _, n := range all {
		if c.wanted(n) {
			continue
		}
		name := n.name
		if kept, err := Load(n.o); err == nil {
			name = kept.NodeName
		}
		if err := c.takeLocalNodeDown(ctx, n, true); err != nil {
			return err
		}
		err := client.Delete(ctx, kube.Nodes, "", name, metav1.DeleteOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("remove node %s: %w", name, err)
		}
	}
	return nil
}

// keepLocalNodes repairs what local nodes need of this machine: network, cables and token. It does not restart nodes:
// they are children, which the supervisor restarts.
func (c *cluster) keepLocalNodes(ctx context.Context) {
	if !c.o.several() {
		return
	}
	client, err := c.client(whoLauncher)
	if err == nil {
		err = errors.Join(c.prepareNodeNetwork(), c.masqueradeNodes(), c.keepToken(ctx, client))
	}
	for _, n := range c.localNodes() {
		if err != nil {
			break
		}
		err = c.connectLocalNode(n)
	}
	if err != nil {
		c.logger.Warn("the network or the token of this machine's nodes could not be repaired", "err", err)
	}
}

// takeLocalNodesDown ends all local nodes at the same time.
func (c *cluster) takeLocalNodesDown(ctx context.Context) error {
	all, err := c.knownNodes()
	if err != nil {
		return err
	}
	errs := make([]error, len(all))
	var stopping sync.WaitGroup
	for i, n := range all {
		stopping.Go(func() { errs[i] = c.takeLocalNodeDown(ctx, n, false) })
	}
	stopping.Wait()
	return errors.Join(errs...)
}

// takeLocalNodeDown ends a local node by `plimsoll down` in its network namespace, which takes the node over from its
// supervisor if that still runs. With purge, its state is removed too.
func (c *cluster) takeLocalNodeDown(ctx context.Context, n localNode, purge bool) error {
	c.supervisor.Release(n.child) // it is not started again
	err := c.runDown(ctx, n, purge)
	if err == nil {
		c.supervisor.Stop(ctx, n.child, graceComponent)
	}
	if err == nil {
		err = errors.Join(link.Delete(n.cable), link.DeleteNamespace(n.namespace))
	}
	if err != nil {
		return fmt.Errorf("stop %s: %w", n.child, err)
	}
	return nil
}

// runDown runs `plimsoll down` for a local node.
func (c *cluster) runDown(ctx context.Context, n localNode, purge bool) error {
	if _, err := os.Stat(n.o.StateDir); errors.Is(err, fs.ErrNotExist) {
		return nil // the node was never started
	}
	return progress.Step(c.sink, "stop "+n.child, func() (string, error) {
		if err := link.EnsureNamespace(n.namespace); err != nil {
			return "", err
		}
		self, err := os.Executable()
		if err != nil {
			return "", fmt.Errorf("find this program: %w", err)
		}
		down := exec.CommandContext(ctx, self, "down", "--instance", n.o.Instance, "--state-dir", n.o.StateDir,
			"--run-dir", n.o.RunDir)
		if purge || !(layout{n.o}).exists() { // it has never joined: nothing is worth keeping
			down.Args = append(down.Args, "--purge")
		}
		var output bytes.Buffer
		down.Env = environment()
		down.Stdout, down.Stderr = &output, &output
		if err := link.Start(n.namespace, down); err != nil {
			return "", err
		}
		if err := down.Wait(); err != nil {
			return "", fmt.Errorf("%w: %s", err, strings.TrimSpace(output.String()))
		}
		return "", nil
	})
}

// localChildren returns the children of the local nodes. Their names begin with that of their node's child:
// node-2/agent.
func (l layout) localChildren() (all []supervise.Status, err error) {
	nodes, err := l.knownNodes()
	if err != nil {
		return nil, err
	}
	for _, n := range nodes {
		children, err := supervise.Read(layout{n.o}.record())
		if err != nil {
			return nil, err
		}
		for _, child := range children {
			child.Name = n.child + "/" + child.Name
			all = append(all, child)
		}
	}
	return all, nil
}

// isLocal reports whether the node of this name is the machine itself or a local node.
func (o *Options) isLocal(name string) bool {
	return o.Agent && name == o.NodeName ||
		slices.ContainsFunc(layout{*o}.localNodes(), func(n localNode) bool { return n.name == name })
}
