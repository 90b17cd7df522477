package cluster

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"github.com/plimsoll-dev/plimsoll/internal/containerruntime"
	"github.com/plimsoll-dev/plimsoll/internal/host/durable"
	"github.com/plimsoll-dev/plimsoll/internal/kube/kubeletconfig"
)

// DefaultInstance is the instance that verbs act on when none is named.
const DefaultInstance = "plimsoll"

// Options say what one instance runs and where. They are saved in the state directory, so that down, status and kubectl
// need only the instance's name.
type Options struct {
	Instance string `json:"instance"`
	StateDir string `json:"stateDir"` // certificates, etcd's data, logs: it survives down
	RunDir   string `json:"runDir"`   // sockets, the record of children: down removes it

	NodeName      string `json:"nodeName"`
	NodeIP        string `json:"nodeIP"`        // the machine's own address, published in the Node
	BindAddress   string `json:"bindAddress"`   // of kube-apiserver and of all other ports
	APIServerPort int    `json:"apiserverPort"` // 0 on a further server: that of the other servers
	// The ports of the other children. 0 switches a port off, except that of the agent, which logs and exec need.
	ControllerManagerPort int `json:"controllerManagerPort"`
	SchedulerPort         int `json:"schedulerPort,omitempty"`
	LifecyclePort         int `json:"lifecyclePort,omitempty"`
	AgentPort             int `json:"agentPort"`
	AgentHealthPort       int `json:"agentHealthPort"`

	KubeProxyPort       int `json:"kubeProxyPort,omitempty"`
	KubeProxyHealthPort int `json:"kubeProxyHealthPort,omitempty"`

	PodCIDR     string `json:"podCIDR"`     // of the pods of all nodes of the cluster
	ServiceCIDR string `json:"serviceCIDR"` // of Service addresses

	// SigningDuration is the life of the certificates that kube-controller-manager signs, such as those of nodes that
	// join; zero: its default, a year.
	SigningDuration time.Duration `json:"signingDuration,omitempty"`

	// Server is set on a machine that joined the cluster of another one: https://HOST:PORT of its kube-apiserver. Such an
	// instance has an agent, its runtime and kube-proxy, and no control plane. The pod network is that of all nodes.
	Server string `json:"server,omitempty"`

	// StorageKubeconfig is set on such a machine: a kubeconfig of user plimsoll:storage, with which it makes volumes;
	// empty: it makes none.
	StorageKubeconfig string `json:"storageKubeconfig,omitempty"`

	EtcdServers  []string `json:"etcdServers,omitempty"` // empty: our own etcd
	EtcdCAFile   string   `json:"etcdCAFile,omitempty"`
	EtcdCertFile string   `json:"etcdCertFile,omitempty"`
	EtcdKeyFile  string   `json:"etcdKeyFile,omitempty"`

	Nodes    int    `json:"nodes,omitempty"`    // number of nodes on this machine, without hollow ones; zero: one
	NodeCIDR string `json:"nodeCIDR,omitempty"` // the network of the nodes' addresses, if there are several

	// run an agent, which makes this machine a node
	Agent bool `json:"agent"`
	// where device plugins register; empty: in the agent's root
	DevicePluginsDir string `json:"devicePluginsDir,omitempty"`
	// a KubeletConfiguration; our settings override it
	AgentConfig string `json:"agentConfig,omitempty"`
	// how many volumes of our CSI driver pods of one node may use; zero: no limit
	VolumesMax int64 `json:"volumesMax,omitempty"`
	// empty: plimsoll agent; else a program with the kubelet's flags
	AgentBinary              string `json:"agentBinary,omitempty"`
	ContainerRuntimeEndpoint string `json:"containerRuntimeEndpoint,omitempty"` // empty: our own containerd
	// [REGISTRY=]URL; asked by our own containerd
	RegistryMirrors []string `json:"registryMirrors,omitempty"`
	// of containerd; empty: in the state directory
	RegistriesDir string   `json:"registriesDir,omitempty"`
	Without       []string `json:"without,omitempty"` // add-ons that are left out
	Hollow        int      `json:"hollow"`            // the number of hollow nodes
	// another program replaces plimsoll lifecycle
	NoLifecycle         bool `json:"noLifecycle,omitempty"`
	NoScheduler         bool `json:"noScheduler,omitempty"`         // another scheduler places pods
	NoControllerManager bool `json:"noControllerManager,omitempty"` // upstream's controllers run elsewhere
	// GOGC of upstream's programs: see gcPercentMin; zero: Go's default
	GCPercent int `json:"gcPercent,omitempty"`
	// over how many zones hollow nodes are spread; zero: no zones
	HollowZones int `json:"hollowZones,omitempty"`

	ControlplaneBinary string        `json:"controlplaneBinary,omitempty"` // empty: in plimsoll's directory, then in PATH
	ImageDir           string        `json:"imageDir,omitempty"`           // empty: in plimsoll's directory
	Timeout            time.Duration `json:"-"`                            // for a node to become Ready

	// Of a further server: https://HOST:PORT of the kube-apiserver of a server that runs, from which it gets what the
	// servers share when it starts for the first time.
	FirstServer string `json:"firstServer,omitempty"`

	Token          string `json:"-"` // with which a machine joins for the first time
	TokenFile      string `json:"-"` // a file with the token, if Token is empty; read when a token is needed
	AuthorityHash  string `json:"-"` // of the cluster that a machine joins for the first time
	CertificateKey string `json:"-"` // of a further server: opens what the servers share
}

