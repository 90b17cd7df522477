package main

import (
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/plimsoll-dev/plimsoll/internal/cluster"
)

// tokenVariable passes a token to the process in the background, because everybody on the machine can read its command
// line. Users may use it too, since a command line stays in the shell's history.
const tokenVariable = "PLIMSOLL_TOKEN"

// keyVariable does the same for the key of a further server.
const keyVariable = "PLIMSOLL_CERTIFICATE_KEY"

// takeSecrets takes secrets that no flag gave from the environment, and leaves them there only for the process in the
// background.
func takeSecrets(o *cluster.Options, detach bool) {
	_, background := os.LookupEnv(cluster.DetachedVariable)
	for name, value := range map[string]*string{tokenVariable: &o.Token, keyVariable: &o.CertificateKey} {
		if *value == "" {
			*value = os.Getenv(name)
		}
		if background || !detach {
			os.Unsetenv(name)
		} else {
			os.Setenv(name, *value)
		}
	}
}

func newJoinCommand() *cobra.Command {
	var o cluster.Options
	var detach bool
	c := &cobra.Command{
		Use:   "join SERVER",
		Short: "Make this machine a node of a cluster on another machine",
		Long: `Run an agent, a container runtime and kube-proxy on this machine, supervised, as a node of the cluster whose
kube-apiserver is at SERVER (https://HOST:PORT), until Ctrl-C or "plimsoll down". "plimsoll token create" on the
server prints the whole command. The token is needed once, to request the node's certificates, which the node then
renews itself. Run again after any crash, join needs no token: it takes over what still runs and restarts the rest.

The cluster needs "plimsoll up --bind-address". The machines must share a network: routes
through the nodes' addresses connect the pods of different nodes. If the cluster has several servers, the node goes to
another one when its own is gone.`,
		Example: `  plimsoll join https://10.0.0.1:6443 --token abcdef.0123456789abcdef --discovery-token-ca-cert-hash sha256:9f86d081...
  plimsoll join https://10.0.0.1:6443             # again, after a reboot`,
		Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			o.Server = args[0]
			takeSecrets(&o, detach)
			if err := o.FillJoined(); err != nil {
				return usageError{err}
			}
			if err := o.ValidateJoined(); err != nil {
				return usageError{err}
			}
			return runUp(c, o, detach)
		},
	}
	f := c.Flags()
	instanceFlags(c, &o)
	f.BoolVar(&detach, "detach", false, "go to the background and return when the node is Ready")
	f.StringVar(&o.Token, "token", "", "token of the cluster, for the first join (default: that in the environment "+
		"variable "+tokenVariable+")")
	f.StringVar(&o.TokenFile, "token-file", "", "file with the token, read when one is needed; instead of --token")
	f.StringVar(&o.AuthorityHash, "discovery-token-ca-cert-hash", "",
		"hash of the cluster's authority, sha256:<64 hexadecimal digits>; required with a token")
	nodeFlags(c, &o)
	f.StringVar(&o.RegistriesDir, "registries-dir", "", "directory of containerd's files about registries (default: "+
		"registries in the state directory)")
	f.StringVar(&o.StorageKubeconfig, "storage-kubeconfig", "",
		"kubeconfig of user plimsoll:storage, which plimsoll up keeps in "+
			"pki/storage.kubeconfig: with it this machine creates volumes, with the driver csi.plimsoll.dev; "+
			"it copies the certificate, and renews the copy")
	f.StringVar(&o.BindAddress, "bind-address", "", "address that all ports are bound to (default: --node-ip)")
	f.DurationVar(&o.Timeout, "timeout", 2*time.Minute, "give up when no step of the start has ended for this long")
	return c
}

// nodeFlags adds the flags that up and join have in common: they concern this machine's node.
func nodeFlags(c *cobra.Command, o *cluster.Options) {
	f := c.Flags()
	f.StringVar(&o.RunDir, "run-dir", "", "directory of sockets and process records (default "+
		"/run/plimsoll[-INSTANCE]; with --state-dir, \"run\" in it)")
	f.StringVar(&o.NodeName, "node-name", "", "name of this machine's node (default: host name)")
	f.StringVar(&o.NodeIP, "node-ip", "", "address that this machine's node publishes (default: the one with "+
		"the default route)")
	f.IntVar(&o.AgentPort, "agent-port", 10250, "port of the agent (logs, exec, metrics)")
	f.IntVar(&o.AgentHealthPort, "agent-health-port", 10248, "port of the agent's /healthz without TLS; 0: none")
	f.IntVar(&o.KubeProxyPort, "kube-proxy-port", 10249, "port of kube-proxy's metrics, on the loopback; 0: none")
	f.IntVar(&o.KubeProxyHealthPort, "kube-proxy-health-port", 10256, "port of kube-proxy's /healthz; 0: none")
	f.StringArrayVar(&o.RegistryMirrors, "registry-mirror", nil, "`[REGISTRY=]URL` of a mirror that our "+
		"containerd asks before a registry, or before all; may be repeated")
	f.StringVar(&o.DevicePluginsDir, "device-plugins-dir", "", "directory where device plugins register; most "+
		"plugins use /var/lib/kubelet/device-plugins (default: in the agent's directory)")
	f.StringVar(&o.AgentConfig, "agent-config", "", "KubeletConfiguration file for the agent; up sets "+
		"addresses, certificates and directories")
	f.Int64Var(&o.VolumesMax, "volumes-max", 0, "how many volumes of plimsoll-csi the scheduler lets the pods of one "+
		"node use; 0: as many as there is room for")
	f.StringVar(&o.ControlplaneBinary, "controlplane-binary", "",
		"path of plimsoll-controlplane (default: in plimsoll's directory, then in PATH)")
	f.StringVar(&o.ImageDir, "image-dir", "", "directory of pause.tar, workload.tar and the archives of add-ons "+
		"(default: images in plimsoll's directory)")
}

// withoutSecrets returns a command line without the values of --token and --certificate-key.
func withoutSecrets(args []string) []string {
	args = slices.Clone(args)
	for i := 0; i < len(args); i++ {
		for _, flag := range []string{"--token", "--certificate-key"} {
			if args[i] == flag && i+1 < len(args) {
				args = slices.Delete(args, i, i+2)
			} else if strings.HasPrefix(args[i], flag+"=") {
				args = slices.Delete(args, i, i+1)
			} else {
				continue
			}
			i--
			break
		}
	}
	return args
}
