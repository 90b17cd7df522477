package oracle

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/spf13/pflag"
	v1beta1 "k8s.io/kubelet/config/v1beta1"

	"github.com/plimsoll-dev/plimsoll/internal/kube/kubeletconfig"
	"github.com/plimsoll-dev/plimsoll/internal/kube/kubeletflags"
)

// k3s gives its kubelet flags and, from 1.32 on, drop-ins. Below is what it gives a kubelet 1.36, or gave an older one,
// by these sources:
//
//   - pkg/daemons/agent/agent_linux.go of k3s-io/k3s at commits 82394d7d (2021), 00014d28 (2026)
//   - issues 2116 (00-k3s-defaults.conf whole) and 10399 (a command line of 2024) of k3s-io/k3s
//   - issue 4043 of rancher/rke2, whose kubelet has the same parts

// treatment is what becomes of a flag.
type treatment string

const (
	carriedOut treatment = "carried out"
	warned     treatment = "warned of"
	refused    treatment = "refused" // in the kubelet 1.36, too
)

type k3sFlag struct {
	flag string // with a value that k3s gives
	treatment
	says string // the beginning of the warning, or a part of the error
}

// k3sFlags are all flags that k3s gives its kubelet, or gave. DIR stands for a directory of the test's own.
var k3sFlags = []k3sFlag{
	// 1.32 and later
	{"--cloud-provider=external", carriedOut, ""},
	{"--config-dir=DIR/kubelet.conf.d", carriedOut, ""},
	{"--cert-dir=DIR/root/pki", carriedOut, ""},
	{"--containerd=DIR/absent.sock", warned, "--containerd: no effect"},
	{"--feature-gates=KubeletInUserNamespace=true", warned, "featureGates.KubeletInUserNamespace: true: cannot"},
	{"--hostname-override=k3s-1", carriedOut, ""},
	{"--image-credential-provider-bin-dir=DIR/bin", carriedOut, ""},
	{"--image-credential-provider-config=DIR/credentials.yaml", carriedOut, ""},
	{"--kubeconfig=DIR/kubelet.kubeconfig", carriedOut, ""},
	{"--node-ip=192.0.2.1,2001:db8::1", carriedOut, ""},
	{"--node-labels=p2p.k3s.cattle.io/enabled=true", carriedOut, ""},
	{"--read-only-port=0", carriedOut, ""},
	{"--root-dir=DIR/root", carriedOut, ""},
	{"--runtime-cgroups=/k3s", warned, "--runtime-cgroups: no effect"},
	// before 1.32, when the drop-in was on the command line
	{"--address=0.0.0.0", carriedOut, ""},
	{"--anonymous-auth=false", carriedOut, ""},
	{"--authentication-token-webhook=true", carriedOut, ""},
	{"--authorization-mode=Webhook", carriedOut, ""},
	{"--cgroup-driver=systemd", carriedOut, ""},
	{"--client-ca-file=DIR/client-ca.crt", carriedOut, ""},
	{"--cluster-dns=10.43.0.10", carriedOut, ""},
	{"--cluster-domain=cluster.local", carriedOut, ""},
	{"--container-runtime-endpoint=unix://DIR/absent.sock", carriedOut, ""},
	{"--cpu-cfs-quota=false", carriedOut, ""},
	{"--eviction-hard=imagefs.available<5%,nodefs.available<5%", carriedOut, ""},
	{"--eviction-minimum-reclaim=imagefs.available=10%,nodefs.available=10%", carriedOut, ""},
	{"--fail-swap-on=false", carriedOut, ""},
	{"--healthz-bind-address=127.0.0.1", carriedOut, ""},
	{"--kubelet-cgroups=/k3s", carriedOut, ""},
	{"--pod-manifest-path=DIR/pod-manifests", carriedOut, ""},
	{"--protect-kernel-defaults=true", carriedOut, ""},
	{"--register-with-taints=CriticalAddonsOnly=true:NoExecute", carriedOut, ""},
	{"--resolv-conf=DIR/resolv.conf", carriedOut, ""},
	{"--serialize-image-pulls=false", carriedOut, ""},
	{"--tls-cert-file=DIR/serving.crt", carriedOut, ""},
	{"--tls-private-key-file=DIR/serving.key", carriedOut, ""},
	{"--v=2", carriedOut, ""},
	{"--vmodule=kubelet=4", warned, "--vmodule: no effect"},
	// for kubelets that had these flags
	{"--alsologtostderr=false", refused, "it no more: remove it: logs go to standard error"},
	{"--cgroup-driver=none", refused, "want one of cgroupfs, systemd"},
	{"--cni-bin-dir=DIR/cni", refused, "it no more: remove it: the container runtime's own configuration"},
	{"--cni-conf-dir=DIR/net.d", refused, "it no more: remove it: the container runtime's own configuration"},
	{"--container-runtime=remote", refused, "it no more: remove it: every runtime is reached at"},
	{"--feature-gates=DevicePlugins=false", refused, "featureGates.DevicePlugins: false: no feature gate"},
	{"--feature-gates=KubeletCredentialProviders=true", refused, "no feature gate"},
	{"--feature-gates=SupportNoneCgroupDriver=true", refused, "no feature gate"},
	{"--feature-gates=SupportPodPidsLimit=false", refused, "no feature gate"},
	{"--log-file=DIR/kubelet.log", refused, "it no more: remove it: logs go to standard error"},
	{"--network-plugin=cni", refused, "it no more: remove it: the container runtime's own configuration"},
	{"--pod-infra-container-image=rancher/mirrored-pause:3.6", refused, "sandbox_image of containerd"},
	{"--seccomp-profile-root=DIR/root/seccomp", refused, "profiles are in the directory seccomp in --root-dir"},
}