// Bounds of --gc-percent, the GOGC of etcd, kube-apiserver and kube-controller-manager: how much garbage may accumulate
// before it is collected, in percent of the live heap. With Go's default of 100 the heap may be twice the live heap,
// with 400 five times. While 5,000 pods are bound to 5,000 nodes, kube-apiserver spends a third of its CPU time on
// collection with 100 and a tenth with 400 (profiles of 2026-11-21); its memory afterwards is 0.9 and 1.4 GB. The
// bounds are chosen: below 10 a program does little but collect, and above 1,000 little is saved.
const (
	gcPercentMin = 10
	gcPercentMax = 1000
)

// signingDurationMin is the shortest life of certificates of machines that join (chosen). kube-controller-manager dates
// them back by five minutes, and they are renewed in the last third of their life, which is then 2m40s.
const signingDurationMin = 3 * time.Minute

// instancePattern allows names that suit directories, cgroups and (shortened) network interfaces. Those of local nodes
// end with a dot and their number.
var instancePattern = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?(\.[0-9]{1,5})?$`)

// Fill sets options that the caller left empty. The values depend on the user and on the machine's name and addresses.
func (o *Options) Fill() error {
	if o.Instance == "" {
		o.Instance = DefaultInstance
	}
	var err error
	if o.StateDir, o.RunDir, err = o.directories(os.Geteuid() == 0, os.Getenv); err != nil {
		return err
	}
	if o.NodeName == "" {
		name, err := os.Hostname()
		if err != nil {
			return fmt.Errorf("name the node: %w (set --node-name)", err)
		}
		o.NodeName = strings.ToLower(strings.TrimSpace(name))
	}
	o.fillNodes()
	if o.NodeIP == "" {
		o.NodeIP = hostAddress().String()
	}
	return o.absolute()
}

// absolute makes paths absolute, because `down` may have another working directory than `up`.
func (o *Options) absolute() (err error) {
	for _, path := range []*string{&o.EtcdCAFile, &o.EtcdCertFile, &o.EtcdKeyFile, &o.AgentConfig, &o.DevicePluginsDir,
		&o.AgentBinary, &o.ControlplaneBinary, &o.ImageDir,
		&o.RegistriesDir, &o.TokenFile, &o.StorageKubeconfig} {
		if *path == "" {
			continue
		}
		if *path, err = filepath.Abs(*path); err != nil {
			return err
		}
	}
	return nil
}

// directories returns absolute paths: the system's directories for root, the user's (XDG base directory specification)
// for others.
func (o *Options) directories(root bool, getenv func(string) string) (state, run string, err error) {
	name := o.fullName()
	state, run = o.StateDir, o.RunDir
	switch {
	case root && state == "":
		state = filepath.Join("/var/lib", name)
	case state == "":
		base := getenv("XDG_STATE_HOME")
		if !filepath.IsAbs(base) {
			if base = filepath.Join(getenv("HOME"), ".local/state"); !filepath.IsAbs(base) {
				return "", "", errors.New("find the state directory: neither XDG_STATE_HOME nor HOME is set (set --state-dir)")
			}
		}
		state = filepath.Join(base, name)
	}
	if state, err = filepath.Abs(state); err != nil {
		return "", "", fmt.Errorf("find the state directory: %w", err)
	}
	switch {
	case root && run == "" && o.StateDir == "":
		run = filepath.Join("/run", name)
	case run == "" && o.StateDir == "" && filepath.IsAbs(getenv("XDG_RUNTIME_DIR")):
		run = filepath.Join(getenv("XDG_RUNTIME_DIR"), name)
	case run == "":
		run = filepath.Join(state, "run") // with --state-dir alone, everything is below it
	}
	if run, err = filepath.Abs(run); err != nil {
		return "", "", fmt.Errorf("find the run directory: %w", err)
	}
	return state, run, nil
}

// fullName is the instance's name where other programs have names, too: plimsoll, or plimsoll-NAME.
func (o *Options) fullName() string {
	if name, _, _ := strings.Cut(o.Instance, "."); name == DefaultInstance {
		return o.Instance
	}
	return DefaultInstance + "-" + o.Instance
}

// longestSocket is the longest path of a socket of the instance or of its local nodes.
func (o *Options) longestSocket() string {
	l := layout{*o}
	longest := l.longestSocket()
	if o.several() {
		last := layout{l.localNode(o.Nodes).o}.longestSocket()
		if len(last) > len(longest) {
			return last
		}
	}
	return longest
}

// socketPathMax is the greatest length of sockaddr_un.sun_path without its terminating zero (unix(7)).
const socketPathMax = 107

// Validate returns everything that is wrong with o at once, with the flag that sets it.
func (o *Options) Validate() error {
	var problems []error
	bad := func(flag string, value any, format string, args ...any) {
		problems = append(problems, fmt.Errorf("--%s %v: %s", flag, value, fmt.Sprintf(format, args...)))
	}
	if !instancePattern.MatchString(o.Instance) {
		bad("instance", fmt.Sprintf("%q", o.Instance), "want 1 to 32 lower case letters, digits and dashes")
	}
	if path := o.longestSocket(); len(path) > socketPathMax {
		bad("run-dir", o.RunDir, "socket %s would have %d characters, the kernel's limit is %d: choose a shorter directory",
			path, len(path), socketPathMax)
	}
	if errs := validateNodeName(o.NodeName); errs != "" {
		bad("node-name", fmt.Sprintf("%q", o.NodeName), "%s", errs)
	}
	for flag, value := range map[string]string{"bind-address": o.BindAddress, "node-ip": o.NodeIP} {
		if _, err := netip.ParseAddr(value); err != nil {
			bad(flag, fmt.Sprintf("%q", value), "not an IP address")
		}
	}
	for flag, value := range map[string]string{"pod-cidr": o.PodCIDR, "service-cidr": o.ServiceCIDR} {
		if p, err := netip.ParsePrefix(value); err != nil || p != p.Masked() {
			bad(flag, fmt.Sprintf("%q", value), "not a network in CIDR form, like 10.244.0.0/24")
		}
	}
	pods, podsErr := netip.ParsePrefix(o.PodCIDR)
	services, servicesErr := netip.ParsePrefix(o.ServiceCIDR)
	if podsErr == nil && servicesErr == nil && pods.Overlaps(services) {
		bad("service-cidr", o.ServiceCIDR, "overlaps --pod-cidr %s: packets to a Service could be meant for a pod", o.PodCIDR)
	}
	problems = append(problems, o.validatePorts()...)
	problems = append(problems, o.validateShared()...)
	problems = append(problems, o.validateNodes()...)
	problems = append(problems, o.validateAddons()...)
	problems = append(problems, o.validateEtcd()...)
	if o.Agent && o.AgentConfig != "" {
		if _, _, err := kubeletconfig.Load(o.AgentConfig); err != nil {
			problems = append(problems, fmt.Errorf("--agent-config: %w", err))
		}
	}
	problems = append(problems, o.validateMirrors()...)
	if o.VolumesMax < 0 {
		bad("volumes-max", o.VolumesMax, "want 0 (no limit) or more volumes")
	}
	if o.Hollow < 0 {
		bad("hollow", o.Hollow, "want 0 or more nodes")
	}
	if o.GCPercent != 0 && (o.GCPercent < gcPercentMin || o.GCPercent > gcPercentMax) {
		bad("gc-percent", o.GCPercent, "want %d to %d", gcPercentMin, gcPercentMax)
	}
	if o.SigningDuration != 0 && o.SigningDuration < signingDurationMin {
		bad("cluster-signing-duration", o.SigningDuration, "want %s or more: machines check their certificates "+
			"once a minute", signingDurationMin)
	}
	if o.HollowZones < 0 {
		bad("hollow-zones", o.HollowZones, "want 0 or more zones")
	}
	if o.ContainerRuntimeEndpoint != "" && !strings.HasPrefix(strings.TrimPrefix(o.ContainerRuntimeEndpoint, "unix://"),
		"/") {
		bad("container-runtime-endpoint", o.ContainerRuntimeEndpoint, "want an absolute socket path or unix:///path")
	}
	return errors.Join(problems...)
}

func (o *Options) validatePorts() (problems []error) {
	users := map[int]string{}
	for _, p := range o.ports() {
		switch {
		case p.number < 0 || p.number > 65535 || p.number == 0 && p.required:
			problems = append(problems, fmt.Errorf("--%s %d: not a port number", p.flag, p.number))
		case p.number != 0 && users[p.number] != "":
			problems = append(problems, fmt.Errorf("--%s %d: --%s has the same port", p.flag, p.number, users[p.number]))
		}
		users[p.number] = p.flag
	}
	if o.NoLifecycle && o.LifecyclePort != 0 {
		problems = append(problems, fmt.Errorf("--lifecycle-port %d: has no effect with --no-lifecycle", o.LifecyclePort))
	}
	return problems
}

func (o *Options) validateMirrors() (problems []error) {
	if len(o.RegistryMirrors) > 0 && (!o.Agent || o.ContainerRuntimeEndpoint != "") {
		problems = append(problems,
			errors.New("--registry-mirror: has an effect only on our own containerd: configure the mirrors of your "+
				"runtime instead"))
	}
	for _, text := range o.RegistryMirrors {
		if _, err := containerruntime.ParseMirror(text); err != nil {
			problems = append(problems, fmt.Errorf("--registry-mirror %q: %w", text, err))
		}
	}
	return problems
}

func (o *Options) validateEtcd() (problems []error) {
	for _, server := range o.EtcdServers {
		u, err := url.Parse(server)
		if err != nil || u.Host == "" && u.Path == "" || u.Scheme != "http" && u.Scheme != "https" && u.Scheme != "unix" {
			problems = append(problems, fmt.Errorf("--etcd-servers %q: want http://HOST:PORT, https://HOST:PORT or unix:///PATH",
				server))
		}
	}
	files := map[string]string{"etcd-cafile": o.EtcdCAFile, "etcd-certfile": o.EtcdCertFile, "etcd-keyfile": o.EtcdKeyFile}
	for flag, path := range files {
		if path == "" {
			continue
		}
		if len(o.EtcdServers) == 0 {
			problems = append(problems, fmt.Errorf("--%s %s: has no effect without --etcd-servers", flag, path))
		} else if f, err := os.Open(path); err != nil {
			problems = append(problems, fmt.Errorf("--%s: %w", flag, err))
		} else {
			f.Close()
		}
	}
	if (o.EtcdCertFile == "") != (o.EtcdKeyFile == "") {
		problems = append(problems, errors.New("--etcd-certfile and --etcd-keyfile: want both or neither"))
	}
	return problems
}

// validateNodeName requires a DNS-1123 subdomain, as the API server does.
func validateNodeName(name string) string {
	if len(name) > 253 || !nodeNamePattern.MatchString(name) {
		return "want lower case letters, digits, dashes and dots, 253 at most (DNS-1123 subdomain)"
	}
	return ""
}

var nodeNamePattern = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$`)

