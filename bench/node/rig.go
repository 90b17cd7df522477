package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/plimsoll-dev/plimsoll/bench/plane"
	"github.com/plimsoll-dev/plimsoll/bench/record"
)

// rig is one instance of `plimsoll up` with one agent.
type rig struct {
	config
	side
	plane  *plane.Plane
	api    *rest.Config
	client *kubernetes.Clientset
	pids   map[string]int // of the instance's children, by name

	save func() error // writes the report of what was measured so far

	restoreKubeletDir func() error // removes what the kubelet puts outside of our directories
}

// agentConfig is the configuration of both agents; `up` sets addresses, certificates and directories. failCgroupV1 and
// failSwapOn allow upstream's kubelet to start on any machine on which our agent starts. Without iptables chains the
// kubelet leaves nothing behind; with clusterDNS it need not record an Event about its absence for each pod.
const agentConfig = `apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
failCgroupV1: false
failSwapOn: false
maxPods: %d
makeIPTablesUtilChains: false
clusterDomain: cluster.local
clusterDNS: [%s]
`

// agentConfigFor returns the configuration for batches of these sizes.
func agentConfigFor(batches []int) string {
	return fmt.Sprintf(agentConfig, max(maxPodsLeast, slices.Max(batches)), clusterDNS)
}

// maxPodsLeast is the least maxPods: what the results of smaller batches were recorded with.
const maxPodsLeast = 200

const (
	nodeName   = "bench"
	podCIDR    = "10.86.0.0/16" // 65,534 addresses
	svcCIDR    = "10.97.0.0/16"
	clusterDNS = "10.97.0.10"
	// upTimeout matters only if something hangs.
	upTimeout = 2 * time.Minute
)

// portFlags get successive ports, starting with --port-base.
var portFlags = []string{"apiserver-port", "controller-manager-port", "agent-port", "agent-health-port"}

// agentPortOffset is the index of agent-port in portFlags.
const agentPortOffset = 2

// up starts the instance and returns the time until the node was Ready, as a user would measure it.
func (r *rig) up(ctx context.Context) (time.Duration, error) {
	if err := os.MkdirAll(r.plane.Dir, 0o700); err != nil {
		return 0, err
	}
	file := filepath.Join(r.plane.Dir, "agent-config.yaml")
	if err := os.WriteFile(file, []byte(agentConfigFor(r.batches)), 0o600); err != nil {
		return 0, err
	}
	r.restoreKubeletDir = plane.NoteKubeletDir()
	args := []string{"up", "--detach", "--instance", r.plane.Instance, "--state-dir", r.plane.State(), "--node-name",
		nodeName,
		"--pod-cidr", podCIDR, "--service-cidr", svcCIDR, "--agent-config", file, "--timeout", upTimeout.String(),
		"--without", r.without()}
	for i, flag := range portFlags {
		args = append(args, "--"+flag, strconv.Itoa(r.portBase+i))
	}
	if r.side.binary != "" {
		args = append(args, "--agent-binary", r.side.binary)
	}
	began := time.Now()
	if _, err := r.plane.Call(ctx, args...); err != nil {
		return 0, err
	}
	took := time.Since(began)
	if err := r.readPIDs(ctx); err != nil {
		return took, err
	}
	return took, r.connect()
}

// without returns the add-ons that are left out: volumes on demand are needed by pods with claims only.
func (c config) without() string {
	const always = "kube-proxy,coredns,metrics-server"
	if c.claims > 0 {
		return always
	}
	return always + ",csi"
}

func (r *rig) readPIDs(ctx context.Context) (err error) {
	if r.pids, err = r.plane.Children(ctx); err != nil {
		return err
	}
	for _, name := range []string{roleAgent, roleContainerd} {
		if r.pids[name] == 0 {
			return fmt.Errorf("read status: no process %q among %v", name, r.pids)
		}
	}
	return nil
}

// checkSameAgent checks that the numbers of a window belong to one process: a restarted one begins small.
func (r *rig) checkSameAgent(ctx context.Context) error {
	before := r.pids[roleAgent]
	if err := r.readPIDs(ctx); err != nil {
		return err
	}
	if now := r.pids[roleAgent]; now != before {
		return fmt.Errorf("the agent died and was started again (pid %d, then %d): see its log", before, now)
	}
	return nil
}

func (r *rig) connect() (err error) {
	if r.api, err = r.plane.Config(); err != nil {
		return err
	}
	r.client, err = kubernetes.NewForConfig(r.api)
	return err
}

// down removes the instance with all its files. The logs of a failed round are kept, and their directory is printed.
func (r *rig) down(ctx context.Context, failed bool) error {
	keep := failed || r.keep
	err := errors.Join(r.plane.Down(ctx, keep), plane.RemoveLogLinks(r.plane.State()))
	if r.restoreKubeletDir != nil {
		err = errors.Join(err, r.restoreKubeletDir())
	}
	if keep {
		record.Progress("%s: state and logs are kept in %s", r.side.name, r.plane.Dir)
	}
	return err
}

// logTailBytes is how much of the agent's log an error contains.
const logTailBytes = 4 << 10

func (r *rig) agentLogTail() string {
	text, err := os.ReadFile(filepath.Join(r.plane.State(), "log", "agent.log"))
	if err != nil {
		return "no agent log: " + err.Error()
	}
	if len(text) > logTailBytes {
		text = text[len(text)-logTailBytes:]
	}
	return "end of the agent's log:\n" + string(text)
}
