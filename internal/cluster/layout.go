package cluster

import (
	"crypto/sha256"
	"encoding/hex"
	"path/filepath"
)

// layout says where an instance keeps each thing.
type layout struct{ o Options }

func (l layout) state(parts ...string) string {
	return filepath.Join(append([]string{l.o.StateDir}, parts...)...)
}
func (l layout) run(parts ...string) string {
	return filepath.Join(append([]string{l.o.RunDir}, parts...)...)
}

// Below the state directory.

func (l layout) options() string         { return l.state("options.json") }
func (l layout) lock() string            { return l.state("lock") }
func (l layout) pki() string             { return l.state("pki") }
func (l layout) log(name string) string  { return l.state("log", name+".log") }
func (l layout) etcdData() string        { return l.state("etcd") }
func (l layout) agentConfig() string     { return l.state("agent.yaml") }
func (l layout) agentRoot() string       { return l.state("agent") }
func (l layout) staticPods() string      { return l.state("static-pods") }
func (l layout) reserve() string         { return l.state("reserve") }
func (l layout) podLogs() string         { return l.state("pod-logs") }
func (l layout) adminKubeconfig() string { return l.state("admin.kubeconfig") }
func (l layout) kubeconfig(w who) string { return l.state("pki", string(w)+".kubeconfig") }
func (l layout) stateDirectories() []string {
	return []string{l.o.StateDir, l.pki(), l.state("log"), l.etcdData(), l.agentRoot(), l.staticPods(), l.podLogs()}
}

// Below the run directory.

// FleetSocket is where the hollow nodes of the instance take orders.
func (o *Options) FleetSocket() string { return layout{*o}.run("fleet.sock") }

func (l layout) record() string     { return l.run("children.json") }
func (l layout) etcdSocket() string { return l.run("etcd.sock") }

// runtimeState is where containerd keeps what is gone after a reboot or a teardown.
func (l layout) runtimeState() string { return l.run("containerd") }

// longestSocket is the longest path below the run directory that something will listen on.
func (l layout) longestSocket() string { return l.run("containerd.sock.ttrpc") }

// interfaceNameMax is the kernel's IFNAMSIZ without the terminating zero.
const interfaceNameMax = 15

// bridge is the name of the network interface that the instance's pods are joined by. What is too long is cut and told
// apart by a hash.
func (l layout) bridge() string {
	if l.o.Instance == DefaultInstance {
		return "plimsoll0"
	}
	name := "pl-" + l.o.Instance
	if len(name) <= interfaceNameMax {
		return name
	}
	const kept = 9
	sum := sha256.Sum256([]byte(name))
	return name[:kept] + hex.EncodeToString(sum[:(interfaceNameMax-kept)/2])
}

// cgroupRoot is the parent of the instance's kubepods: the root for the default instance, as everyone expects it.
func (l layout) cgroupRoot() string {
	if l.o.Instance == DefaultInstance {
		return "/"
	}
	return "/" + l.o.fullName()
}

// podCgroup is the cgroup that all pods are below and that holds nothing else.
func (l layout) podCgroup() string {
	if l.cgroupRoot() == "/" {
		return "/kubepods"
	}
	return l.cgroupRoot()
}
