package cluster

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"path/filepath"
)

// layout has the paths of an instance's files.
type layout struct{ o Options }

func (l layout) state(parts ...string) string {
	return filepath.Join(append([]string{l.o.StateDir}, parts...)...)
}
func (l layout) run(parts ...string) string {
	return filepath.Join(append([]string{l.o.RunDir}, parts...)...)
}

// In the state directory.

func (l layout) options() string            { return l.state("options.json") }
func (l layout) lock() string               { return l.state("lock") }
func (l layout) version() string            { return l.state("version") }
func (l layout) pki() string                { return l.state("pki") }
func (l layout) log(name string) string     { return l.state("log", name+".log") }
func (l layout) etcdData() string           { return l.state("etcd") }
func (l layout) agentConfig() string        { return l.state("agent.yaml") }
func (l layout) agentRoot() string          { return l.state("agent") }
func (l layout) staticPods() string         { return l.state("static-pods") }
func (l layout) reserve() string            { return l.state("reserve") }
func (l layout) podLogs() string            { return l.state("pod-logs") }
func (l layout) journal(name string) string { return l.state("journal", name) }
func (l layout) registries() string         { return cmp.Or(l.o.RegistriesDir, l.state("registries")) }
func (l layout) adminKubeconfig() string    { return l.state("admin.kubeconfig") }
func (l layout) kubeconfig(w who) string    { return l.state("pki", string(w)+".kubeconfig") }
func (l layout) stateDirectories() []string {
	return []string{l.o.StateDir, l.pki(), l.state("log"), l.etcdData(), l.agentRoot(), l.staticPods(), l.podLogs()}
}

// In the run directory.

// FleetSocket returns the control socket of the instance's hollow nodes.
func (o *Options) FleetSocket() string { return layout{*o}.run("fleet.sock") }

func (l layout) record() string { return l.run("children.json") }

// servicesRecord is a file that exists while the kernel may have rules of kube-proxy.
func (l layout) servicesRecord() string { return l.run("services") }

// etcdSocket is in a directory that only its owner can enter. The socket's mode depends on the umask, and etcd does not
// authenticate who connects.
func (l layout) etcdSocket() string { return l.run("etcd", "etcd.sock") }

// runtimeState is containerd's state that is lost at a reboot or removed by `down`.
func (l layout) runtimeState() string { return l.run("containerd") }

// longestSocket is the longest path of a listening socket in the run directory.
func (l layout) longestSocket() string { return l.run("containerd.sock.ttrpc") }

// interfaceNameMax is the kernel's IFNAMSIZ without the terminating zero.
const interfaceNameMax = 15

// bridge is the name of the network interface that connects the instance's pods. A name that is too long is shortened
// and made unique by a hash.
func (l layout) bridge() string {
	if l.o.Instance == DefaultInstance {
		return "plimsoll0"
	}
	return shortLink("pl-" + l.o.Instance)
}

// linkName is the name of another network interface of the instance.
func (l layout) linkName(suffix string) string {
	if l.o.Instance == DefaultInstance {
		return shortLink(DefaultInstance + suffix)
	}
	return shortLink("pn-" + l.o.Instance + suffix)
}

func shortLink(name string) string {
	if len(name) <= interfaceNameMax {
		return name
	}
	const kept = 9
	sum := sha256.Sum256([]byte(name))
	return name[:kept] + hex.EncodeToString(sum[:(interfaceNameMax-kept)/2])
}

// cgroupRoot is the parent of the instance's kubepods. For the default instance it is the root, as users of Kubernetes
// expect.
func (l layout) cgroupRoot() string {
	if l.o.Instance == DefaultInstance {
		return "/"
	}
	return "/" + l.o.fullName()
}

// podCgroup is the cgroup that contains all pods and nothing else.
func (l layout) podCgroup() string {
	if l.cgroupRoot() == "/" {
		return "/kubepods"
	}
	return l.cgroupRoot()
}
