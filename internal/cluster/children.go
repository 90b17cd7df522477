package cluster

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/plimsoll-dev/plimsoll/internal/cluster/pki"
	"github.com/plimsoll-dev/plimsoll/internal/cluster/supervise"
	"github.com/plimsoll-dev/plimsoll/internal/host/durable"
)

// The children. The names are also those of their logs and of their lines in `plimsoll status`.
const (
	childEtcd              = "etcd"
	childAPIServer         = "kube-apiserver"
	childControllerManager = "kube-controller-manager"
	childKubeProxy         = "kube-proxy"
	childScheduler         = "scheduler"
	childLifecycle         = "lifecycle"
	childContainerd        = "containerd"
	childAgent             = "agent"
	childFleet             = "fleet"
	childCSIDriver         = "csi-driver"
	childStorage           = "storage"
)

// stopOrder stops components before what they depend on. Children of one row stop together. containerd is not here: it
// is stopped last, when the pods are gone.
var stopOrder = [][]string{
	{childAgent, childKubeProxy, childFleet, childScheduler, childLifecycle, childControllerManager, childStorage},
	{childAPIServer, childCSIDriver},
	{childEtcd},
}

// Grace periods between SIGTERM and SIGKILL (chosen). etcd and containerd flush to disk. kube-apiserver completes
// requests; when it is stopped, its clients have already ended.
const (
	graceComponent = 5 * time.Second
	graceAPIServer = 10 * time.Second
	graceStore     = 20 * time.Second
)

// builder makes the children's command lines for one instance. Its fields are set before the first child starts.
type builder struct {
	layout
	controlplane string // path of plimsoll-controlplane
	plimsoll     string // path of this program
	proxyMode    string // of kube-proxy
	driver       string // path of plimsoll-csi
	controllers  string // path of plimsoll-storage
}

// searchPath is the children's PATH.
const searchPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// environment returns the whole environment of a child. It takes nothing from the caller's shell, so that a restart
// from another shell has the same effect. Proxy settings would misdirect API traffic; only the runtime, which pulls
// images, gets them (extra).
func environment(extra ...string) []string {
	env := []string{"PATH=" + searchPath, "HOME=/"}
	for _, name := range extra {
		if value, ok := os.LookupEnv(name); ok {
			env = append(env, name+"="+value)
		}
	}
	return env
}

func (b builder) upstream(name string, grace time.Duration, inputs []string, args ...string) supervise.Spec {
	env := environment()
	if b.o.GCPercent != 0 {
		env = append(env, "GOGC="+strconv.Itoa(b.o.GCPercent))
	}
	return supervise.Spec{Name: name, Argv: append([]string{b.controlplane, name}, args...), Env: env, Dir: b.o.RunDir,
		Inputs: inputs, Log: b.log(name), Grace: grace}
}

func (b builder) own(name string, w who, inputs []string, args ...string) supervise.Spec {
	argv := append([]string{b.plimsoll, name, "--kubeconfig", b.kubeconfig(w)}, args...)
	return supervise.Spec{Name: name, Argv: argv, Env: environment(), Dir: b.o.RunDir,
		Inputs: append(inputs, b.kubeconfig(w), b.certificateOf(w)), Log: b.log(name), Grace: graceComponent}
}

// etcd listens on a socket in a directory to which only the owner has access. That avoids port conflicts and protects
// as well as TLS would, whose keys would be in a directory with the same protection. There are no peers, but etcd
// requires addresses for them. It takes the unix URL "peer:0" as a file of that name in the working directory, so the
// working directory is the socket's.
func (b builder) etcd() supervise.Spec {
	spec := b.upstream(childEtcd, graceStore, nil,
		"--name="+b.o.fullName(),
		"--data-dir="+b.etcdData(),
		"--listen-client-urls=unix://"+b.etcdSocket(),
		"--advertise-client-urls=unix://client:0",
		"--listen-peer-urls=unix://peer:0",
		"--initial-advertise-peer-urls=unix://peer:0",
		"--initial-cluster="+b.o.fullName()+"=unix://peer:0",
		// A single member elects itself when the election timeout ends. This makes it 0.5 s instead of 1 s at every start;
		// there are no other members that could need longer.
		"--heartbeat-interval=100",
		"--election-timeout=500",
	)
	spec.Dir = filepath.Dir(b.etcdSocket())
	return spec
}

