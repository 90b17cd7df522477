package oracle

import (
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"
	_ "unsafe" // go:linkname

	"github.com/spf13/pflag"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	cliflag "k8s.io/component-base/cli/flag"
	v1beta1 "k8s.io/kubelet/config/v1beta1"
	_ "k8s.io/kubernetes/cmd/kubelet/app"
	kubeletoptions "k8s.io/kubernetes/cmd/kubelet/app/options"
	kubeletconfiginternal "k8s.io/kubernetes/pkg/kubelet/apis/config"
	conversion "k8s.io/kubernetes/pkg/kubelet/apis/config/v1beta1"

	"github.com/plimsoll-dev/plimsoll/internal/kube/featuregate"
	"github.com/plimsoll-dev/plimsoll/internal/kube/kubeletconfig"
	"github.com/plimsoll-dev/plimsoll/internal/kube/kubeletflags"
)

//go:linkname upstreamLoad k8s.io/kubernetes/cmd/kubelet/app.loadConfigFile
func upstreamLoad(ctx context.Context, name string) (*kubeletconfiginternal.KubeletConfiguration, error)

//go:linkname upstreamMerge k8s.io/kubernetes/cmd/kubelet/app.mergeKubeletConfigurations
func upstreamMerge(c *kubeletconfiginternal.KubeletConfiguration, dir string) ([]string, error)

//go:linkname upstreamPrecedence k8s.io/kubernetes/cmd/kubelet/app.kubeletConfigFlagPrecedence
func upstreamPrecedence(c *kubeletconfiginternal.KubeletConfiguration, args []string) error

// kubeletFlags are all flags of the kubelet.
func kubeletFlags(t *testing.T) *pflag.FlagSet {
	t.Helper()
	fs := pflag.NewFlagSet("kubelet", pflag.ContinueOnError)
	fs.SetNormalizeFunc(cliflag.WordSepNormalizeFunc)
	kubeletoptions.NewKubeletFlags().AddFlags(fs)
	c, err := kubeletoptions.NewKubeletConfiguration()
	if err != nil {
		t.Fatal(err)
	}
	kubeletoptions.AddKubeletConfigFlags(fs, c)
	kubeletoptions.AddGlobalFlags(fs)
	return fs
}

// buildPlimsoll builds the program and returns where it is.
func buildPlimsoll(t *testing.T) string {
	t.Helper()
	program := filepath.Join(t.TempDir(), "plimsoll")
	build := exec.Command("go", "build", "-o", program, "./cmd/plimsoll")
	build.Dir = ".."
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return program
}

// TestKubeletFlags checks that each flag of the kubelet is one of `plimsoll agent`, may stand alone where it may there,
// and has the same short form.
func TestKubeletFlags(t *testing.T) {
	help, err := exec.Command(buildPlimsoll(t), "agent", "--help").Output()
	if err != nil {
		t.Fatal(err)
	}
	ours := map[string]bool{}
	flag := regexp.MustCompile(`^ +(?:-., )?--([a-z0-9-]+)`)
	for line := range strings.Lines(string(help)) {
		if m := flag.FindStringSubmatch(line); m != nil {
			ours[m[1]] = true
		}
	}
	table := pflag.NewFlagSet("plimsoll", pflag.ContinueOnError)
	kubeletflags.Add(table)
	kubeletFlags(t).VisitAll(func(f *pflag.Flag) {
		if !ours[f.Name] {
			t.Errorf("--%s is missing", f.Name)
			return
		}
		if own := table.Lookup(f.Name); own != nil &&
			(own.Shorthand != f.Shorthand || own.NoOptDefVal != f.NoOptDefVal) {
			t.Errorf("--%s: short form %q, alone %q, want %q, %q", f.Name, own.Shorthand, own.NoOptDefVal, f.Shorthand,
				f.NoOptDefVal)
		}
	})
}

// configurationHead begins each configuration file.
const configurationHead = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n"

