package containerruntime

import (
	"encoding/json"
	"path/filepath"
)

// cniConfig is the pod network as a CNI configuration list (CNI specification 1.0.0): one bridge, addresses from
// host-local's files below our state directory.
//
// Masquerading and host ports are not left to plugins: bridge and portmap 1.1 call iptables for them, which a small
// Debian does not have, and portmap leaves its chains behind. nat.go masquerades.
func cniConfig(o Options) (string, error) {
	type object = map[string]any
	chain := []object{{
		"type":        "bridge",
		"bridge":      o.Bridge,
		"isGateway":   true,
		"ipMasq":      false,
		"hairpinMode": true, // a pod may reach itself through its service
		"ipam": object{
			"type":    "host-local",
			"dataDir": filepath.Clean(o.leaseDir()),
			"ranges":  [][]object{{{"subnet": o.PodCIDR}}},
			"routes":  []object{{"dst": "0.0.0.0/0"}},
		},
	}}
	text, err := json.MarshalIndent(object{"cniVersion": "1.0.0", "name": o.networkName(), "plugins": chain}, "", "  ")
	return string(text) + "\n", err
}