// k3sDropIns are the files in kubelet.conf.d: k3s's defaults, and one as its documentation has users add it.
var k3sDropIns = map[string]string{
	"00-k3s-defaults.conf": `address: 0.0.0.0
allowedUnsafeSysctls: [net.ipv4.ip_forward, net.ipv6.conf.all.forwarding]
authentication:
  anonymous: {enabled: false}
  webhook: {cacheTTL: 2m0s, enabled: true}
  x509:
    clientCAFile: DIR/client-ca.crt
authorization:
  mode: Webhook
  webhook: {cacheAuthorizedTTL: 5m0s, cacheUnauthorizedTTL: 30s}
cgroupDriver: systemd
clusterDNS: [10.43.0.10]
clusterDomain: cluster.local
containerRuntimeEndpoint: unix://DIR/absent.sock
cpuManagerReconcilePeriod: 10s
crashLoopBackOff: {}
evictionHard: {imagefs.available: 5%, nodefs.available: 5%}
evictionMinimumReclaim: {imagefs.available: 10%, nodefs.available: 10%}
evictionPressureTransitionPeriod: 5m0s
failSwapOn: false
fileCheckFrequency: 20s
healthzBindAddress: 127.0.0.1
httpCheckFrequency: 20s
imageMaximumGCAge: 0s
imageMinimumGCAge: 2m0s
kubeletCgroups: /k3s
logging:
  flushFrequency: 5s
  format: text
  options: {json: {infoBufferSize: "0"}, text: {infoBufferSize: "0"}}
  verbosity: 0
memorySwap: {}
nodeStatusReportFrequency: 5m0s
nodeStatusUpdateFrequency: 10s
resolvConf: DIR/resolv.conf
runtimeRequestTimeout: 2m0s
serializeImagePulls: false
shutdownGracePeriod: 0s
shutdownGracePeriodCriticalPods: 0s
staticPodPath: DIR/pod-manifests
streamingConnectionIdleTimeout: 4h0m0s
syncFrequency: 1m0s
tlsCertFile: DIR/serving.crt
tlsPrivateKeyFile: DIR/serving.key
volumeStatsAggPeriod: 1m0s
`,
	"50-own.conf": "maxPods: 42\nshutdownGracePeriod: 30s\nshutdownGracePeriodCriticalPods: 10s\n",
}

