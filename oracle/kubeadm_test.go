package oracle

import (
	"bytes"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/spf13/pflag"
	certificatesv1 "k8s.io/api/certificates/v1"
	"k8s.io/client-go/kubernetes/scheme"
	v1beta1 "k8s.io/kubelet/config/v1beta1"
	kubeadmapi "k8s.io/kubernetes/cmd/kubeadm/app/apis/kubeadm"
	kubeadmconstants "k8s.io/kubernetes/cmd/kubeadm/app/constants"
	kubeletphase "k8s.io/kubernetes/cmd/kubeadm/app/phases/kubelet"
	"k8s.io/kubernetes/cmd/kubeadm/app/preflight"
	kubeadmconfig "k8s.io/kubernetes/cmd/kubeadm/app/util/config"
	kubeadmkubeconfig "k8s.io/kubernetes/cmd/kubeadm/app/util/kubeconfig"
	utilsexec "k8s.io/utils/exec"

	"github.com/plimsoll-dev/plimsoll/internal/agent/node"
	"github.com/plimsoll-dev/plimsoll/internal/kube/kubeletconfig"
	"github.com/plimsoll-dev/plimsoll/internal/kube/kubeletflags"
)

// kubeadmNode is a case: what a user gives kubeadm for a node. DIR stands for a directory of the test's own.
type kubeadmNode struct {
	documents string
	patch     string // of the KubeletConfiguration; empty: none
	joins     bool   // a worker that joins; else the first server
	extra     string // KUBELET_EXTRA_ARGS of /etc/default/kubelet
	name      string // of the node
	// warnings are the beginnings of what the agent warns of, in their order.
	warnings []string
	// holds reports whether the configuration says what the user wrote.
	holds func(*v1beta1.KubeletConfiguration) bool
}

// clusterDocument is what all nodes have. The root directory and the socket are the test's own: no part of the machine
// is touched, and no runtime answers.
const clusterDocument = `
---
apiVersion: kubeadm.k8s.io/v1beta4
kind: ClusterConfiguration
kubernetesVersion: v1.36.3
certificatesDir: DIR/pki
networking: {serviceSubnet: 10.112.0.0/12, podSubnet: 10.128.0.0/9, dnsDomain: cluster.example}
`

var kubeadmNodes = map[string]kubeadmNode{
	"first server": {
		documents: `
apiVersion: kubeadm.k8s.io/v1beta4
kind: InitConfiguration
localAPIEndpoint: {advertiseAddress: 192.0.2.1}
nodeRegistration:
  name: first.example
  criSocket: unix://DIR/absent.sock
  kubeletExtraArgs: [{name: root-dir, value: DIR/root}]
` + clusterDocument,
		name: "first.example",
		holds: func(c *v1beta1.KubeletConfiguration) bool {
			return slices.Equal(c.ClusterDNS, []string{"10.112.0.10"}) && c.ClusterDomain == "cluster.example" &&
				c.CgroupDriver == "systemd" && c.RotateCertificates && c.StaticPodPath == "/etc/kubernetes/manifests" &&
				c.Authorization.Mode == v1beta1.KubeletAuthorizationModeWebhook && len(c.RegisterWithTaints) == 0
		},
	},
	"worker with everything": {
		documents: `
apiVersion: kubeadm.k8s.io/v1beta4
kind: InitConfiguration
localAPIEndpoint: {advertiseAddress: 192.0.2.1}
nodeRegistration:
  name: Worker-1
  criSocket: DIR/absent.sock
  taints: [{key: example.com/dedicated, value: batch, effect: NoSchedule}, {key: new, effect: PreferNoSchedule}]
  kubeletExtraArgs:
  - {name: root-dir, value: DIR/root}
  - {name: node-labels, value: "example.com/rack=r1,zone=z2"}
  - {name: node-ip, value: 192.0.2.7}
  - {name: feature-gates, value: NodeSwap=true}
  - {name: max-pods, value: "42"}
` + clusterDocument + `
---
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
cgroupDriver: cgroupfs
serverTLSBootstrap: true
shutdownGracePeriod: 45s
shutdownGracePeriodCriticalPods: 15s
evictionHard: {memory.available: 300Mi}
kubeletCgroups: /system.slice/kubelet.service
`,
		patch:    "kubeReserved: {cpu: 200m, memory: 512Mi}\nreadOnlyPort: 10255\n",
		joins:    true,
		extra:    "--v=4 --system-reserved=cpu=100m,memory=256Mi",
		name:     "worker-1",
		warnings: []string{"readOnlyPort: 10255: not honoured"},
		holds: func(c *v1beta1.KubeletConfiguration) bool {
			taints := c.RegisterWithTaints
			return c.MaxPods == 42 && c.CgroupDriver == "cgroupfs" && c.ServerTLSBootstrap &&
				c.ShutdownGracePeriod.Duration == 45*time.Second && c.EvictionHard["memory.available"] == "300Mi" &&
				c.KubeReserved["memory"] == "512Mi" && c.SystemReserved["memory"] == "256Mi" &&
				c.FeatureGates["NodeSwap"] && c.Logging.Verbosity == 4 && len(taints) == 2 && taints[1].Key == "new"
		},
	},
}