// TestKubeletLayers: a file, drop-ins and flags give the configuration that they give in the kubelet. Together the
// command lines have each flag that sets a field.
func TestKubeletLayers(t *testing.T) {
	given := map[string]bool{}
	for name, c := range map[string]struct {
		file    string
		dropIns map[string]string
		args    []string
	}{
		"drop-ins": {
			file: "maxPods: 10\nclusterDNS: [10.0.0.10]\nevictionHard: {memory.available: 1Gi}\nport: 10300\n",
			dropIns: map[string]string{
				"a.conf": "maxPods: 20\nevictionHard: {nodefs.available: 5%}\nclusterDNS: [10.0.0.11]\n",
				"b.conf": "port: null\nnodeStatusUpdateFrequency: 20s\nfeatureGates: {MemoryQoS: true}\n" +
					"authentication: {anonymous: {enabled: true}}\n",
				"c.conf": "maxParallelImagePulls: 3\nserializeImagePulls: false\nstaticPodPath: /etc/pods\n",
				"x.yaml": "maxPods: 99\n",
			},
		},
		"default thresholds and a drop-in": {dropIns: map[string]string{"a.conf": "evictionHard: {pid.available: 10%}\n"}},
		"drop-ins and flags": {
			file:    "featureGates: {MemoryQoS: true}\nmaxPods: 10\nsystemReserved: {cpu: 100m}\n",
			dropIns: map[string]string{"a.conf": "maxPods: 20\nfeatureGates: {QOSReserved: true}\n"},
			args:    []string{"--max-pods=30", "--feature-gates=PodCertificateRequest=true", "--system-reserved=memory=1Gi"},
		},
		"numbers and switches": {args: []string{"--port=10300", "--fail-swap-on=false", "--enable-server", "--healthz-port=0",
			"--read-only-port=0", "--fail-cgroupv1=false", "--registry-qps=7", "--registry-burst=8", "--event-qps=9",
			"--event-burst=11", "--enable-debugging-handlers=true", "--contention-profiling=false", "--oom-score-adj=-998",
			"--image-gc-high-threshold=90", "--image-gc-low-threshold=70", "--cgroups-per-qos", "--max-pods=12",
			"--pod-max-pids=1000", "--cpu-cfs-quota=false", "--enable-controller-attach-detach",
			"--make-iptables-util-chains=false", "--container-log-max-files=3", "--node-status-max-images=7",
			"--kernel-memcg-notification", "--local-storage-capacity-isolation", "--max-open-files=5000",
			"--kube-api-qps=60", "--kube-api-burst=70", "--serialize-image-pulls=false", "--pods-per-core=3",
			"--protect-kernel-defaults", "--register-node=false", "--rotate-certificates", "--rotate-server-certificates",
			"--runonce=false", "--eviction-max-pod-grace-period=5", "--anonymous-auth=false",
			"--authentication-token-webhook", "-v=3", "--reserved-cpus=0"}},
		"durations": {args: []string{"--sync-frequency=2m", "--file-check-frequency=3m", "--http-check-frequency=4m",
			"--authentication-token-webhook-cache-ttl=1m", "--authorization-webhook-cache-authorized-ttl=2m",
			"--authorization-webhook-cache-unauthorized-ttl=3m", "--streaming-connection-idle-timeout=1h",
			"--node-status-update-frequency=15s", "--minimum-image-ttl-duration=3m", "--volume-stats-agg-period=2m",
			"--cpu-manager-reconcile-period=5s", "--runtime-request-timeout=3m", "--cpu-cfs-quota-period=50ms",
			"--eviction-pressure-transition-period=1m"}},
		"texts": {args: []string{"--pod-manifest-path=/etc/pods", "--manifest-url=http://192.0.2.1/", "--address=127.0.0.1",
			"--container-runtime-endpoint=unix:///run/a.sock", "--image-service-endpoint=unix:///run/b.sock",
			"--client-ca-file=/etc/ca", "--authorization-mode=AlwaysAllow", "--tls-cert-file=/etc/c",
			"--tls-private-key-file=/etc/k", "--tls-min-version=VersionTLS13", "--healthz-bind-address=::1",
			"--cluster-domain=a.example", "--volume-plugin-dir=/x", "--kubelet-cgroups=/k", "--system-cgroups=",
			"--provider-id=p", "--cgroup-driver=systemd", "--cgroup-root=/r", "--cpu-manager-policy=none",
			"--topology-manager-policy=none", "--hairpin-mode=none", "--pod-cidr=10.1.0.0/24", "--resolv-conf=/etc/r",
			"--container-log-max-size=20Mi", "--kube-api-content-type=application/json",
			"--topology-manager-scope=pod", "--system-reserved-cgroup=/s", "--kube-reserved-cgroup=/q",
			"--memory-manager-policy=None", "--logging-format=json"}},
		"lists and maps": {args: []string{"--cluster-dns=10.0.0.10", "--cluster-dns=10.0.0.11,10.0.0.12",
			"--tls-cipher-suites=TLS_AES_128_GCM_SHA256", "--allowed-unsafe-sysctls=net.core.somaxconn,kernel.msg*",
			"--enforce-node-allocatable=pods", "--feature-gates=NodeSwap=true,QOSReserved=true", "--qos-reserved=memory=50%",
			"--eviction-hard=memory.available<1Gi,nodefs.available<5%", "--eviction-hard=imagefs.available<7%",
			"--eviction-soft=memory.available<2Gi", "--eviction-soft-grace-period=memory.available=1m",
			"--eviction-minimum-reclaim=memory.available=100Mi", "--system-reserved=cpu=100m,memory=1Gi",
			"--kube-reserved=cpu=200m", "--kube-reserved=memory=2Gi", "--manifest-url-header=a:b,a:c,d:e"}},
		"policies": {args: []string{"--cpu-manager-policy=static", "--cpu-manager-policy-options=full-pcpus-only=true",
			"--topology-manager-policy=best-effort", "--topology-manager-policy-options=prefer-closest-numa-nodes=true",
			"--memory-manager-policy=Static", "--reserved-memory=0:memory=1Gi,hugepages-1Gi=2Gi;1:memory=3Gi",
			"--system-reserved=cpu=1,memory=4Gi"}},
	} {
		dir := t.TempDir()
		file := filepath.Join(dir, "config.yaml")
		write := func(path, text string) {
			if err := os.WriteFile(path, []byte(configurationHead+text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		write(file, c.file)
		dropIns := ""
		if c.dropIns != nil {
			dropIns = filepath.Join(dir, "d")
			if err := os.Mkdir(dropIns, 0o700); err != nil {
				t.Fatal(err)
			}
			for name, text := range c.dropIns {
				write(filepath.Join(dropIns, name), text)
			}
		}
		fs := pflag.NewFlagSet("plimsoll", pflag.ContinueOnError)
		line := kubeletflags.Add(fs)
		if err := fs.Parse(c.args); err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		fs.Visit(func(f *pflag.Flag) { given[f.Name] = true })
		ours, _, err := kubeletconfig.LoadFrom(kubeletconfig.Sources{File: file, DropIns: dropIns, Settings: line.Settings()})
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		theirs := upstreamConfiguration(t, file, dropIns, c.args)
		sameConfiguration(t, name, ours, theirs)
	}
	fs := pflag.NewFlagSet("", pflag.ContinueOnError)
	kc, err := kubeletoptions.NewKubeletConfiguration()
	if err != nil {
		t.Fatal(err)
	}
	kubeletoptions.AddKubeletConfigFlags(fs, kc)
	table := pflag.NewFlagSet("plimsoll", pflag.ContinueOnError)
	kubeletflags.Add(table)
	fs.VisitAll(func(f *pflag.Flag) {
		if own := table.Lookup(f.Name); own != nil && !given[f.Name] && !strings.Contains(own.Usage, "no effect: ") {
			t.Errorf("no command line has --%s", f.Name)
		}
	})
}

// upstreamConfiguration returns what upstream makes of a file, drop-ins and flags.
func upstreamConfiguration(t *testing.T, file, dropIns string, args []string) *v1beta1.KubeletConfiguration {
	t.Helper()
	c, err := upstreamLoad(t.Context(), file)
	if err != nil {
		t.Fatal(err)
	}
	if dropIns != "" {
		if _, err := upstreamMerge(c, dropIns); err != nil {
			t.Fatal(err)
		}
	}
	if err := upstreamPrecedence(c, args); err != nil {
		t.Fatal(err)
	}
	out := &v1beta1.KubeletConfiguration{}
	if err := conversion.Convert_config_KubeletConfiguration_To_v1beta1_KubeletConfiguration(c, out, nil); err != nil {
		t.Fatal(err)
	}
	return out
}

// sameConfiguration compares two configurations field by field.
func sameConfiguration(t *testing.T, name string, ours, theirs *v1beta1.KubeletConfiguration) {
	t.Helper()
	var docs [2]map[string]any
	for i, c := range []*v1beta1.KubeletConfiguration{ours, theirs} {
		text, err := json.Marshal(c)
		if err == nil {
			err = json.Unmarshal(text, &docs[i])
		}
		if err != nil {
			t.Fatal(err)
		}
		delete(docs[i], "apiVersion")
		delete(docs[i], "kind")
		delete(docs[i], "failCgroupV1") // our default is another one: Plimsoll supports cgroup v1
		if docs[i]["enableSystemLogQuery"] == false {
			delete(docs[i], "enableSystemLogQuery") // absent means false
		}
	}
	for field, want := range docs[1] {
		if !reflect.DeepEqual(docs[0][field], want) {
			t.Errorf("%s: %s is %v, want %v", name, field, docs[0][field], want)
		}
		delete(docs[0], field)
	}
	for field, v := range docs[0] {
		t.Errorf("%s: %s is %v, want nothing", name, field, v)
	}
}

// sourcesOfNode are upstream's directories whose code runs in the kubelet.
var sourcesOfNode = []string{"cmd/kubelet", "pkg/kubelet", "pkg/volume", "pkg/credentialprovider", "pkg/probe"}

// TestKubeletGates: each gate that the kubelet reads, and that is not locked, switches something on our nodes, or
// node.txt says what holds there.
func TestKubeletGates(t *testing.T) {
	root := moduleDir(t, "k8s.io/kubernetes")
	switches := kubeletconfig.Gates()
	onNodes := featuregate.OnNodes()
	names := map[string]bool{}
	for name := range utilfeature.DefaultMutableFeatureGate.GetAll() {
		names[string(name)] = true
	}
	use := regexp.MustCompile(`\b\w*[fF]eatures\.([A-Z]\w+)`)
	read := map[string]bool{}
	for _, dir := range sourcesOfNode {
		if err := filepath.WalkDir(filepath.Join(root, dir), func(path string, d os.DirEntry, err error) error {
			if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") ||
				strings.Contains(d.Name(), "windows") {
				return err
			}
			text, err := os.ReadFile(path)
			for _, m := range use.FindAllStringSubmatch(string(text), -1) {
				read[m[1]] = read[m[1]] || names[m[1]]
			}
			return err
		}); err != nil {
			t.Fatal(err)
		}
	}
	for name, yes := range read {
		gate := featuregate.All()[name]
		if yes && !gate.Locked && !switches[name] && onNodes[name] == "" {
			t.Errorf("%s: the kubelet reads it: say in node.txt what holds on our nodes", name)
		}
		if switches[name] && onNodes[name] != "" {
			t.Errorf("%s: it switches something, and node.txt says that it does not", name)
		}
	}
	for name, why := range onNodes {
		if !names[name] || why == "" {
			t.Errorf("node.txt: %s: %q: no such gate, or no text", name, why)
		}
	}
}

// moduleDir returns the directory of a module's source.
func moduleDir(t *testing.T, module string) string {
	t.Helper()
	out, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", module).Output()
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(out))
}
