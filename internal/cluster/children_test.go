package cluster

import (
	"crypto/x509"
	"encoding/pem"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/yaml"

	"github.com/plimsoll-dev/plimsoll/deploy"
	"github.com/plimsoll-dev/plimsoll/internal/cluster/pki"
	"github.com/plimsoll-dev/plimsoll/internal/cluster/supervise"
	"github.com/plimsoll-dev/plimsoll/internal/csi"
)

func testBuilder(t *testing.T, o Options) builder {
	t.Helper()
	if err := (layout{o}).makeDirectories(); err != nil {
		t.Fatal(err)
	}
	return builder{layout: layout{o}, controlplane: "/bin/controlplane", plimsoll: "/bin/plimsoll",
		proxyMode: modeNFTables,
		driver:    "/bin/driver", controllers: "/bin/controllers"}
}

func allSpecs(b builder) []supervise.Spec {
	return []supervise.Spec{b.etcd(), b.apiServer(), b.controllerManager(), b.scheduler(), b.lifecycle(), b.fleet(),
		b.agent("unix:///r.sock"), b.kubeProxy(),
		b.csiDriver(), b.storage()}
}

// If a command line differed from one `up` to the next, children that could be adopted would be restarted.
func TestCommandLinesAreStable(t *testing.T) {
	o := testOptions(t)
	o.EtcdServers = []string{"https://a:1", "https://b:2"}
	o.EtcdCAFile = "/ca"
	o.EtcdCertFile = "/cert"
	o.EtcdKeyFile = "/key"
	b := testBuilder(t, o)
	first := allSpecs(b)
	for range 20 {
		if again := allSpecs(b); !reflect.DeepEqual(first, again) {
			t.Fatalf("\n%v\n%v", first, again)
		}
	}
}

// --gc-percent applies only to upstream's programs; without it GOGC is not set.
func TestGCPercent(t *testing.T) {
	for _, percent := range []int{0, 400} {
		o := testOptions(t)
		o.GCPercent = percent
		for _, spec := range allSpecs(testBuilder(t, o)) {
			got := slices.Contains(spec.Env, "GOGC=400")
			if want := percent != 0 && slices.Contains([]string{childEtcd, childAPIServer, childControllerManager},
				spec.Name); got != want {
				t.Errorf("--gc-percent %d: %s has GOGC: %v, want %v", percent, spec.Name, got, want)
			}
		}
	}
}

// --volumes-max is passed to the driver; without it the driver states no limit.
func TestVolumesMax(t *testing.T) {
	for most, want := range map[int64]bool{0: false, 7: true} {
		o := testOptions(t)
		o.VolumesMax = most
		argv := testBuilder(t, o).csiDriver().Argv
		if got := slices.Contains(argv, "--volumes-max=7"); got != want || !want && len(argv) != 5 {
			t.Errorf("--volumes-max %d: %q", most, argv)
		}
	}
}

func TestEveryChildIsStopped(t *testing.T) {
	stopped := slices.Concat(stopOrder...)
	for _, spec := range allSpecs(testBuilder(t, testOptions(t))) {
		if !slices.Contains(stopped, spec.Name) {
			t.Errorf("%s is in no row of stopOrder", spec.Name)
		}
		if spec.Grace != graceOf(spec.Name) {
			t.Errorf("%s has grace %v at its start and %v at its end", spec.Name, spec.Grace, graceOf(spec.Name))
		}
	}
}

// Ports of the scheduler and the lifecycle controller are closed by default, and open on the same address as all
// others.
func TestSecurePorts(t *testing.T) {
	o := testOptions(t)
	for _, spec := range []supervise.Spec{testBuilder(t, o).scheduler(), testBuilder(t, o).lifecycle()} {
		if !slices.Contains(spec.Argv, "--secure-port=0") {
			t.Errorf("a port of %s is open that no option asks for: %q", spec.Name, spec.Argv)
		}
	}
	o.SchedulerPort, o.LifecyclePort = 10259, 10267
	for want, spec := range map[string]supervise.Spec{"10259": testBuilder(t, o).scheduler(), "10267": testBuilder(t,
		o).lifecycle()} {
		for _, arg := range []string{"--secure-port=" + want, "--bind-address=127.0.0.1", "--client-ca-file=" +
			pki.CertPath(layout{o}.pki(), caCluster)} {
			if !slices.Contains(spec.Argv, arg) {
				t.Errorf("%s: no %s in %q", spec.Name, arg, spec.Argv)
			}
		}
	}
}