// kubeadmFiles is what kubeadm has written for a kubelet.
type kubeadmFiles struct {
	dir    string
	config *kubeadmapi.InitConfiguration
	args   []string // of the kubelet, by the unit of kubeadm's packages
}

func (w kubeadmFiles) file(name string) string { return filepath.Join(w.dir, name) }

// kubeadmWrites has kubeadm write its files into a directory, as `kubeadm init` and `kubeadm join` do.
func kubeadmWrites(t *testing.T, n kubeadmNode) kubeadmFiles {
	t.Helper()
	w := kubeadmFiles{dir: t.TempDir()}
	var err error
	text := strings.ReplaceAll(n.documents, "DIR", w.dir)
	if w.config, err = kubeadmconfig.BytesToInitConfiguration([]byte(text), true); err != nil {
		t.Fatal(err)
	}
	patches := ""
	if n.patch != "" {
		patches = t.TempDir()
		file := filepath.Join(patches, "kubeletconfiguration0+strategic.yaml")
		if err := os.WriteFile(file, []byte(n.patch), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	cluster, node := &w.config.ClusterConfiguration, &w.config.NodeRegistration
	instance := &v1beta1.KubeletConfiguration{ContainerRuntimeEndpoint: node.CRISocket}
	for _, err := range []error{
		kubeletphase.WriteKubeletDynamicEnvFile(cluster, node, n.joins, w.dir),
		kubeletphase.WriteInstanceConfigToDisk(instance, w.dir),
		kubeletphase.WriteConfigToDisk(cluster, w.dir, patches, io.Discard),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	w.args = []string{
		"--bootstrap-kubeconfig=" + w.file(kubeadmconstants.KubeletBootstrapKubeConfigFileName),
		"--kubeconfig=" + w.file(kubeadmconstants.KubeletKubeConfigFileName),
		"--config=" + w.file(kubeadmconstants.KubeletConfigurationFileName),
	}
	w.args = append(w.args, kubeadmFlags(t, w.file(kubeadmconstants.KubeletEnvFileName))...)
	w.args = append(w.args, strings.Fields(n.extra)...)
	return w
}

// kubeadmFlags are the flags in kubeadm-flags.env, as systemd passes them on: $KUBELET_KUBEADM_ARGS in an ExecStart= is
// split at white space.
func kubeadmFlags(t *testing.T, file string) []string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	name, value, _ := strings.Cut(strings.TrimSpace(string(text)), "=")
	value, err = strconv.Unquote(value)
	if err != nil || name != kubeadmconstants.KubeletEnvFileVariableName {
		t.Fatalf("%s: %q, %v", file, text, err)
	}
	return strings.Fields(value)
}

// TestKubeadmConfigurations: what kubeadm writes for a kubelet gives the configuration that it gives in the kubelet,
// and what the user wrote is in it.
func TestKubeadmConfigurations(t *testing.T) {
	for name, n := range kubeadmNodes {
		w := kubeadmWrites(t, n)
		fs := pflag.NewFlagSet("plimsoll", pflag.ContinueOnError)
		fs.ParseErrorsAllowlist.UnknownFlags = true // those of cmd/plimsoll, which set no field
		line := kubeletflags.Add(fs)
		taints := fs.String("register-with-taints", "", "") // cmd/plimsoll makes the same setting of it
		if err := fs.Parse(w.args); err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		file := w.file(kubeadmconstants.KubeletConfigurationFileName)
		sources := kubeletconfig.Sources{File: file, Settings: line.Settings()}
		if *taints != "" {
			parsed, err := node.ParseTaints(*taints)
			if err != nil {
				t.Errorf("%s: %v", name, err)
			}
			sources.Settings = append(sources.Settings, kubeletconfig.Setting{
				Flag:  "--register-with-taints",
				Path:  "registerWithTaints",
				Value: parsed,
			})
		}
		ours, _, err := kubeletconfig.LoadFrom(sources)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		theirs := upstreamConfiguration(t, file, "", w.args)
		sameConfiguration(t, name, ours, theirs)
		if ours.ContainerRuntimeEndpoint != "unix://"+w.file("absent.sock") {
			t.Errorf("%s: the runtime is at %s", name, ours.ContainerRuntimeEndpoint)
		}
		if (*taints != "") != n.joins {
			t.Errorf("%s: kubeadm's flags: %s", name, w.args)
		}
		if !n.holds(ours) {
			t.Errorf("%s: the configuration is not what the user wrote: %+v", name, ours)
		}
	}
}

// certificateRequests is an API server as far as a kubelet meets it that has a bootstrap token only: it notes requests
// for certificates, and nobody approves them.
type certificateRequests struct {
	mu    sync.Mutex
	names []string // that the requests are for
	wrong []string
}

const kubeadmToken = "abcdef.0123456789abcdef"

func (c *certificateRequests) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodPost || r.URL.Path != "/apis/certificates.k8s.io/v1/certificatesigningrequests" {
		http.Error(w, "nobody answers that here", http.StatusServiceUnavailable)
		return
	}
	body, err := io.ReadAll(r.Body)
	request := &certificatesv1.CertificateSigningRequest{}
	if err == nil {
		_, _, err = scheme.Codecs.UniversalDeserializer().Decode(body, nil, request)
	}
	name := ""
	if block, _ := pem.Decode(request.Spec.Request); err == nil && block != nil {
		var of *x509.CertificateRequest
		if of, err = x509.ParseCertificateRequest(block.Bytes); err == nil {
			name = of.Subject.CommonName
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.names = append(c.names, name)
	if by := r.Header.Get("Authorization"); err != nil || by != "Bearer "+kubeadmToken ||
		request.Spec.SignerName != certificatesv1.KubeAPIServerClientKubeletSignerName {
		c.wrong = append(c.wrong, fmt.Sprintf("%v, by %q, signer %s", err, by, request.Spec.SignerName))
	}
	http.Error(w, "kept", http.StatusServiceUnavailable)
}

// asked returns the first name that a certificate was requested for.
func (c *certificateRequests) asked() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.names) == 0 {
		return ""
	}
	return c.names[0]
}

// logOf is the log of a process. It is safe for concurrent use.
type logOf struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *logOf) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *logOf) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// TestKubeadmNodes runs the program as kubeadm's unit runs the kubelet, called kubelet and with what kubeadm wrote: it
// refuses nothing, requests the node's certificate with the token, by the node's name, and waits for the runtime at the
// socket that kubeadm was given. kubeadm's own check reads its version.
func TestKubeadmNodes(t *testing.T) {
	bin := t.TempDir()
	if err := os.Symlink(buildPlimsoll(t), filepath.Join(bin, "kubelet")); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
	version, err := preflight.GetKubeletVersion(utilsexec.New())
	if err != nil || version.Minor() != 36 {
		t.Errorf("kubeadm reads version %v, %v", version, err)
	}
	for _, name := range slices.Sorted(maps.Keys(kubeadmNodes)) {
		t.Run(name, func(t *testing.T) { runKubeadmNode(t, kubeadmNodes[name]) })
	}
}

