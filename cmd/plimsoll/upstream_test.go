package main

import (
	"bytes"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// preflight is what kubeadm 1.36 looks for in the output of "kubelet --version" (cmd/kubeadm/app/preflight/utils.go).
var preflight = regexp.MustCompile(`^\s*Kubernetes v((0|[1-9][0-9]*)\.(0|[1-9][0-9]*)\.(0|[1-9][0-9]*))` +
	`([-0-9a-zA-Z_\.+]*)?\s*$`)

// called runs the program under a name of upstream's, and returns what it prints.
func called(t *testing.T, name string, args ...string) (string, error) {
	t.Helper()
	var out bytes.Buffer
	root := newRootCommand()
	root.SetOut(&out)
	root.SetArgs(asUpstream(name, args))
	err := root.ExecuteContext(t.Context())
	return out.String(), err
}

// TestVersionsOfOthers: under upstream's names the program prints the version that kubeadm's checks read.
func TestVersionsOfOthers(t *testing.T) {
	for _, name := range []string{"kubelet", "/usr/bin/kubelet", "./kube-scheduler"} {
		if out, err := called(t, name, "--version"); err != nil || !preflight.MatchString(out) {
			t.Errorf("%s --version prints %q, %v", name, out, err)
		}
		if out, err := called(t, name, "--version=raw"); err != nil || !strings.Contains(out, `Minor:"36"`) {
			t.Errorf("%s --version=raw prints %q, %v", name, out, err)
		}
		if _, err := called(t, name, "--version=v1.2.3"); exitCode(err) != exitUsage {
			t.Errorf("%s --version=v1.2.3: %v", name, err)
		}
	}
}

// TestVersion: the program tells its own version as a verb and as a flag. Flags of verbs are not touched by that.
func TestVersion(t *testing.T) {
	for _, line := range [][]string{{"version"}, {"--version"}} {
		if out, err := called(t, "plimsoll", line...); err != nil || !strings.Contains(out, versions()) {
			t.Errorf("%v prints %q, %v", line, out, err)
		}
	}
	if out, err := called(t, "plimsoll", "agent", "--version"); err != nil || !preflight.MatchString(out) {
		t.Errorf("agent --version prints %q, %v", out, err)
	}
}

// k3sKubelet are the flags that k3s 1.36 gives its kubelet (pkg/daemons/agent/agent_linux.go).
var k3sKubelet = []string{"--cloud-provider=external", "--containerd=/run/k3s/containerd/containerd.sock",
	"--hostname-override=n1", "--kubeconfig=KUBECONFIG", "--node-ip=192.0.2.1", "--node-labels=", "--read-only-port=0",
	"--runtime-cgroups=/k3s", "--config-dir=DIR"}

// kubeadmKubelet is the command of kubeadm's unit (10-kubeadm.conf), with what users add in /etc/default/kubelet.
var kubeadmKubelet = []string{"--bootstrap-kubeconfig=DIR/bootstrap-kubelet.conf", "--kubeconfig=KUBECONFIG",
	"--config=DIR/config.yaml", "--node_labels=a=b", "--node-labels", "c=d", "--max-pods=42", "-v", "2"}

// TestKubeletsOfOthers: the agent takes others' command lines for the kubelet, and does what they say.
func TestKubeletsOfOthers(t *testing.T) {
	for name, c := range map[string]struct {
		line    []string
		maxPods int32
		labels  map[string]string
		node    string
		cloud   bool
	}{
		"kubeadm": {line: kubeadmKubelet, maxPods: 42, labels: map[string]string{"a": "b", "c": "d"}},
		"k3s":     {line: k3sKubelet, maxPods: 20, labels: map[string]string{}, node: "n1", cloud: true},
	} {
		dir := t.TempDir()
		for file, text := range map[string]string{"config.yaml": "maxPods: 10\n", "00-defaults.conf": "maxPods: 20\n"} {
			text = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n" + text
			if err := os.WriteFile(filepath.Join(dir, file), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		var args []string
		for _, arg := range c.line {
			args = append(args, strings.ReplaceAll(arg, "DIR", dir))
		}
		var f agentFlags
		if err := f.command().ParseFlags(args); err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		o, err := f.options()
		if err != nil || o.Config.MaxPods != c.maxPods || !maps.Equal(o.Labels, c.labels) || o.Cloud != c.cloud ||
			c.node != "" && o.NodeName != c.node || o.Kubeconfig != "KUBECONFIG" {
			t.Errorf("%s: %+v, %+v, %v", name, o, o.Config, err)
		}
	}
}

// TestBadKubeletFlags: what cannot be used is named, before anything is done.
func TestBadKubeletFlags(t *testing.T) {
	for want, line := range map[string][]string{
		"maxPods: -1: want 0 or more (set by --max-pods)":                    {"--max-pods=-1"},
		"--lock-file=/run/lock: not supported":                               {"--lock-file=/run/lock"},
		"featureGates.Telepathy: true: no feature gate":                      {"--feature-gates=Telepathy=true"},
		`logging.format: "xml": want text or json (set by --logging-format)`: {"--logging-format=xml"},
		"--register-with-taints":                                             {"--register-with-taints=a"},
		"--config-dir":                                                       {"--config-dir=/nowhere/at/all"},
		"--kubeconfig: required":                                             {"--kubeconfig="},
		"unknown flag: --network-plugin: the kubelet 1.36 has it no more":    {"--network-plugin=cni"},
	} {
		_, err := called(t, "kubelet", append([]string{"--kubeconfig=/nowhere"}, line...)...)
		if err == nil || !strings.Contains(err.Error(), want) || exitCode(err) != exitUsage {
			t.Errorf("%v: %v, want %s", line, err, want)
		}
	}
}