// loopback reports whether the instance's ports can be reached only from this machine.
func (o *Options) loopback() bool {
	addr, err := netip.ParseAddr(o.BindAddress)
	return err == nil && addr.IsLoopback()
}

// localAddress returns the address at which this machine's own components reach ports on BindAddress.
func (o *Options) localAddress() string {
	addr, err := netip.ParseAddr(o.BindAddress)
	switch {
	case err != nil || !addr.IsUnspecified():
		return o.BindAddress
	case addr.Is6():
		return "::1"
	}
	return "127.0.0.1"
}

// firstServiceIP returns the address that kube-apiserver assigns to the Service "kubernetes".
func (o *Options) firstServiceIP() net.IP {
	p, err := netip.ParsePrefix(o.ServiceCIDR)
	if err != nil {
		return nil // Validate has reported it
	}
	return p.Addr().Next().AsSlice()
}

// hostAddress returns this machine's address on the route to other networks, or the loopback address if there is no
// route. Connecting a UDP socket sends nothing; it only chooses a route. The target is from TEST-NET-1 (RFC 5737).
func hostAddress() net.IP {
	conn, err := net.Dial("udp", "192.0.2.1:9")
	if err == nil {
		defer conn.Close()
		if a, ok := conn.LocalAddr().(*net.UDPAddr); ok {
			return a.IP
		}
	}
	return net.IPv4(127, 0, 0, 1)
}

