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

	"github.com/plimsoll-dev/plimsoll/internal/cluster/bootstrap"
	"github.com/plimsoll-dev/plimsoll/internal/cluster/progress"
	"github.com/plimsoll-dev/plimsoll/internal/cluster/supervise"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
	"github.com/plimsoll-dev/plimsoll/internal/host/durable"
	"github.com/plimsoll-dev/plimsoll/internal/host/link"
	"github.com/plimsoll-dev/plimsoll/internal/host/nat"
	"github.com/plimsoll-dev/plimsoll/internal/host/procfs"
	"github.com/plimsoll-dev/plimsoll/internal/kube"
)

// Several nodes on this machine (`up --nodes N`). The first is the machine itself, as without the flag: its name, its
// ports and what is reached on them stay the same. Each of the others, the local nodes, is a network namespace in which
// a child of this supervisor runs `plimsoll join`, as it would on another machine. A bridge connects them;
// kube-apiserver and the first node have the first address of its network.
//
//	this machine                                 namespace plimsoll-2
//	  supervisor ---------- child node-2 ---------> plimsoll join: containerd, agent, kube-proxy
//	  kube-apiserver 10.87.0.1:6443 -- bridge -- veth -- eth0 10.87.0.2
//
// A local node's directories are nodes/NUMBER in those of the instance, so that both are one in all that `down` keeps
// and removes.

// A localNode is one of the nodes beside the first.
type localNode struct {
	number    int // from 2
	child     string
	name      string // of the Node
	namespace string
	cable     string // the end on this machine
	address   netip.Addr
	o         Options // enough to find its files
}

// several reports whether the instance has local nodes.
func (o *Options) several() bool { return o.Nodes > 1 }

const (
	// localNodeFirst is the number of the first local node: the machine itself is number 1.
	localNodeFirst = 2
	// localNodeMemory is what a local node needs before it has pods: its supervisor, agent, containerd and kube-proxy,
	// with their heaps. Twice what one adds at rest, shared pages aside
	// (70 MiB, bench/results/up.md), since it may compute.
	localNodeMemory = 160 * unit.MiB
	// localJoinTimeout is how long a local node may take to be Ready. `up` gives up earlier (--timeout); later it is a
	// restart beside a machine that may be busy (chosen).
	localJoinTimeout = 10 * time.Minute
	// localTokenLife is how long a token of local nodes lasts (chosen). A new one is made when one is needed.
	localTokenLife = time.Hour
	// There is an eth0 on every node, for whoever looks.
	localLink = "eth0"
)

// fillNodes sets addresses that follow from the network between the nodes.
func (o *Options) fillNodes() {
	network, err := netip.ParsePrefix(o.NodeCIDR)
	if !o.several() || err != nil {
		return // Validate reports it
	}
	first := network.Masked().Addr().Next().String()
	if o.BindAddress == "" {
		o.BindAddress = first
	}
	if o.NodeIP == "" {
		o.NodeIP = first
	}
}

// validateNodes returns what is wrong with --nodes and what belongs to it.
func (o *Options) validateNodes() (problems []error) {
	bad := func(format string, args ...any) {
		problems = append(problems, fmt.Errorf("--nodes %d: "+format, append([]any{o.Nodes}, args...)...))
	}
	if o.Nodes < 0 {
		bad("want 1 or more")
	}
	if !o.several() {
		return problems
	}
	for _, c := range []struct {
		is  bool
		why string
	}{
		{!o.Agent, "needs root, and has no effect with --no-agent: --hollow N adds nodes that run no containers"},
		{o.NoControllerManager, "--no-controller-manager: the certificates of nodes are signed by it"},
		{o.AgentBinary != "", "--agent-binary: only one node runs another agent than ours"},
		{o.ContainerRuntimeEndpoint != "", "--container-runtime-endpoint: every node needs a runtime of its own"},
	} {
		if c.is {
			bad("%s", c.why)
		}
	}
	if last := (layout{*o}).localNode(o.Nodes); o.has(addonCSI) && len(last.name) > driverNodeMax {
		bad("--node-name %s: volumes have the name %s in a label, whose limit is %d characters: choose a shorter one, or "+
			"leave volumes out with --without %s", o.NodeName, last.name, driverNodeMax, addonCSI)
	}
	network, err := netip.ParsePrefix(o.NodeCIDR)
	if err != nil || network != network.Masked() || !network.Addr().Is4() {
		return append(problems, fmt.Errorf("--node-cidr %q: not an IPv4 network in CIDR form, like 10.87.0.0/24",
			o.NodeCIDR))
	}
	problems = append(problems, o.validateNodeNetwork(network)...)
	for flag, value := range map[string]string{"bind-address": o.BindAddress, "node-ip": o.NodeIP} {
		if first := network.Addr().Next().String(); value != first {
			bad("--%s %s: its nodes reach the API server at %s, the first address of --node-cidr: leave --%s out",
				flag, value, first, flag)
		}
	}
	for _, text := range o.RegistryMirrors {
		if mirror := onLoopback(text); mirror != "" {
			bad("--registry-mirror %s: the loopback of this machine is not reached from its other nodes: let the mirror "+
				"listen on all addresses and name it by %s", mirror, network.Addr().Next())
		}
	}
	return problems
}

