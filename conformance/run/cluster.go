package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"
)

// The cluster's name and addresses. Its network namespace contains no others, so they cannot conflict.
const (
	nodeName = "conformance"
	nodeIP   = "172.31.255.1" // on the loopback interface, but not a loopback address
	podCIDR  = "10.85.0.0/16"
	svcCIDR  = "10.96.0.0/16"
	nodeCIDR = "10.87.0.0/24" // between several nodes
	serverIP = "10.87.0.1"    // with several nodes: the first of nodeCIDR
)

// agentConfig is the agent's configuration in addition to that of `up`. Upstream's kubelet does not start on cgroup v1
// without failCgroupV1. Images that no container uses stay, also on a disk that is nearly full: they were imported, and
// cannot be pulled (two tests failed by that on a machine whose disk passed 85%, the default).
const agentConfig = `apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
failCgroupV1: false
failSwapOn: false
imageGCHighThresholdPercent: 100
`

// Bounds on operations that take long only if something is wrong.
const (
	upTimeout   = 3 * time.Minute
	downTimeout = 4 * time.Minute
	stopTimeout = 30 * time.Second
)

// cluster is one instance of `plimsoll up`, with its add-ons.
type cluster struct {
	config
	name  string // of the instance; unique among runs, because there are no namespaces of cgroup paths
	dir   string
	store *registry
	guard io.Closer // if this process dies before it closes guard, the guard takes the instance down
}

func newCluster(c config) (*cluster, error) {
	dir, err := os.MkdirTemp("", "pl-") // a short name: socket paths have at most 107 characters
	return &cluster{config: c, name: "conf-" + strconv.Itoa(os.Getpid()), dir: dir}, err
}

func (k *cluster) state() string      { return filepath.Join(k.dir, "s") }
func (k *cluster) kubeconfig() string { return filepath.Join(k.state(), "admin.kubeconfig") }
func (k *cluster) agentRoot() string  { return filepath.Join(k.state(), "agent") }
func (k *cluster) runtime() string    { return filepath.Join(k.state(), "run", "containerd.sock") }

// up starts the cluster and imports the images of the tests.
func (k *cluster) up(ctx context.Context) error {
	if err := addresses(); err != nil {
		return err
	}
	if err := k.watchOver(); err != nil {
		return err
	}
	file := filepath.Join(k.dir, "agent.yaml")
	if err := os.WriteFile(file, []byte(agentConfig), 0o600); err != nil {
		return err
	}
	var err error
	if k.store, err = startRegistry(ctx, k.config, filepath.Join(k.dir, "registry")); err != nil {
		return err
	}
	progress("plimsoll up")
	mirror, network := registryAddress, []string{"--bind-address", "0.0.0.0", "--node-ip", nodeIP}
	if k.nodes > 1 {
		mirror = net.JoinHostPort(serverIP, registryPort)
		network = []string{"--nodes", strconv.Itoa(k.nodes), "--node-cidr", nodeCIDR}
	}
	up := append([]string{"up", "--detach", "--instance", k.name, "--state-dir", k.state(),
		"--node-name", nodeName, "--pod-cidr", podCIDR, "--service-cidr", svcCIDR,
		"--registry-mirror", mirrored + "=http://" + mirror,
		"--agent-config", file, "--timeout", upTimeout.String()}, network...)
	if k.volumesMax != 0 {
		up = append(up, "--volumes-max", strconv.Itoa(k.volumesMax))
	}
	if k.agent != "" {
		up = append(up, "--agent-binary", k.agent)
	}
	if err := k.call(ctx, k.plimsoll, up...); err != nil {
		return err
	}
	progress("import images")
	archive := filepath.Join(k.programs, "images.tar")
	for node := range k.nodes {
		if err := k.ctr(ctx, k.runtimeOf(node+1), "images", "import", archive); err != nil {
			return err
		}
	}
	return k.push(ctx)
}

// runtimeOf returns the socket of a node's runtime; nodes are counted from 1.
func (k *cluster) runtimeOf(node int) string {
	if node == 1 {
		return k.runtime()
	}
	return filepath.Join(k.state(), "run", "nodes", strconv.Itoa(node), "containerd.sock")
}

// ctr calls containerd's client.
func (k *cluster) ctr(ctx context.Context, socket string, args ...string) error {
	return k.call(ctx, "ctr", append([]string{"--address", socket, "--namespace", "k8s.io"}, args...)...)
}

// addresses adds the network namespace's only address, and a route to Services.
func addresses() error {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return fmt.Errorf("find the loopback interface: %w", err)
	}
	if err := netlink.LinkSetUp(lo); err != nil {
		return fmt.Errorf("set the loopback interface up: %w", err)
	}
	address := &netlink.Addr{IPNet: &net.IPNet{IP: net.ParseIP(nodeIP), Mask: net.CIDRMask(32, 32)}}
	if err := netlink.AddrAdd(lo, address); err != nil {
		return fmt.Errorf("add address %s: %w", nodeIP, err)
	}
	// Pods in the node's network reach Services only if there is any route to them, which kube-proxy then overrules.
	_, services, err := net.ParseCIDR(svcCIDR)
	if err != nil {
		return err
	}
	if err := netlink.RouteAdd(&netlink.Route{LinkIndex: lo.Attrs().Index, Dst: services,
		Scope: netlink.SCOPE_LINK}); err != nil {
		return fmt.Errorf("add a route to %s: %w", svcCIDR, err)
	}
	return nil
}

// watchOver starts a process that takes the instance down and removes its files if this process dies before it has done
// so.
func (k *cluster) watchOver() error {
	guard := exec.Command("/bin/sh", "-c", `read end || { "$0" "$@"; rm -rf "${4%/*}"; }`,
		k.plimsoll, "down", "--purge", "--state-dir", k.state(), "--instance", k.name)
	guard.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	life, err := guard.StdinPipe()
	if err != nil {
		return err
	}
	k.guard = &dismissal{life, guard}
	return guard.Start()
}

type dismissal struct {
	io.WriteCloser
	guard *exec.Cmd
}

func (d *dismissal) Close() error {
	_, _ = fmt.Fprintln(d.WriteCloser, "all is well") // if the guard has died, Wait returns an error
	return d.guard.Wait()
}

// down saves the logs and removes everything else.
func (k *cluster) down(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, downTimeout)
	defer cancel()
	progress("plimsoll down")
	var errs []error
	if logs := filepath.Join(k.state(), "log"); exists(logs) {
		errs = append(errs, os.CopyFS(filepath.Join(k.logs, "components"), os.DirFS(logs)))
	}
	if exists(k.state()) {
		errs = append(errs, k.call(ctx, k.plimsoll, "down", "--purge", "--instance", k.name, "--state-dir", k.state()))
	}
	if k.store != nil {
		errs = append(errs, k.store.stop())
	}
	if k.guard != nil {
		errs = append(errs, k.guard.Close())
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("end the cluster: %w (what is left is in %s)", err, k.dir)
	}
	return os.RemoveAll(k.dir)
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// call runs a program to its end, in its own process group: Ctrl-C must not end a running `down`.
func (k *cluster) call(ctx context.Context, name string, args ...string) error {
	c := exec.CommandContext(ctx, name, args...)
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	c.Cancel = func() error { return c.Process.Signal(os.Interrupt) }
	c.WaitDelay = stopTimeout
	var said bytes.Buffer
	c.Stdout, c.Stderr = &said, &said
	if err := c.Run(); err != nil {
		return fmt.Errorf("%s: %w: %s", strings.Join(c.Args, " "), err, bytes.TrimSpace(said.Bytes()))
	}
	return nil
}