// TestEtcdsSockets: both of etcd's sockets, one of them in its working directory, are in a directory that only its
// owner can enter, because etcd does not authenticate who connects.
func TestEtcdsSockets(t *testing.T) {
	o := testOptions(t)
	spec := testBuilder(t, o).etcd()
	sockets := filepath.Dir(layout{o}.etcdSocket())
	for _, want := range []string{"--listen-client-urls=unix://" + sockets + "/etcd.sock",
		"--listen-peer-urls=unix://peer:0"} {
		if !slices.Contains(spec.Argv, want) {
			t.Errorf("no %s in %q", want, spec.Argv)
		}
	}
	if info, err := os.Stat(spec.Dir); spec.Dir != sockets || err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("etcd works in %s, want %s with mode 0700 (%v)", spec.Dir, sockets, err)
	}
}

func TestAPIServerArguments(t *testing.T) {
	o := testOptions(t)
	args := testBuilder(t, o).apiServer().Argv
	for _, want := range []string{"kube-apiserver", "--bind-address=127.0.0.1", "--advertise-address=10.85.0.1",
		"--authorization-mode=Node,RBAC",
		"--enable-admission-plugins=NodeRestriction", "--etcd-servers=unix://" + o.RunDir +
			"/etcd/etcd.sock", "--kubelet-preferred-address-types=InternalDNS,InternalIP,Hostname"} {
		if !slices.Contains(args, want) {
			t.Errorf("no %s in %q", want, args)
		}
	}
	o = testOptions(t)
	o.BindAddress = "0.0.0.0"
	o.EtcdServers = []string{"https://a:1", "https://b:2"}
	o.EtcdCAFile = "/ca"
	args = testBuilder(t, o).apiServer().Argv
	for _, want := range []string{"--etcd-servers=https://a:1,https://b:2", "--etcd-cafile=/ca",
		"--advertise-address=192.0.2.10"} {
		if !slices.Contains(args, want) {
			t.Errorf("no %s in %q", want, args)
		}
	}
	if slices.Contains(args, "--endpoint-reconciler-type=none") {
		t.Error("reachable from outside, but without endpoints")
	}
	if url := (layout{o}).serverURL(); url != "https://127.0.0.1:6443" {
		t.Errorf("bound to all addresses, reached at %s", url)
	}
}

// Each component has its own identity, with the name that the API server's authorizers expect.
func TestIdentities(t *testing.T) {
	l := layout{testOptions(t)}
	l.o.Hollow = 1
	if err := l.makeDirectories(); err != nil {
		t.Fatal(err)
	}
	changed, err := l.ensureIdentities(time.Now())
	if err != nil || len(changed) == 0 {
		t.Fatalf("%v, %v", changed, err)
	}
	for w, want := range map[who]string{
		whoAdmin: "CN=plimsoll-admin,O=plimsoll:cluster-admins", whoLauncher: "CN=plimsoll-launcher,O=system:masters",
		whoControllerManager: "CN=system:kube-controller-manager", whoScheduler: "CN=system:kube-scheduler",
		whoLifecycle: "CN=plimsoll:lifecycle", whoAgent: "CN=system:node:node-1,O=system:nodes",
		whoFleet: "CN=plimsoll:fleet",
	} {
		path := l.kubeconfig(w)
		if w == whoAdmin {
			path = l.adminKubeconfig()
		}
		config, err := clientcmd.BuildConfigFromFlags("", path)
		if err != nil {
			t.Fatal(err)
		}
		text := config.CertData
		if len(text) == 0 {
			if text, err = os.ReadFile(config.CertFile); err != nil {
				t.Fatal(err)
			}
		}
		block, _ := pem.Decode(text)
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil || cert.Subject.String() != want || config.Host != "https://127.0.0.1:6443" {
			t.Errorf("%s is %v at %s, %v, want %s", w, cert.Subject, config.Host, err, want)
		}
		if self := len(config.CertData) > 0 && len(config.KeyData) > 0 && len(config.CAData) > 0; self != (w == whoAdmin) {
			t.Errorf("%s: self-contained %v", w, self)
		}
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v, %v", path, info.Mode(), err)
		}
	}
	if changed, err := l.ensureIdentities(time.Now()); err != nil || len(changed) != 0 {
		t.Errorf("the second time: %v, %v", changed, err)
	}
}