func (b builder) apiServer() supervise.Spec {
	o, dir := b.o, b.pki()
	args := []string{
		"--bind-address=" + o.BindAddress,
		"--secure-port=" + strconv.Itoa(o.APIServerPort),
		"--advertise-address=" + o.advertiseAddress(),
		"--service-cluster-ip-range=" + o.ServiceCIDR,
		"--authorization-mode=Node,RBAC",
		"--enable-admission-plugins=NodeRestriction",
		"--allow-privileged=true",
		"--profiling=false",
		"--client-ca-file=" + pki.CertPath(dir, caCluster),
		"--tls-cert-file=" + pki.CertPath(dir, certAPIServer),
		"--tls-private-key-file=" + pki.KeyPath(dir, certAPIServer),
		"--kubelet-certificate-authority=" + pki.CertPath(dir, caCluster),
		"--kubelet-client-certificate=" + pki.CertPath(dir, certKubelet),
		"--kubelet-client-key=" + pki.KeyPath(dir, certKubelet),
		// The agent on this machine listens on loopback only; it publishes that as InternalDNS "localhost". Agents on
		// other machines publish no InternalDNS and are reached by address.
		"--kubelet-preferred-address-types=InternalDNS,InternalIP,Hostname",
		"--service-account-issuer=https://kubernetes.default.svc.cluster.local",
		"--service-account-key-file=" + pki.PublicKeyPath(dir, keyServiceTokens),
		"--service-account-signing-key-file=" + pki.KeyPath(dir, keyServiceTokens),
		"--requestheader-client-ca-file=" + pki.CertPath(dir, caFrontProxy),
		"--requestheader-allowed-names=front-proxy-client",
		"--requestheader-username-headers=X-Remote-User",
		"--requestheader-group-headers=X-Remote-Group",
		"--requestheader-extra-headers-prefix=X-Remote-Extra-",
		"--proxy-client-cert-file=" + pki.CertPath(dir, certFrontProxy),
		"--proxy-client-key-file=" + pki.KeyPath(dir, certFrontProxy),
		// When it is stopped, kube-apiserver waits up to a minute for clients to end their watches, which they do not do.
		// With these flags it closes the watches itself, at 200 per second (all within the first flag's time), and waits 2 s
		// for other long requests (exec, port-forward).
		"--shutdown-watch-termination-grace-period=2s",
		"--shutdown-send-retry-after=true",
	}
	if o.has(addonMetrics) {
		// Requests for metrics.k8s.io go to the Service's pods directly, so that they work without kube-proxy.
		args = append(args, "--enable-aggregator-routing=true")
	}
	if o.shared() {
		args = append(args, "--enable-bootstrap-token-auth=true")
	}
	if o.loopback() && !o.forwardsPods() {
		// An Endpoints object must not contain a loopback address, and no pod could reach one. So the Service
		// "kubernetes" has no endpoints instead of one that nothing serves.
		args = append(args, "--endpoint-reconciler-type=none")
	}
	args = append(args, b.etcdArgs()...)
	return b.upstream(childAPIServer, graceAPIServer, []string{pki.PublicKeyPath(dir, keyServiceTokens),
		pki.CertPath(dir, caCluster)}, args...)
}

// controllerManager runs without the two controllers that `plimsoll lifecycle` replaces.
func (b builder) controllerManager() supervise.Spec {
	dir, kubeconfig := b.pki(), b.kubeconfig(whoControllerManager)
	args := []string{
		"--kubeconfig=" + kubeconfig,
		"--authentication-kubeconfig=" + kubeconfig,
		"--authorization-kubeconfig=" + kubeconfig,
		"--bind-address=" + b.o.BindAddress,
		"--secure-port=" + strconv.Itoa(b.o.ControllerManagerPort),
		"--tls-cert-file=" + pki.CertPath(dir, certCMServing),
		"--tls-private-key-file=" + pki.KeyPath(dir, certCMServing),
		"--client-ca-file=" + pki.CertPath(dir, caCluster),
		"--requestheader-client-ca-file=" + pki.CertPath(dir, caFrontProxy),
		"--use-service-account-credentials=true",
		"--service-account-private-key-file=" + pki.KeyPath(dir, keyServiceTokens),
		"--root-ca-file=" + pki.CertPath(dir, caCluster),
		"--cluster-signing-cert-file=" + pki.CertPath(dir, caCluster),
		"--cluster-signing-key-file=" + pki.KeyPath(dir, caCluster),
		b.leaderElect(),
		// Thirty controllers request a token each before they begin. At the default of 20 requests per second the last one,
		// the controller of service accounts, would begin seconds later.
		"--kube-api-qps=200",
		"--kube-api-burst=400",
		"--profiling=false",
	}
	if d := b.o.SigningDuration; d != 0 {
		args = append(args, "--cluster-signing-duration="+d.String())
	}
	return b.upstream(childControllerManager, graceComponent, []string{kubeconfig, b.certificateOf(whoControllerManager)},
		append(args, b.sharedControllers()...)...)
}

// leaderElect is the flag of controllers. A leader is elected only where other machines may have the same controllers.
func (b builder) leaderElect() string { return "--leader-elect=" + strconv.FormatBool(b.o.elects()) }

func (b builder) scheduler() supervise.Spec {
	return b.own(childScheduler, whoScheduler, nil, append(b.securePort(b.o.SchedulerPort), b.leaderElect(),
		"--journal-dir="+b.journal(childScheduler))...)
}

func (b builder) lifecycle() supervise.Spec {
	return b.own(childLifecycle, whoLifecycle, nil, append(b.securePort(b.o.LifecyclePort), b.leaderElect(),
		"--journal-dir="+b.journal(childLifecycle))...)
}

