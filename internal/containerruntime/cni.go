package containerruntime

import (
	"encoding/json"
	"os"
	"path/filepath"

	"github.com/plimsoll-dev/plimsoll/internal/host/cni"
	"github.com/plimsoll-dev/plimsoll/internal/host/durable"
)

// cniConfig returns the pod network as a CNI configuration list (CNI specification 1.0.0): one bridge, addresses from
// host-local's files below the state directory, and, if hostPorts is set, Plimsoll's own plugin for host ports.
//
// The system's plugins are not used for masquerading and host ports. bridge and portmap 1.1 call iptables for these,
// which a minimal Debian does not have, and portmap leaves its chains behind.
func cniConfig(o Options, hostPorts bool) (string, error) {
	type object = map[string]any
	chain := []object{{
		"type":        "bridge",
		"bridge":      o.Bridge,
		"isGateway":   true,
		"ipMasq":      false,
		"hairpinMode": true, // a pod may reach itself through its service
		"ipam": object{
			"type":    "host-local",
			"dataDir": o.leaseDir(),
			"ranges":  [][]object{{{"subnet": o.PodCIDR}}},
			"routes":  []object{{"dst": "0.0.0.0/0"}},
		},
	}}
	if hostPorts {
		chain = append(chain, object{"type": cni.Type, "bridge": o.Bridge, "capabilities": object{"portMappings": true}})
	}
	text, err := json.MarshalIndent(object{"cniVersion": "1.0.0", "name": o.networkName(), "plugins": chain}, "", "  ")
	return string(text) + "\n", err
}

// linkPlugins fills the plugin directory with links to the system's plugins and to Plimsoll's, because containerd 1.6
// uses plugins from one directory only.
func linkPlugins(o Options, t tools, hostPorts bool) error {
	links := map[string]string{}
	for _, name := range plugins {
		links[name] = filepath.Join(t.pluginDir, name)
	}
	if hostPorts {
		links[cni.Type] = o.HostPort
	}
	for name, target := range links {
		path := filepath.Join(o.cniBinDir(), name)
		if old, err := os.Readlink(path); err == nil && old == target {
			continue
		}
		if err := durable.Remove(path); err != nil {
			return err
		}
		if err := os.Symlink(target, path); err != nil {
			return err
		}
	}
	return nil
}
