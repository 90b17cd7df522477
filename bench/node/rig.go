package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// rig is one instance of `plimsoll up` with one agent.
type rig struct {
	config
	side
	dir    string
	api    *rest.Config
	client *kubernetes.Clientset
	pids   map[string]int // of the instance's children, by name

	ownsKubeletDir bool // kubeletDir did not exist before this instance
}

// agentConfig is what both agents are given; addresses, certificates and directories are up's. failCgroupV1 and
// failSwapOn let upstream's kubelet start on any machine that ours starts on. Without iptables chains the kubelet leaves
// nothing behind; with clusterDNS it has no reason to send an event about its lack for each pod.
const agentConfig = `apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
failCgroupV1: false
failSwapOn: false
maxPods: 200
makeIPTablesUtilChains: false
clusterDomain: cluster.local
clusterDNS: [10.97.0.10]
`

const (
	nodeName = "bench"
	podCIDR  = "10.86.0.0/16"
	svcCIDR  = "10.97.0.0/16"
	// upTimeout and downTimeout only bound what hangs.
	upTimeout   = 2 * time.Minute
	downTimeout = 4 * time.Minute
)

func (r *rig) state() string    { return filepath.Join(r.dir, "s") } // short: sockets are below it
func (r *rig) instance() string { return "bench-" + r.side.name }

// portFlags get successive ports from --port-base on.
var portFlags = []string{"apiserver-port", "controller-manager-port", "agent-port", "agent-health-port"}

// agentPortOffset is the place of agent-port in portFlags.
const agentPortOffset = 2

// up starts the instance and returns how long that took until the node was Ready, as its user would see it.
func (r *rig) up(ctx context.Context) (time.Duration, error) {
	if err := os.MkdirAll(r.dir, 0o700); err != nil {
		return 0, err
	}
	file := filepath.Join(r.dir, "agent-config.yaml")
	if err := os.WriteFile(file, []byte(agentConfig), 0o600); err != nil {
		return 0, err
	}
	r.noteKubeletDir()
	args := []string{"up", "--detach", "--instance", r.instance(), "--state-dir", r.state(), "--node-name", nodeName,
		"--pod-cidr", podCIDR, "--service-cidr", svcCIDR, "--agent-config", file, "--timeout", upTimeout.String()}
	for i, flag := range portFlags {
		args = append(args, "--"+flag, strconv.Itoa(r.portBase+i))
	}
	if r.side.binary != "" {
		args = append(args, "--agent-binary", r.side.binary)
	}
	began := time.Now()
	if _, err := r.run(ctx, args...); err != nil {
		return 0, err
	}
	took := time.Since(began)
	if err := r.readPIDs(ctx); err != nil {
		return took, err
	}
	return took, r.connect()
}

// run calls our program and returns what it printed.
func (r *rig) run(ctx context.Context, args ...string) ([]byte, error) {
	c := exec.CommandContext(ctx, r.plimsoll, args...)
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // Ctrl-C is for us: it must not end a running down
	c.Cancel = func() error { return c.Process.Signal(os.Interrupt) }
	c.WaitDelay = downTimeout
	var stdout, stderr bytes.Buffer
	c.Stdout, c.Stderr = &stdout, &stderr
	if err := c.Run(); err != nil {
		return stdout.Bytes(), fmt.Errorf("%s: %w: %s", strings.Join(c.Args, " "), err, bytes.TrimSpace(append(stdout.Bytes(), stderr.Bytes()...)))
	}
	return stdout.Bytes(), nil
}

func (r *rig) readPIDs(ctx context.Context) error {
	out, err := r.run(ctx, "status", "-o", "json", "--instance", r.instance(), "--state-dir", r.state())
	if err != nil {
		return err
	}
	status := struct {
		Children []struct {
			Name string `json:"name"`
			PID  int    `json:"pid"`
		} `json:"children"`
	}{}
	if err := json.Unmarshal(out, &status); err != nil {
		return fmt.Errorf("read status: %w", err)
	}
	r.pids = map[string]int{}
	for _, c := range status.Children {
		r.pids[c.Name] = c.PID
	}
	for _, name := range []string{roleAgent, roleContainerd} {
		if r.pids[name] == 0 {
			return fmt.Errorf("read status: no process %q in %s", name, out)
		}
	}
	return nil
}

