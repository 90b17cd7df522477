package main

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	kubeletconfigv1beta1 "k8s.io/kubelet/config/v1beta1"

	"github.com/plimsoll-dev/plimsoll/internal/agent"
	"github.com/plimsoll-dev/plimsoll/internal/agent/node"
	"github.com/plimsoll-dev/plimsoll/internal/core/eviction"
	"github.com/plimsoll-dev/plimsoll/internal/kube"
	"github.com/plimsoll-dev/plimsoll/internal/kube/credentialconfig"
	"github.com/plimsoll-dev/plimsoll/internal/kube/kubeletconfig"
	"github.com/plimsoll-dev/plimsoll/internal/kube/kubeletflags"
)

// agentFlags are the flags of the agent. Those that the kubelet has, too, have its names.
type agentFlags struct {
	kubeconfig, config, rootDir, hostname, nodeIP string
	configDir                                     string // of drop-ins
	pluginsDir                                    string
	bootstrap, certDir                            string
	labels                                        []string
	taints, cloud                                 string
	starts                                        int // --pod-starts
	createMissingCgroups, reclaimMemory           bool
	memorySignal                                  string
	credentialConfig, credentialDir               string // of credential provider plugins
	kubelet                                       *kubeletflags.Line
	set                                           *pflag.FlagSet // to see which were given
}

func newAgentCommand() *cobra.Command { return new(agentFlags).command() }

// command returns the command whose flags are f.
func (f *agentFlags) command() *cobra.Command {
	c := &cobra.Command{
		Use:   "agent",
		Short: "Run the node agent: the pods bound to this node, its status, and its server",
		Long: `Run the node agent instead of a kubelet, with any Kubernetes API server.

It reads the kubelet's configuration file unchanged; warnings name the fields that it does not honour. It takes every
flag of the kubelet 1.36; a flag that sets a field of the configuration overrides the file and its drop-ins. Called as
kubelet, by that name or a link, plimsoll is this command. Stopping it stops no container; when it starts again, it
continues with the running containers.`,
		Example: `  plimsoll agent --kubeconfig /etc/kubernetes/kubelet.conf --config /var/lib/kubelet/config.yaml
  plimsoll agent --kubeconfig agent.conf --container-runtime-endpoint unix:///run/containerd/containerd.sock`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if said, err := printVersion(c); said {
				return err
			}
			kube.LogToSlog()
			o, err := f.options()
			if err != nil {
				return usageError{err}
			}
			return agent.Run(c.Context(), o)
		},
	}
	c.SetFlagErrorFunc(func(c *cobra.Command, err error) error {
		return usageError{fmt.Errorf("%w (see %s --help)", kubeletflags.Explain(err), c.CommandPath())}
	})
	flags := c.Flags()
	f.set = flags
	f.kubelet = kubeletflags.Add(flags)
	addVersionFlag(flags)
	flags.StringVar(&f.kubeconfig, "kubeconfig", "",
		"kubeconfig with the agent's identity (system:node:<name>); required. It is written if "+
			"--bootstrap-kubeconfig is used")
	flags.StringVar(&f.bootstrap, "bootstrap-kubeconfig", "",
		"kubeconfig, for example with a bootstrap token, to request the node's client certificate with, "+
			"if --kubeconfig cannot be used; --kubeconfig is then written")
	flags.StringVar(&f.certDir, "cert-dir", "",
		"directory of the node's certificates and keys (default: pki in --root-dir)")
	flags.StringVar(&f.config, "config", "", "KubeletConfiguration file (default: upstream's defaults)")
	flags.StringVar(&f.configDir, "config-dir", "",
		"directory of drop-ins, KubeletConfiguration files named *.conf: each overrides fields of --config and of the "+
			"drop-ins before it")
	flags.StringVar(&f.rootDir, "root-dir", "/var/lib/kubelet", "directory of pods' volumes and the agent's own files")
	flags.StringVar(&f.pluginsDir, "device-plugins-dir", "",
		"directory of kubelet.sock, where device plugins register (default: device-plugins in --root-dir)")
	flags.StringVar(&f.credentialConfig, "image-credential-provider-config", "",
		"CredentialProviderConfig file, or a directory of such files: the plugins that have credentials for images "+
			"(default: no plugins)")
	flags.StringVar(&f.credentialDir, "image-credential-provider-bin-dir", "",
		"directory of the plugins' programs; required with --image-credential-provider-config")
	flags.StringVar(&f.hostname, "hostname-override", "", "name of the node (default: the host name in lower case)")
	flags.StringVar(&f.nodeIP, "node-ip", "",
		"address of the node, or two of different families; 0.0.0.0 or :: means any of that family (default: "+
			"the address of the host name, else of the default route's interface)")
	flags.StringVar(&f.cloud, "cloud-provider", "",
		"external: an external cloud controller manages the Node: it sets the addresses, and pods wait for it")
	flags.StringArrayVar(&f.labels, "node-labels", nil, "labels to register with: `key=value,...`")
	flags.StringVar(&f.taints, "register-with-taints", "",
		"taints to register with: `key=value:effect,...`; overrides registerWithTaints of the configuration")
	flags.IntVar(&f.starts, "pod-starts", 0, fmt.Sprintf("how many pods may start at the same time; 0: %d per CPU",
		agent.StartsPerCPU))
	flags.BoolVar(&f.createMissingCgroups, "create-missing-cgroups", false,
		"create the cgroups that systemReservedCgroup and kubeReservedCgroup name if they are missing, "+
			"instead of ending with an error")
	flags.StringVar(&f.memorySignal, "memory-signal", memorySignalUpstream,
		"what counts as available memory for evictions: "+memorySignalUpstream+
			": as in the kubelet, which does not count active page cache; "+string(eviction.SignalAvailable)+
			": everything that the kernel can drop and the swap that pods may use, but not huge pages")
	flags.BoolVar(&f.reclaimMemory, "reclaim-memory", false,
		"when memory becomes short, make the kernel reclaim memory of pods above their requests before any pod is "+
			"evicted (cgroup v2)")
	return c
}