// securePort returns the flags for the HTTPS port of one of our components. The component makes its own certificate and
// keeps it in memory, as upstream's components do without one; kube-apiserver authorizes the readers.
func (b builder) securePort(port int) []string {
	args := []string{"--secure-port=" + strconv.Itoa(port)}
	if port != 0 {
		args = append(args, "--bind-address="+b.o.BindAddress, "--client-ca-file="+pki.CertPath(b.pki(), caCluster))
	}
	return args
}

// certificateOf returns the path of an identity's certificate.
func (b builder) certificateOf(w who) string { return pki.CertPath(b.pki(), string(b.o.holder(w))) }

func (b builder) fleet() supervise.Spec {
	return b.own(childFleet, whoFleet, nil, "--nodes", strconv.Itoa(b.o.Hollow), "--node-prefix", hollowPrefix,
		"--zones", strconv.Itoa(b.o.HollowZones), "--control", b.o.FleetSocket())
}

func (b builder) agent(endpoint string) supervise.Spec {
	inputs := []string{b.agentConfig(), pki.CertPath(b.pki(), certAgentServing), pki.CertPath(b.pki(), caCluster)}
	spec := b.own(childAgent, whoAgent, inputs,
		"--config", b.agentConfig(),
		"--root-dir", b.agentRoot(),
		"--container-runtime-endpoint", endpoint,
		"--hostname-override", b.o.NodeName,
		"--node-ip", b.o.NodeIP,
	)
	if b.o.AgentBinary == "" { // our agent reads its own certificates again when they change
		spec.Inputs = []string{b.agentConfig(), pki.CertPath(b.pki(), caCluster), b.kubeconfig(whoAgent)}
	}
	if b.o.DevicePluginsDir != "" && b.o.AgentBinary == "" {
		spec.Argv = append(spec.Argv, "--device-plugins-dir", b.o.DevicePluginsDir)
	}
	// its arguments are those of `plimsoll agent`, without the names of the program and the verb
	if b.o.AgentBinary != "" {
		spec.Argv = append([]string{b.o.AgentBinary}, spec.Argv[2:]...)
	}
	return spec
}

// writeAgentConfig writes the agent's KubeletConfiguration: the user's, if given, with the fields set that only `up`
// can know.
func (l layout) writeAgentConfig() error {
	config := map[string]any{}
	if path := l.o.AgentConfig; path != "" {
		text, err := os.ReadFile(path)
		if err == nil {
			err = yaml.Unmarshal(text, &config)
		}
		if err != nil {
			return fmt.Errorf("read --agent-config %s: %w", path, err)
		}
	} else {
		config["failSwapOn"] = false // a machine may have swap; its pods do not use it
	}
	dir := l.pki()
	for key, value := range map[string]any{
		"apiVersion":        "kubelet.config.k8s.io/v1beta1",
		"kind":              "KubeletConfiguration",
		"address":           l.o.BindAddress,
		"port":              l.o.AgentPort,
		"healthzPort":       l.o.AgentHealthPort,
		"tlsCertFile":       pki.CertPath(dir, certAgentServing),
		"tlsPrivateKeyFile": pki.KeyPath(dir, certAgentServing),
		"authentication": map[string]any{
			"anonymous": map[string]any{"enabled": false},
			"webhook":   map[string]any{"enabled": true},
			"x509":      map[string]any{"clientCAFile": pki.CertPath(dir, caCluster)},
		},
		"authorization": map[string]any{"mode": "Webhook"},
		"staticPodPath": l.staticPods(),
		"podLogsDir":    l.podLogs(),
		"cgroupRoot":    l.cgroupRoot(),
		"cgroupDriver":  "cgroupfs",
	} {
		config[key] = value
	}
	if l.o.joined() && config["serverTLSBootstrap"] == true { // the agent requests its own; `up` approves it
		delete(config, "tlsCertFile")
		delete(config, "tlsPrivateKeyFile")
	}
	defaults := map[string]any{
		"clusterDomain": "cluster.local",
		"resolvConf":    resolvConf(),
		// Nothing here looks for these chains, and `down` could not tell them from those of another agent.
		"makeIPTablesUtilChains": false,
	}
	if l.o.has(addonDNS) {
		defaults["clusterDNS"] = []string{l.o.clusterDNS().String()}
	}
	for key, value := range defaults {
		if _, set := config[key]; !set {
			config[key] = value
		}
	}
	text, err := yaml.Marshal(config)
	if err != nil {
		return fmt.Errorf("write agent configuration: %w", err)
	}
	_, err = durable.WriteIfChanged(l.agentConfig(), text)
	return err
}

// resolvConf returns the file with the name servers for pods. Where systemd-resolved runs, /etc/resolv.conf names a
// loopback address that no pod can reach; real has the real servers (systemd-resolved.service(8)).
func resolvConf() string {
	const real = "/run/systemd/resolve/resolv.conf"
	if _, err := os.Stat(real); err == nil {
		return real
	}
	return "/etc/resolv.conf"
}
