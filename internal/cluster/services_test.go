package cluster

import (
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

func TestProxyMode(t *testing.T) {
	for _, c := range []struct {
		programs      []string
		release, want string
	}{
		{[]string{"nft", "iptables", "iptables-save", "iptables-restore"}, "6.1.0-18-amd64", "nftables"},
		{[]string{"nft"}, "5.13.0", "nftables"},
		{[]string{"nft"}, "not.a.release", "nftables"},
		{[]string{"nft", "iptables", "iptables-save", "iptables-restore"}, "5.10.0-28-amd64", "iptables"},
		{[]string{"iptables", "iptables-save", "iptables-restore"}, "6.1.0", "iptables"},
		{[]string{"iptables"}, "6.1.0", "nft is not on this machine"},
		{[]string{"nft"}, "4.19", "iptables is not on this machine"},
		{nil, "6.1.0", "--without kube-proxy"},
	} {
		got, err := proxyMode(func(program string) bool { return slices.Contains(c.programs, program) }, c.release)
		if err != nil && got == "" {
			got = err.Error()
		}
		if err == nil && got != c.want || !strings.Contains(got, c.want) {
			t.Errorf("%v on %s: %s, want %s", c.programs, c.release, got, c.want)
		}
	}
}

// TestPodsReachTheAPIServer: if kube-apiserver listens on the loopback and our containerd runs the pods, packets of
// pods are forwarded to it; otherwise none are.
func TestPodsReachTheAPIServer(t *testing.T) {
	for what, c := range map[string]struct {
		change              func(*Options)
		forwards, advertise string
	}{
		"loopback": {func(*Options) {},
			"[{10.85.0.1:6443 127.0.0.1:6443 false} {10.96.0.1:443 127.0.0.1:6443 false} {192.0.2.10:10250 127.0.0.1:10250 " +
				"false}]", "10.85.0.1"},
		"no network, no proxy": {func(o *Options) { o.NodeIP, o.Without = "127.0.0.1", []string{"kube-proxy"} },
			"[{10.85.0.1:6443 127.0.0.1:6443 false} {10.96.0.1:443 127.0.0.1:6443 true}]", "10.85.0.1"},
		"all addresses":   {func(o *Options) { o.BindAddress = "0.0.0.0" }, "[]", "192.0.2.10"},
		"IPv6 loopback":   {func(o *Options) { o.BindAddress = "::1" }, "[]", "192.0.2.10"},
		"another runtime": {func(o *Options) { o.ContainerRuntimeEndpoint = "/run/x.sock" }, "[]", "192.0.2.10"},
		"no node":         {func(o *Options) { o.Agent = false }, "[]", "192.0.2.10"},
	} {
		o := testOptions(t)
		c.change(&o)
		if got := fmt.Sprint(o.forwards()); got != c.forwards {
			t.Errorf("%s: pods are led by %s, want %s", what, got, c.forwards)
		}
		if got := o.advertiseAddress(); got != c.advertise {
			t.Errorf("%s: %s is advertised, want %s", what, got, c.advertise)
		}
		args := builder{layout: layout{o}}.apiServer().Argv
		if none := slices.Contains(args, "--endpoint-reconciler-type=none"); none != (o.loopback() && c.forwards == "[]") {
			t.Errorf("%s: the Service has no endpoint: %t", what, none)
		}
	}
}

func TestAddonsAreKnown(t *testing.T) {
	o := testOptions(t)
	o.Without = []string{"kube-proxy", "kubeproxy"}
	o.ServiceCIDR = "10.85.128.0/20"
	err := o.Validate()
	for _, want := range []string{`--without "kubeproxy": want kube-proxy or coredns or metrics-server or csi`,
		"--service-cidr 10.85.128.0/20: overlaps --pod-cidr 10.85.0.0/16"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("the error does not hold %q: %v", want, err)
		}
	}
	if o.has(childKubeProxy) {
		t.Error("what is left out is there")
	}
}

// TestOtherKubeProxy: a kube-proxy of another program in this network namespace is found; one of ours is not.
func TestOtherKubeProxy(t *testing.T) {
	if pid, err := otherKubeProxy(nil); err != nil || pid != 0 {
		t.Skipf("a kube-proxy runs here already: pid %d, %v", pid, err)
	}
	program := t.TempDir() + "/kube-proxy"
	text, err := os.ReadFile("/bin/sleep")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(program, text, 0o700); err != nil {
		t.Fatal(err)
	}
	other := exec.Command(program, "60")
	if err := other.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		other.Process.Kill()
		_ = other.Wait() // it was killed
	}()
	if pid, err := otherKubeProxy(nil); err != nil || pid != other.Process.Pid {
		t.Errorf("found %d, %v, want %d", pid, err, other.Process.Pid)
	}
	if pid, err := otherKubeProxy([]int{other.Process.Pid}); err != nil || pid != 0 {
		t.Errorf("found %d, %v, which is ours", pid, err)
	}
}