// memorySignalUpstream is the value of --memory-signal for the kubelet's own signal.
const memorySignalUpstream = "working-set"

// options checks the flags and reads the files that they name.
func (f *agentFlags) options() (agent.Options, error) {
	var o agent.Options
	if f.kubeconfig == "" {
		return o, fmt.Errorf("--kubeconfig: required: the file with the agent's identity and the API server's address")
	}
	ignored, err := f.kubelet.Check()
	if err != nil {
		return o, err
	}
	config, warnings, err := f.configuration()
	if err != nil {
		return o, err
	}
	if err := setLog(config.Logging.Format, int(config.Logging.Verbosity)); err != nil {
		return o, err
	}
	for _, w := range ignored {
		slog.Warn("command line", "warning", w)
	}
	for _, w := range warnings {
		slog.Warn("configuration", "file", f.config, "warning", w)
	}
	if err := f.directories(&o); err != nil {
		return o, err
	}
	if (f.credentialConfig == "") != (f.credentialDir == "") {
		return o,
			fmt.Errorf("--image-credential-provider-config and --image-credential-provider-bin-dir: want both or neither")
	}
	if f.credentialConfig != "" {
		if o.Credentials.Providers, o.Credentials.ConfigHash, err = credentialconfig.Load(f.credentialConfig); err != nil {
			return o, fmt.Errorf("--image-credential-provider-config: %w", err)
		}
		o.Credentials.Dir = f.credentialDir
	}
	switch f.cloud {
	case "", "external":
		o.Cloud = f.cloud == "external"
	default:
		return o,
			fmt.Errorf("--cloud-provider %q: want external or nothing: Kubernetes has no other cloud providers since 1.31",
				f.cloud)
	}
	switch f.memorySignal {
	case memorySignalUpstream:
	case string(eviction.SignalAvailable):
		o.MemorySignal = eviction.SignalAvailable
	default:
		return o, fmt.Errorf("--memory-signal %q: want %s or %s", f.memorySignal, memorySignalUpstream,
			eviction.SignalAvailable)
	}
	o.ReclaimMemory = f.reclaimMemory
	o.Kubeconfig = f.kubeconfig
	o.Bootstrap = f.bootstrap
	o.Config = config
	o.Starts = f.starts
	o.CreateMissingCgroups = f.createMissingCgroups
	o.Endpoint = config.ContainerRuntimeEndpoint
	o.SetVerbosity = setVerbosity
	o.Flags = map[string]string{}
	f.set.VisitAll(func(one *pflag.Flag) { o.Flags[one.Name] = one.Value.String() })
	return o, f.registration(&o)
}

// configuration reads the configuration from the file, its drop-ins and the flags.
func (f *agentFlags) configuration() (*kubeletconfigv1beta1.KubeletConfiguration, []string, error) {
	s := kubeletconfig.Sources{File: f.config, DropIns: f.configDir, Settings: f.kubelet.Settings()}
	if f.set.Changed("register-with-taints") {
		taints, err := node.ParseTaints(f.taints)
		if err != nil {
			return nil, nil, fmt.Errorf("--register-with-taints: %w", err)
		}
		s.Settings = append(s.Settings, kubeletconfig.Setting{
			Flag:  "--register-with-taints",
			Path:  "registerWithTaints",
			Value: taints,
		})
	}
	return kubeletconfig.LoadFrom(s)
}

// directories sets the directories in o, as absolute paths.
func (f *agentFlags) directories(o *agent.Options) (err error) {
	if o.RootDir, err = filepath.Abs(f.rootDir); err != nil {
		return fmt.Errorf("--root-dir %q: %w", f.rootDir, err)
	}
	if o.CertDir = filepath.Join(o.RootDir, "pki"); f.certDir != "" {
		if o.CertDir, err = filepath.Abs(f.certDir); err != nil {
			return fmt.Errorf("--cert-dir %q: %w", f.certDir, err)
		}
	}
	o.DevicePluginsDir = filepath.Join(o.RootDir, "device-plugins")
	if f.pluginsDir != "" {
		if o.DevicePluginsDir, err = filepath.Abs(f.pluginsDir); err != nil {
			return fmt.Errorf("--device-plugins-dir %q: %w", f.pluginsDir, err)
		}
	}
	return nil
}

// registration sets the name, the addresses and the labels with which the node registers.
func (f *agentFlags) registration(o *agent.Options) (err error) {
	if o.NodeName, err = nodeName(f.hostname); err != nil {
		return err
	}
	if o.NodeIPs, err = node.ParseNodeIPs(f.nodeIP); err != nil {
		return fmt.Errorf("--node-ip: %w", err)
	}
	if o.Labels, err = node.ParseLabels(strings.Join(f.labels, ",")); err != nil {
		return fmt.Errorf("--node-labels: %w", err)
	}
	return nil
}

// nodeName returns the node's name: the given name, else the host's, always in lower case as the API requires.
func nodeName(override string) (string, error) {
	name := override
	if name == "" {
		var err error
		if name, err = os.Hostname(); err != nil {
			return "", fmt.Errorf("find the host's name: %w; set --hostname-override", err)
		}
	}
	return strings.ToLower(strings.TrimSpace(name)), nil
}
