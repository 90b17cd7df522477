package cluster

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/plimsoll-dev/plimsoll/internal/cluster/progress"
	"github.com/plimsoll-dev/plimsoll/internal/cluster/supervise"
	"github.com/plimsoll-dev/plimsoll/internal/host/nat"
	"github.com/plimsoll-dev/plimsoll/internal/host/procfs"
)

// Services: upstream's kube-proxy programs the kernel so that the addresses of Services lead to pods. It is a child and
// not a pod, because pods may need a Service, that of kube-apiserver, before kube-proxy could start as a pod.
//
// kube-apiserver listens on the loopback by default, which no pod can reach. Where our containerd runs the pods, the
// kernel translates two addresses for them to the loopback (forwards): that of the Service "kubernetes", and that of
// the pods' bridge, which is the address of the Service's endpoint. No other machine can reach either.

// addons are the names of the add-ons, which --without may leave out.
var addons = []string{childKubeProxy, addonDNS, addonMetrics, addonCSI}

// has reports whether the instance has an add-on. All are for pods, so an instance without an agent has none. A machine
// that joined has the add-on for volumes only if it has a kubeconfig for it (StorageKubeconfig).
func (o *Options) has(addon string) bool {
	return o.Agent && !slices.Contains(o.Without, addon) && !(addon == addonCSI && o.joined() && o.StorageKubeconfig == "")
}

func (o *Options) validateAddons() (problems []error) {
	for _, name := range o.Without {
		if !slices.Contains(addons, name) {
			problems = append(problems, fmt.Errorf("--without %q: want %s", name, strings.Join(addons, " or ")))
		}
	}
	if o.has(addonCSI) && len(o.NodeName) > driverNodeMax {
		problems = append(problems,
			fmt.Errorf("--node-name %s: %d characters: volumes have the name in a label, whose limit "+
				"is %d: choose a shorter one, or leave volumes out with --without %s", o.NodeName, len(o.NodeName), driverNodeMax,
				addonCSI))
	}
	return problems
}

// forwardsPods reports whether pods reach a kube-apiserver on the loopback by forwards.
func (o *Options) forwardsPods() bool {
	bind, err := netip.ParseAddr(o.BindAddress)
	return err == nil && bind.Is4() && bind.IsLoopback() && o.Agent && o.ContainerRuntimeEndpoint == ""
}

// gateway returns the address of the pods' bridge: the first of their network.
func (o *Options) gateway() netip.Addr {
	pods, err := netip.ParsePrefix(o.PodCIDR)
	if err != nil {
		return netip.Addr{} // Validate has reported it
	}
	return pods.Addr().Next()
}

// advertiseAddress returns the address of kube-apiserver that its Service's endpoint has.
func (o *Options) advertiseAddress() string {
	if o.forwardsPods() {
		return o.gateway().String()
	}
	return o.NodeIP
}

// portOfKubernetes is the port of the Service "kubernetes".
const portOfKubernetes = 443

// forwards returns the addresses at which pods reach servers on the loopback: kube-apiserver at the address of its
// Service and of the Service's endpoint, and the agent at its Node's address, for metrics-server and other scrapers.
func (o *Options) forwards() []nat.Forward {
	if !o.forwardsPods() {
		return nil
	}
	loopback := netip.MustParseAddr(o.BindAddress)
	apiServer := netip.AddrPortFrom(loopback, uint16(o.APIServerPort))
	all := []nat.Forward{{From: netip.AddrPortFrom(o.gateway(), apiServer.Port()), To: apiServer}}
	if first, ok := netip.AddrFromSlice(o.firstServiceIP()); ok && first.Is4() {
		// Several instances on a machine may have the same network of Services. At most one of them has a kube-proxy here.
		all = append(all, nat.Forward{
			From: netip.AddrPortFrom(first, portOfKubernetes), To: apiServer, PodsOnly: !o.has(childKubeProxy)})
	}
	if node, err := netip.ParseAddr(o.NodeIP); err == nil && node.Is4() && !node.IsLoopback() {
		port := uint16(o.AgentPort)
		all = append(all, nat.Forward{From: netip.AddrPortFrom(node, port), To: netip.AddrPortFrom(loopback, port)})
	}
	return all
}