func runKubeadmNode(t *testing.T, n kubeadmNode) {
	w := kubeadmWrites(t, n)
	requests := &certificateRequests{}
	server := httptest.NewTLSServer(requests)
	defer server.Close()
	authority := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	bootstrap := kubeadmkubeconfig.CreateWithToken(server.URL, "kubernetes", "tls-bootstrap-token-user", authority,
		kubeadmToken)
	file := w.file(kubeadmconstants.KubeletBootstrapKubeConfigFileName)
	if err := kubeadmkubeconfig.WriteToDisk(file, bootstrap); err != nil {
		t.Fatal(err)
	}
	var log logOf
	cmd := exec.Command("kubelet", w.args...)
	cmd.Stdout, cmd.Stderr = &log, &log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	waits := "waiting for the container runtime"
	for deadline := time.Now().Add(time.Minute); requests.asked() == "" || !strings.Contains(log.String(), waits); {
		select {
		case err := <-ended:
			t.Fatalf("it ended by itself: %v\n%s", err, log.String())
		case <-time.After(20 * time.Millisecond):
		}
		if time.Now().After(deadline) {
			_ = cmd.Process.Kill()
			t.Fatalf("no request (%q), or it does not wait for the runtime:\n%s", requests.asked(), log.String())
		}
	}
	_ = cmd.Process.Signal(syscall.SIGTERM)
	<-ended
	requests.mu.Lock()
	defer requests.mu.Unlock()
	if want := "system:node:" + n.name; requests.names[0] != want || len(requests.wrong) > 0 {
		t.Errorf("a certificate for %q is requested, want %q; wrong: %q", requests.names[0], want, requests.wrong)
	}
	text := log.String()
	if !strings.Contains(text, w.file("absent.sock")) {
		t.Errorf("it does not wait for the runtime at %s:\n%s", w.file("absent.sock"), text)
	}
	var warnings []string
	for line := range strings.Lines(text) {
		if _, warning, is := strings.Cut(line, " warning="); is {
			warnings = append(warnings, strings.Trim(strings.TrimSpace(warning), `"`))
		}
	}
	same := slices.EqualFunc(warnings, n.warnings, strings.HasPrefix)
	if !same {
		t.Errorf("warnings %q, want %q", warnings, n.warnings)
	}
}