// onLoopback returns the mirror if its host is a loopback address or localhost.
func onLoopback(mirror string) string {
	_, address, _ := strings.Cut(mirror, "://")
	host, _, _ := strings.Cut(address, "/")
	host = strings.TrimSuffix(strings.TrimRight(host, "0123456789"), ":")
	if ip, err := netip.ParseAddr(strings.Trim(host, "[]")); host == "localhost" || err == nil && ip.IsLoopback() {
		return mirror
	}
	return ""
}

// validateNodeNetwork checks that the networks have room for the nodes and do not overlap.
func (o *Options) validateNodeNetwork(network netip.Prefix) (problems []error) {
	for flag, value := range map[string]string{"pod-cidr": o.PodCIDR, "service-cidr": o.ServiceCIDR} {
		if other, err := netip.ParsePrefix(value); err == nil && other.Overlaps(network) {
			problems = append(problems, fmt.Errorf("--node-cidr %s: overlaps --%s %s", network, flag, value))
		}
	}
	const reserved = 2 // the network's own address and that of all in it
	if room := 1<<(32-network.Bits()) - reserved; o.Nodes > room {
		problems = append(problems, fmt.Errorf("--nodes %d: --node-cidr %s has addresses for %d", o.Nodes, network,
			max(room, 0)))
	}
	if pods, err := netip.ParsePrefix(o.PodCIDR); err == nil && pods.Addr().Is4() {
		if room := 1 << max(o.nodeMask()-pods.Bits(), 0); o.Nodes > room {
			problems = append(problems, fmt.Errorf("--nodes %d: --pod-cidr %s has room for %d: each node gets a /%d of it",
				o.Nodes, pods, room, o.nodeMask()))
		}
	}
	return problems
}

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

// nodeBridge is the network interface that connects the nodes of this machine.
func (l layout) nodeBridge() string { return l.linkName("-nodes") }

// nodeToken is the file with the token of local nodes that have no certificate yet.
func (l layout) nodeToken() string { return l.run("nodes.token") }

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

// wanted reports whether the options ask for a local node.
func (l layout) wanted(n localNode) bool { return n.number <= l.o.Nodes }