// Modes of kube-proxy.
const (
	modeNFTables = "nftables"
	modeIPTables = "iptables"
)

// The first kernel on which kube-proxy uses nftables, Linux 5.13 (supported.go in its package nftables).
const (
	nftablesMajor = 5
	nftablesMinor = 13
)

// proxyMode returns how kube-proxy programs the kernel: by nftables where kernel and machine have it, else by iptables.
func proxyMode(has func(program string) bool, release string) (string, error) {
	old := before(release, nftablesMajor, nftablesMinor)
	switch {
	case !old && has("nft"):
		return modeNFTables, nil
	case has("iptables") && has("iptables-save") && has("iptables-restore"):
		return modeIPTables, nil
	}
	program, pkg := "nft", "nftables"
	if old {
		program, pkg = "iptables", "iptables"
	}
	return "",
		fmt.Errorf("run kube-proxy: %s is not on this machine: install with: apt-get install -y --no-install-recommends "+
			"%s; or leave it out with --without %s: then Services have no addresses",
			program, pkg, childKubeProxy)
}

// before reports whether a kernel's release, like 6.1.0-18-amd64, is older than a version. A release that cannot be
// parsed is not.
func before(release string, major, minor int) bool {
	parts := strings.SplitN(release, ".", 3)
	if len(parts) < 2 {
		return false
	}
	m, err := strconv.Atoi(parts[0])
	if err != nil {
		return false
	}
	n, err := strconv.Atoi(parts[1])
	return err == nil && (m < major || m == major && n < minor)
}

// isProgram reports whether the children's PATH has a program.
func isProgram(name string) bool {
	for _, dir := range filepath.SplitList(searchPath) {
		if unix.Access(filepath.Join(dir, name), unix.X_OK) == nil {
			return true
		}
	}
	return false
}

// checkKubeProxy finds the mode of kube-proxy. It returns an error if another kube-proxy runs in this network
// namespace, because both would write the same tables.
func (c *cluster) checkKubeProxy() (err error) {
	if !c.o.has(childKubeProxy) {
		if c.o.has(addonDNS) {
			c.sink.Show(progress.Event{Step: "--without " + childKubeProxy, Phase: progress.Note,
				Detail: "pods reach the cluster's DNS only if another program programs Services; if none does, leave out " +
					addonDNS + " too"})
		}
		return nil
	}
	release, err := procfs.Default.KernelVersion()
	if err != nil {
		return err
	}
	if c.build.proxyMode, err = proxyMode(isProgram, release); err != nil {
		return err
	}
	pid, err := otherKubeProxy(c.supervisor.Pids())
	if err != nil || pid == 0 {
		return err
	}
	return fmt.Errorf("run kube-proxy: pid %d is a kube-proxy in this network namespace, "+
		"and both would write the same tables: stop it, run this instance in a network namespace of its own, "+
		"or leave ours out with --without %s",
		pid, childKubeProxy)
}

// otherKubeProxy returns the pid of a kube-proxy in this network namespace that is not ours; 0: there is none.
func otherKubeProxy(ours []int) (int, error) {
	pids, err := procfs.Default.ProcessIDs()
	if err != nil {
		return 0, err
	}
	here, err := os.Readlink("/proc/self/ns/net")
	if err != nil {
		return 0, fmt.Errorf("find other kube-proxies: %w", err)
	}
	for _, pid := range pids {
		if slices.Contains(ours, pid) {
			continue
		}
		words, err := procfs.Default.Arguments(pid)
		if err != nil || !isKubeProxy(words) {
			continue // it has ended
		}
		if there, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/net", pid)); err == nil && there == here {
			return pid, nil
		}
	}
	return 0, nil
}