// k3sNode writes what k3s writes for its kubelet, and returns the directory.
func k3sNode(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for _, name := range []string{"kubelet.conf.d", "pod-manifests", "bin"} {
		if err := os.Mkdir(filepath.Join(dir, name), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	files := map[string]string{
		"kubelet.kubeconfig": `{"apiVersion": "v1", "kind": "Config", "current-context": "local",
			"clusters": [{"name": "local", "cluster": {"server": "https://127.0.0.1:9"}}],
			"users": [{"name": "user", "user": {"token": "t"}}],
			"contexts": [{"name": "local", "context": {"cluster": "local", "user": "user"}}]}`,
		"resolv.conf": "nameserver 192.0.2.53\n",
		"credentials.yaml": `{"apiVersion": "kubelet.config.k8s.io/v1", "kind": "CredentialProviderConfig", "providers": [
			{"name": "none", "matchImages": ["registry.example"], "defaultCacheDuration": "1h",
			"apiVersion": "credentialprovider.kubelet.k8s.io/v1"}]}`,
		"bin/none": "#!/bin/sh\n",
	}
	for name, text := range k3sDropIns {
		files["kubelet.conf.d/"+name] = configurationHead + text
	}
	for name, text := range files {
		text = strings.ReplaceAll(text, "DIR", dir)
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// TestK3sConfiguration: k3s's drop-ins and flags give the configuration that they give in the kubelet. So do the flags
// of k3s before 1.32, in their place.
func TestK3sConfiguration(t *testing.T) {
	dir := k3sNode(t)
	var flags []string
	table := pflag.NewFlagSet("plimsoll", pflag.ContinueOnError)
	kubeletflags.Add(table)
	for _, f := range k3sFlags {
		name, _, _ := strings.Cut(strings.TrimPrefix(f.flag, "--"), "=")
		if f.treatment == carriedOut && table.Lookup(name) != nil {
			flags = append(flags, strings.ReplaceAll(f.flag, "DIR", dir))
		}
	}
	for name, c := range map[string]struct {
		dropIns string
		args    []string
	}{
		"drop-ins":           {filepath.Join(dir, "kubelet.conf.d"), []string{"--read-only-port=0"}},
		"drop-ins and flags": {filepath.Join(dir, "kubelet.conf.d"), flags},
		"flags":              {"", flags},
	} {
		fs := pflag.NewFlagSet("plimsoll", pflag.ContinueOnError)
		line := kubeletflags.Add(fs)
		if err := fs.Parse(c.args); err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		ours, _, err := kubeletconfig.LoadFrom(kubeletconfig.Sources{DropIns: c.dropIns, Settings: line.Settings()})
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		file := filepath.Join(t.TempDir(), "empty")
		if err := os.WriteFile(file, []byte(configurationHead), 0o600); err != nil {
			t.Fatal(err)
		}
		theirs := upstreamConfiguration(t, file, c.dropIns, c.args)
		sameConfiguration(t, name, ours, theirs)
		if holds := ours.EvictionMinimumReclaim["nodefs.available"] == "10%" &&
			ours.Authorization.Mode == v1beta1.KubeletAuthorizationModeWebhook && ours.ReadOnlyPort == 0 &&
			slices.Equal(ours.ClusterDNS, []string{"10.43.0.10"}) && (c.dropIns == "") == (ours.MaxPods != 42); !holds {
			t.Errorf("%s: the configuration is not what k3s wrote: %+v", name, ours)
		}
	}
}

// TestK3sFlags runs the program as k3s would run a kubelet. With all flags together that are carried out, and with each
// that is warned of, it comes to where it waits for the runtime. Each refused one ends it at once, before anything is
// done; the kubelet does not take it either.
func TestK3sFlags(t *testing.T) {
	bin := t.TempDir()
	if err := os.Symlink(buildPlimsoll(t), filepath.Join(bin, "kubelet")); err != nil {
		t.Fatal(err)
	}
	upstream, gone := kubeletFlags(t), kubeletflags.Gone()
	for _, name := range gone {
		if upstream.Lookup(name) != nil {
			t.Errorf("the kubelet 1.36 has --%s; ours says that it is gone", name)
		}
	}
	dir := k3sNode(t)
	all := []string{"--config-dir=DIR/kubelet.conf.d", "--root-dir=DIR/root", "--kubeconfig=DIR/kubelet.kubeconfig"}
	apart := map[string]k3sFlag{}
	for _, f := range k3sFlags {
		name, _, _ := strings.Cut(strings.TrimPrefix(f.flag, "--"), "=")
		if known := upstream.Lookup(name) != nil; known == slices.Contains(gone, name) {
			t.Errorf("--%s: the kubelet 1.36 knows it: %v, and ours says the same of older ones", name, known)
		}
		if f.treatment == carriedOut {
			all = append(all, f.flag)
		} else {
			apart[f.flag] = f
		}
	}
	kubelet := func(t *testing.T, args []string, want treatment, says string) {
		with := make([]string, len(args))
		for i, arg := range args {
			with[i] = strings.ReplaceAll(arg, "DIR", dir)
		}
		runK3s(t, filepath.Join(bin, "kubelet"), with, want, says)
	}
	t.Run("all", func(t *testing.T) { kubelet(t, all, carriedOut, "") })
	for flag, f := range apart {
		t.Run(flag, func(t *testing.T) { kubelet(t, append(slices.Clone(all[:3]), flag), f.treatment, f.says) })
	}
}

// runK3s runs the program until it waits for the runtime, or ends.
func runK3s(t *testing.T, program string, args []string, want treatment, says string) {
	t.Helper()
	var log logOf
	cmd := exec.Command(program, args...)
	cmd.Stdout, cmd.Stderr = &log, &log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	is := treatment("")
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for end := time.After(time.Minute); is == ""; {
		select {
		case <-ended:
			is = refused
		case <-tick.C:
			if strings.Contains(log.String(), "waiting for the container runtime") {
				is = carriedOut
				_ = cmd.Process.Signal(syscall.SIGTERM)
				<-ended
			}
		case <-end:
			_ = cmd.Process.Kill()
			t.Fatalf("it neither ends nor waits for the runtime:\n%s", log.String())
		}
	}
	var warnings []string
	for line := range strings.Lines(log.String()) {
		if _, warning, found := strings.Cut(line, " warning="); found {
			warnings = append(warnings, strings.Trim(strings.TrimSpace(warning), `"`))
		}
	}
	if is == carriedOut && len(warnings) > 0 {
		is = warned
	}
	switch {
	case is != want:
		t.Errorf("it is %s, want %s:\n%s", is, want, log.String())
	case is == warned && (len(warnings) != 1 || !strings.HasPrefix(warnings[0], says)):
		t.Errorf("warnings %q, want one that begins %q", warnings, says)
	case is == refused && !strings.Contains(log.String(), says):
		t.Errorf("it says %swant %s", log.String(), says)
	}
}