// prepareNodeNetwork makes the bridge between the nodes, which has the address on which kube-apiserver will listen.
func (c *cluster) prepareNodeNetwork() error {
	if !c.o.several() {
		return nil
	}
	network, err := netip.ParsePrefix(c.o.NodeCIDR)
	if err != nil {
		return err // Validate has reported it
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

// leadOut lets the local nodes reach what is beyond this machine, to pull images.
func (c *cluster) leadOut() error {
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

// connect makes a local node's network namespace and its cable.
func (c *cluster) connect(n localNode) error {
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
	return supervise.Spec{
		Name:      n.child,
		Argv:      argv,
		Env:       environment("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy"),
		Dir:       c.o.RunDir,
		Log:       c.log(n.child),
		Grace:     handoverTimeout,
		End:       unix.SIGUSR1, // it leaves its own children to the next one
		Namespace: n.namespace,
	}, nil
}

// startLocalNodes starts the local nodes, ends those that the options do not want any more, and waits until the others
// are Ready.
func (c *cluster) startLocalNodes(ctx context.Context, client *kube.Client) error {
	if err := c.removeLocalNodes(ctx, client); err != nil || !c.o.several() {
		return err
	}
	if err := errors.Join(c.leadOut(), c.keepToken(ctx, client)); err != nil {
		return err
	}
	signed := func(ctx context.Context) error { return c.tokenSigned(ctx, client) }
	err := c.await(ctx, "the token of this machine's nodes", signed, childControllerManager, childAPIServer)
	if err != nil {
		return err
	}
	// Pods with users of their own pass through it, as through the run directory (makeDirectories).
	nodes := c.run(nodesDirectory)
	if err := errors.Join(os.MkdirAll(nodes, 0o711), os.Chmod(nodes, 0o711)); err != nil {
		return fmt.Errorf("make directories: %w", err)
	}
	var waits []func(context.Context) error
	for _, n := range c.localNodes() {
		if err := c.connect(n); err != nil {
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
	return c.keepToken(ctx, client) // none needs it any more
}

// tokenSigned returns nil once cluster-info is signed with the token of local nodes, by which they recognize the
// cluster, or if there is no token.
func (c *cluster) tokenSigned(ctx context.Context, client *kube.Client) error {
	text, err := os.ReadFile(c.nodeToken())
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return bootstrap.Signed(ctx, client, string(bytes.TrimSpace(text)))
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

// keepToken keeps a token for local nodes while one of them needs it to join.
func (c *cluster) keepToken(ctx context.Context, client *kube.Client) error {
	needed, err := c.tokenNeeded()
	if err != nil {
		return err
	}
	path := c.nodeToken()
	if !needed {
		return c.dropToken(ctx, client)
	}
	if info, err := os.Stat(path); err == nil && time.Since(info.ModTime()) < localTokenLife/2 {
		return nil
	}
	token, err := bootstrap.CreateToken(ctx, client, localTokenLife, "nodes of this machine (plimsoll up --nodes)")
	if err != nil {
		return err
	}
	return durable.Write(path, []byte(token+"\n"))
}

// dropToken deletes the token of local nodes, if there is one.
func (c *cluster) dropToken(ctx context.Context, client *kube.Client) error {
	text, err := os.ReadFile(c.nodeToken())
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	err = bootstrap.ForgetToken(ctx, client, string(bytes.TrimSpace(text)))
	if err != nil && !apierrors.IsNotFound(err) {
		return err
	}
	return os.Remove(c.nodeToken())
}

// tokenNeeded reports whether a local node has no certificate with which it could ask for others.
func (c *cluster) tokenNeeded() (bool, error) {
	text, err := c.keptAuthority()
	if err != nil {
		return false, err
	}
	authority, err := bootstrap.ParseAuthority(text)
	if err != nil {
		return false, err
	}
	for _, n := range c.localNodes() {
		identity, _ := layout{n.o}.identities()
		if why, _ := identity.Due(authority, time.Now()); why != "" && why != bootstrap.ExpiresSoon {
			return true, nil
		}
	}
	return false, nil
}

// keepLocalNodes repairs what local nodes need of this machine. Their supervisors are children, which are restarted.
func (c *cluster) keepLocalNodes(ctx context.Context) {
	if !c.o.several() {
		return
	}
	client, err := c.client(whoLauncher)
	if err == nil {
		err = errors.Join(c.prepareNodeNetwork(), c.leadOut(), c.keepToken(ctx, client))
	}
	for _, n := range c.localNodes() {
		if err != nil {
			break
		}
		err = c.connect(n)
	}
	if err != nil {
		c.logger.Warn("keep the nodes of this machine", "err", err)
	}
}

// takeLocalNodesDown ends all local nodes, together.
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

// removeNodeNetwork removes the network between the nodes, when nothing has connections by its address any more: such
// connections would not end.
func (c *cluster) removeNodeNetwork() error {
	all, err := c.knownNodes()
	if err != nil || len(all) == 0 {
		return err
	}
	return errors.Join(link.DeleteBridge(c.nodeBridge()), nat.Delete(c.nodeBridge()))
}

// takeLocalNodeDown ends a local node by `plimsoll down` in its network namespace, which takes it over from its
// supervisor, if that lives. With purge its state is removed too.
func (c *cluster) takeLocalNodeDown(ctx context.Context, n localNode, purge bool) error {
	c.supervisor.Release(n.child) // it is not started again
	err := c.downInside(ctx, n, purge)
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

// downInside runs `plimsoll down` for a local node.
func (c *cluster) downInside(ctx context.Context, n localNode, purge bool) error {
	if _, err := os.Stat(n.o.StateDir); errors.Is(err, fs.ErrNotExist) {
		return nil // it has not begun
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
		if purge || !(layout{n.o}).exists() { // without options it has joined nothing
			down.Args = append(down.Args, "--purge")
		}
		var said bytes.Buffer
		down.Env = environment()
		down.Stdout, down.Stderr = &said, &said
		if err := link.Start(n.namespace, down); err != nil {
			return "", err
		}
		if err := down.Wait(); err != nil {
			return "", fmt.Errorf("%w: %s", err, strings.TrimSpace(said.String()))
		}
		return "", nil
	})
}

// localChildren returns the children of the local nodes, each with its node's child before its name.
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

// isLocal reports whether the node of this name is one of this machine's.
func (o *Options) isLocal(name string) bool {
	return o.Agent && name == o.NodeName ||
		slices.ContainsFunc(layout{*o}.localNodes(), func(n localNode) bool { return n.name == name })
}