// checkSameAgent makes sure that numbers of a window are those of one process: a restarted one starts small.
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

func (r *rig) connect() error {
	config, err := clientcmd.BuildConfigFromFlags("", filepath.Join(r.state(), "admin.kubeconfig"))
	if err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	config.QPS = -1
	config.ContentType = "application/vnd.kubernetes.protobuf"
	config.AcceptContentTypes = "application/vnd.kubernetes.protobuf,application/json"
	r.api = config
	r.client, err = kubernetes.NewForConfig(config)
	return err
}

// down removes the instance and everything of it. The logs of a failed round stay, and their place is told.
func (r *rig) down(ctx context.Context, failed bool) error {
	ctx, cancel := context.WithTimeout(ctx, downTimeout)
	defer cancel()
	keep := failed || r.keep
	args := []string{"down", "--instance", r.instance(), "--state-dir", r.state()}
	if !keep {
		args = append(args, "--purge")
	}
	_, err := r.run(ctx, args...)
	err = errors.Join(err, removeLogLinks(r.state()), r.restoreKubeletDir())
	if keep {
		progress("%s: state and logs are kept in %s", r.side.name, r.dir)
		return err
	}
	if err != nil {
		return err
	}
	return os.RemoveAll(r.dir)
}

// legacyLogs is where the kubelet puts a symbolic link to each container's log.
const legacyLogs = "/var/log/containers"

// removeLogLinks removes the kubelet's links into our directories, which it would remove itself if it lived longer.
func removeLogLinks(below string) error {
	entries, err := os.ReadDir(legacyLogs)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, e := range entries {
		path := filepath.Join(legacyLogs, e.Name())
		if target, err := os.Readlink(path); err == nil && strings.HasPrefix(target, below+"/") {
			if err := os.Remove(path); err != nil {
				return err
			}
		}
	}
	if err := os.Remove(legacyLogs); err != nil && !errors.Is(err, fs.ErrExist) { // others' links may be there
		return err
	}
	return nil
}

// kubeletDir is where the kubelet serves device plugins, whatever its --root-dir.
const kubeletDir = "/var/lib/kubelet"

// noteKubeletDir finds out whether it is somebody else's.
func (r *rig) noteKubeletDir() {
	_, err := os.Stat(kubeletDir)
	r.ownsKubeletDir = errors.Is(err, fs.ErrNotExist)
}

// restoreKubeletDir removes what the kubelet made there: a socket in two directories that hold nothing else.
func (r *rig) restoreKubeletDir() error {
	if !r.ownsKubeletDir {
		return nil
	}
	plugins := filepath.Join(kubeletDir, "device-plugins")
	for _, path := range []string{filepath.Join(plugins, "kubelet.sock"), plugins, kubeletDir} {
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// logTailBytes of the agent's log are shown with an error.
const logTailBytes = 4 << 10

func (r *rig) agentLogTail() string {
	text, err := os.ReadFile(filepath.Join(r.state(), "log", "agent.log"))
	if err != nil {
		return "no agent log: " + err.Error()
	}
	if len(text) > logTailBytes {
		text = text[len(text)-logTailBytes:]
	}
	return "end of the agent's log:\n" + string(text)
}

// sysctls are what the kubelet sets on the machine it runs on (protectKernelDefaults: false).
var sysctls = []string{"vm/overcommit_memory", "vm/panic_on_oom", "kernel/panic", "kernel/panic_on_oops", "kernel/keys/root_maxkeys", "kernel/keys/root_maxbytes"}

// keepSysctls reads them and returns what puts them back.
func keepSysctls() (restore func(), err error) {
	kept := map[string][]byte{}
	for _, name := range sysctls {
		text, err := os.ReadFile(filepath.Join("/proc/sys", name))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("keep sysctl: %w", err)
		}
		kept[name] = text
	}
	return func() {
		for name, text := range kept {
			path := filepath.Join("/proc/sys", name)
			if now, err := os.ReadFile(path); err == nil && bytes.Equal(now, text) {
				continue
			}
			if err := os.WriteFile(path, text, 0o644); err != nil {
				progress("put sysctl %s back to %s: %v", name, bytes.TrimSpace(text), err)
			}
		}
	}, nil
}