// isKubeProxy reports whether a command line is that of kube-proxy, either upstream's program or plimsoll-controlplane.
func isKubeProxy(words []string) bool {
	if len(words) == 0 {
		return false
	}
	name := filepath.Base(words[0])
	return name == childKubeProxy || name == controlplaneName && len(words) > 1 && words[1] == childKubeProxy
}

// kubeProxy returns the child kube-proxy. It leaves the kernel's limits of tracked connections as they are
// (--conntrack-...).
func (b builder) kubeProxy() supervise.Spec {
	kubeconfig := b.kubeconfig(whoKubeProxy)
	args := []string{
		"--kubeconfig=" + kubeconfig,
		"--hostname-override=" + b.o.NodeName,
		"--proxy-mode=" + b.proxyMode,
		"--conntrack-max-per-core=0",
		"--conntrack-tcp-timeout-established=0s",
		"--conntrack-tcp-timeout-close-wait=0s",
		"--healthz-bind-address=" + address(b.o.BindAddress, b.o.KubeProxyHealthPort),
		"--metrics-bind-address=" + address(b.o.localAddress(), b.o.KubeProxyPort),
	}
	if b.o.ContainerRuntimeEndpoint == "" { // the pods of another runtime may have other addresses
		args = append(args, "--cluster-cidr="+b.o.PodCIDR)
	}
	spec := b.upstream(childKubeProxy, graceComponent, []string{kubeconfig, b.certificateOf(whoKubeProxy)}, args...)
	spec.Env = environment() // --gc-percent is for the control plane
	return spec
}

// address joins a host and a port; empty for port 0, which switches a server off.
func address(host string, port int) string {
	if port == 0 {
		return ""
	}
	return net.JoinHostPort(host, strconv.Itoa(port))
}

// servicesReady returns nil if kube-proxy reports that it has programmed the Services.
func (c *cluster) servicesReady(ctx context.Context) error {
	return proxyReady(ctx, address(c.o.localAddress(), c.o.KubeProxyHealthPort))
}

// proxyReady is servicesReady for the kube-proxy whose /healthz is at an address; empty: that server is switched off.
func proxyReady(ctx context.Context, at string) error {
	if at == "" {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, healthTimeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+at+"/livez", nil)
	if err != nil {
		return err
	}
	answer, err := healthClient.Do(request)
	if err != nil {
		return fmt.Errorf("ask kube-proxy: %w", err)
	}
	answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return fmt.Errorf("ask kube-proxy: it answers %s", answer.Status)
	}
	return nil
}

// healthTimeout bounds one request to a child on this machine (chosen).
const healthTimeout = 2 * time.Second

// healthClient is for requests to children on this machine. It ignores the proxy settings of the caller's shell.
var healthClient = &http.Client{Transport: &http.Transport{Proxy: nil, DisableKeepAlives: true}}

// cleanTimeout bounds `kube-proxy --cleanup` (chosen; it takes about 0.2 s on an idle machine).
const cleanTimeout = 20 * time.Second

// cleanServices removes what kube-proxy has written into the kernel, if it ran since the machine was booted.
func (c *cluster) cleanServices(ctx context.Context) error {
	if _, err := os.Stat(c.servicesRecord()); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	b, err := c.programs()
	if err != nil {
		return fmt.Errorf("remove the rules of Services: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, cleanTimeout)
	defer cancel()
	clean := exec.CommandContext(ctx, b.controlplane, childKubeProxy, "--cleanup")
	clean.Env = environment()
	if said, err := clean.CombinedOutput(); err != nil {
		return fmt.Errorf("remove the rules of Services: %s: %w: %s", strings.Join(clean.Args, " "), err,
			strings.TrimSpace(string(said)))
	}
	return os.Remove(c.servicesRecord())
}

// recordServices records that kube-proxy is about to run, so that `down` removes its rules.
func (c *cluster) recordServices() error { return os.WriteFile(c.servicesRecord(), nil, 0o600) }