// Load reads the options of an instance as its last `up` saved them. o names the instance by Instance and StateDir.
func Load(o Options) (Options, error) {
	if err := o.Fill(); err != nil {
		return o, err
	}
	path := layout{o}.options()
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return o, &NotUpError{o.Instance, o.StateDir}
	}
	if err != nil {
		return o, fmt.Errorf("read options of instance %s: %w", o.Instance, err)
	}
	kept := Options{}
	if err := json.Unmarshal(text, &kept); err != nil {
		return o, fmt.Errorf("read options of instance %s: %s: %w (remove the file and run `plimsoll up` again)", o.Instance,
			path, err)
	}
	return kept, nil
}

func (o *Options) save() error {
	text, err := json.MarshalIndent(o, "", "  ")
	if err != nil {
		return err
	}
	_, err = durable.WriteIfChanged(layout{*o}.options(), append(text, '\n'))
	return err
}

// Equal reports whether o and p describe the same instance with the same options.
func (o *Options) Equal(p *Options) bool {
	a, errA := json.Marshal(o)
	b, errB := json.Marshal(p)
	return errA == nil && errB == nil && bytes.Equal(a, b)
}

// NotUpError is the error for an instance without state on this machine.
type NotUpError struct{ Instance, StateDir string }

func (e *NotUpError) Error() string {
	return fmt.Sprintf("instance %s has never been up here: %s has no options file (start it with `plimsoll up`, "+
		"or name another with --instance or --state-dir)",
		e.Instance, e.StateDir)
}