// A node that joins may not have the name of one of the cluster's servers. The first node's name is in their
// certificates, too.
func TestServerNames(t *testing.T) {
	l := layout{testOptions(t)}
	names := l.serverNames()
	for _, want := range []string{"localhost", "kubernetes", "kubernetes.default.svc", "metrics-server.kube-system.svc"} {
		if !slices.Contains(names, want) {
			t.Errorf("%s is not among %v", want, names)
		}
	}
	if slices.Contains(names, l.o.NodeName) {
		t.Errorf("the first node's name is among %v", names)
	}
}

// A certificate that is renewed replaces no agent of ours, which reads it again, but a kubelet.
func TestAgentFollowsItsCertificates(t *testing.T) {
	for binary, restarts := range map[string]bool{"": false, "/usr/bin/kubelet": true} {
		o := testOptions(t)
		o.AgentBinary = binary
		b := testBuilder(t, o)
		inputs := b.agent("unix:///run/runtime.sock").Inputs
		for _, cert := range []string{pki.CertPath(b.pki(), certAgentServing), b.certificateOf(whoAgent)} {
			if slices.Contains(inputs, cert) != restarts {
				t.Errorf("agent %q: inputs %q, %s among them: want %v", binary, inputs, cert, restarts)
			}
		}
	}
}

// kube-apiserver can verify the agent's server by each of its names.
func TestAgentServingCertificate(t *testing.T) {
	l := layout{testOptions(t)}
	for _, leaf := range l.plan().Leaves {
		if leaf.Name != certAgentServing {
			continue
		}
		if !slices.Contains(leaf.DNSNames, "localhost") || !slices.Contains(leaf.DNSNames, "node-1") {
			t.Errorf("names %v", leaf.DNSNames)
		}
		var ips []string
		for _, ip := range leaf.IPs {
			ips = append(ips, ip.String())
		}
		if !slices.Contains(ips, "127.0.0.1") || !slices.Contains(ips, "192.0.2.10") {
			t.Errorf("addresses %v", ips)
		}
	}
}

// The installed manifests are well formed, and they bind each of our own identities.
func TestManifests(t *testing.T) {
	o := testOptions(t)
	if bound := bindings(t, o); bound[userFleet] ||
		slices.ContainsFunc(layout{o}.plan().Leaves, func(l pki.Leaf) bool { return l.CommonName == userFleet }) {
		t.Error("without hollow nodes their identity has a role or a certificate")
	}
	if old, err := (layout{o}).unwanted(false); err != nil || len(old) == 0 {
		t.Error("without hollow nodes their role stays from an `up` that had some")
	}
	o.Hollow = 1
	if old, err := (layout{o}).unwanted(false); err != nil || len(old) > 0 {
		t.Error("with hollow nodes their role is removed")
	}
	o.Without = []string{addonCSI}
	if bound := bindings(t, o); bound[userStorage] {
		t.Error("without the add-on csi its identity has a role")
	}
	if old, err := (layout{o}).unwanted(false); err != nil || len(old) == 0 {
		t.Error("without the add-on csi its role stays from an `up` that had it")
	}
	o.Without = nil
	bound := bindings(t, o)
	for _, leaf := range (layout{o}).plan().Leaves {
		if leaf.Client && leaf.Authority == caCluster && !strings.HasPrefix(leaf.CommonName, "system:") &&
			leaf.Organization != "system:masters" &&
			!bound[leaf.CommonName] && !bound[leaf.Organization] {
			t.Errorf("%s (%s) may do nothing", leaf.CommonName, leaf.Organization)
		}
	}
}

// TestDriverName: the objects that are installed for the driver, and the wait for it, use the driver's own name.
func TestDriverName(t *testing.T) {
	if driverName != csi.Name {
		t.Errorf("the driver is %s, `up` waits for %s", csi.Name, driverName)
	}
	for _, line := range []string{"metadata: {name: " + csi.Name + "}", "provisioner: " + csi.Name} {
		if !strings.Contains(deploy.Storage, "\n"+line+"\n") {
			t.Errorf("no %q in\n%s", line, deploy.Storage)
		}
	}
}

// bindings checks the form of the installed manifests and returns the users that they bind.
func bindings(t *testing.T, o Options) map[string]bool {
	t.Helper()
	bound := map[string]bool{}
	documents, err := layout{o}.installed()
	if err != nil {
		t.Fatal(err)
	}
	for _, document := range documents {
		var binding rbacv1.ClusterRoleBinding
		var object any = &rbacv1.ClusterRole{}
		switch {
		case strings.Contains(document, "kind: ClusterRoleBinding"):
			object = &binding
		case strings.Contains(document, "kind: RoleBinding"):
			object = &rbacv1.RoleBinding{}
		case strings.Contains(document, "kind: Role\n"):
			object = &rbacv1.Role{}
		case strings.Contains(document, "kind: CSIDriver"):
			object = &storagev1.CSIDriver{}
		case strings.Contains(document, "kind: StorageClass"):
			object = &storagev1.StorageClass{}
		case strings.Contains(document, "kind: ValidatingAdmissionPolicyBinding"):
			object = &admissionv1.ValidatingAdmissionPolicyBinding{}
		case strings.Contains(document, "kind: ValidatingAdmissionPolicy"):
			object = &admissionv1.ValidatingAdmissionPolicy{}
		case strings.Contains(document, "kind: FlowSchema"):
			object = &flowcontrolv1.FlowSchema{}
		case strings.Contains(document, "kind: CustomResourceDefinition"):
			continue // its types are not in our modules; in test/e2e a real API server checks it
		}
		if err := yaml.UnmarshalStrict([]byte(document), object); err != nil {
			t.Errorf("%v in\n%s", err, document)
		}
		for _, s := range binding.Subjects {
			bound[s.Name] = true
		}
	}
	return bound
}

// The user's configuration is kept, except for the fields that `up` sets.
func TestAgentConfig(t *testing.T) {
	o := testOptions(t)
	o.AgentConfig = filepath.Join(t.TempDir(), "kubelet.yaml")
	if err := os.WriteFile(o.AgentConfig, []byte("maxPods: 42\nport: 1\ncgroupRoot: /mine\nresolvConf: /my/resolv.conf\n"),
		0o600); err != nil {
		t.Fatal(err)
	}
	l := layout{o}
	if err := l.makeDirectories(); err != nil {
		t.Fatal(err)
	}
	if err := l.writeAgentConfig(); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(l.agentConfig())
	if err != nil {
		t.Fatal(err)
	}
	var got map[string]any
	if err := yaml.Unmarshal(text, &got); err != nil {
		t.Fatal(err)
	}
	for key, want := range map[string]any{"kind": "KubeletConfiguration", "maxPods": 42.0, "port": 10250.0,
		"address":    "127.0.0.1",
		"cgroupRoot": "/plimsoll-test", "resolvConf": "/my/resolv.conf", "clusterDomain": "cluster.local",
		"makeIPTablesUtilChains": false,
		"tlsCertFile":            pki.CertPath(l.pki(), certAgentServing), "failSwapOn": nil} {
		if !reflect.DeepEqual(got[key], want) {
			t.Errorf("%s is %v, want %v", key, got[key], want)
		}
	}
	if err := os.WriteFile(o.AgentConfig, []byte("serverTLSBootstrap: true\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for server, has := range map[string]bool{"": true, "https://192.0.2.1:6443": false} { // a machine that joined
		o.Server = server
		if err := (layout{o}).writeAgentConfig(); err != nil {
			t.Fatal(err)
		}
		text, err := os.ReadFile(l.agentConfig())
		if err != nil || strings.Contains(string(text), "tlsCertFile") != has {
			t.Errorf("server %q: %v\n%s", server, err, text)
		}
	}
	o.Server = ""
	o.AgentConfig = filepath.Join(t.TempDir(), "none.yaml")
	if err := (layout{o}).writeAgentConfig(); err == nil || !strings.Contains(err.Error(), o.AgentConfig) {
		t.Errorf("error %v does not name the file", err)
	}
}

func TestFindControlplane(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("PATH", dir)
	self := filepath.Join(dir, "sub", "plimsoll")
	if _, err := findControlplane("", self); err == nil || !strings.Contains(err.Error(), "--controlplane-binary") ||
		!strings.Contains(err.Error(), "make ") {
		t.Errorf("nowhere: %v", err)
	}
	if _, err := findControlplane("/no/such/file", self); err == nil || !strings.Contains(err.Error(), "/no/such/file") {
		t.Errorf("wrong error: %v", err)
	}
	put := func(path string) {
		t.Helper()
		err := os.MkdirAll(filepath.Dir(path), 0o755)
		if err == nil {
			err = os.WriteFile(path, nil, 0o755)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	inPath := filepath.Join(dir, controlplaneName)
	put(inPath)
	if got, err := findControlplane("", self); err != nil || got != inPath {
		t.Errorf("in PATH: %s, %v", got, err)
	}
	beside := filepath.Join(dir, "sub", controlplaneName)
	put(beside)
	if got, err := findControlplane("", self); err != nil || got != beside {
		t.Errorf("beside: %s, %v", got, err)
	}
	if got, err := findControlplane(inPath, self); err != nil || got != inPath {
		t.Errorf("got %s, %v", got, err)
	}
}
