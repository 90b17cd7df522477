package containerruntime

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"strings"

	"github.com/plimsoll-dev/plimsoll/internal/host/cni"
	"github.com/plimsoll-dev/plimsoll/internal/host/link"
	"github.com/plimsoll-dev/plimsoll/internal/host/nat"
)

// Options say where an instance keeps its files, and how it is set up. The zero value of each field except ImageDir
// means its default.
type Options struct {
	StateDir string   // kept over reboots: images, containers' metadata, IP leases; default /var/lib/plimsoll
	RunDir   string   // removed by a reboot: sockets, container state; default /run/plimsoll
	ImageDir string   // the directory of pause.tar and workload.tar; required
	Addons   []string // other archives there that LoadImages imports
	// HostPort is Plimsoll's CNI plugin for host ports; default ../cni/plimsoll-hostport from ImageDir, where the build
	// puts it
	HostPort string
	Bridge   string // network interface of pods, also the name of the nftables table; default plimsoll0
	// PodCIDR has the IPv4 addresses of this machine's pods; the first is the bridge's. Empty with AllPods: SetNetwork
	// sets it later. Default 10.85.0.0/16
	PodCIDR string
	AllPods string // network of the pods of all nodes, which reach each other without translation; default PodCIDR
	// Forwards are addresses at which pods and this machine reach servers on its loopback.
	Forwards     []nat.Forward
	Services     netip.Prefix // addresses of Services; the zero value: nothing translates them
	CgroupDriver string       // cgroupfs (default) or systemd
	// CgroupRoot is the cgroup with all pods and nothing else: Teardown kills its processes and removes it; default
	// /plimsoll
	CgroupRoot string
	OCIRuntime string   // runc or crun; default runc, or crun if there is no runc
	LogLevel   string   // containerd's level names: debug, info, warn (default), error
	Mirrors    []Mirror // mirrors of registries, in the order in which they are asked
	Registries string   // directory of files about registries; default registries in StateDir
	External   string   // socket of another program's runtime; then only ImageDir and CgroupRoot are used
}

func (o Options) withDefaults() Options {
	fill := func(field *string, value string) {
		if *field == "" {
			*field = value
		}
	}
	fill(&o.StateDir, "/var/lib/plimsoll")
	fill(&o.RunDir, "/run/plimsoll")
	fill(&o.Bridge, "plimsoll0")
	if o.AllPods == "" {
		fill(&o.PodCIDR, "10.85.0.0/16")
		o.AllPods = o.PodCIDR
	}
	fill(&o.CgroupDriver, "cgroupfs")
	fill(&o.CgroupRoot, "/plimsoll")
	fill(&o.LogLevel, "warn")
	fill(&o.HostPort, filepath.Join(filepath.Dir(filepath.Clean(o.ImageDir)), "cni", cni.Type))
	o.External = strings.TrimPrefix(o.External, "unix://")
	return o
}

const (
	socketPathMax = 107 // bytes: sun_path has 108 with its final NUL (unix(7))
	linkNameMax   = 15  // bytes: IFNAMSIZ has 16 with its final NUL (netdevice(7))
	podCIDRBits   = 24  // a network smaller than /24 has too few addresses for a node's 110 pods and their restarts
)

// validate returns an error with every problem.
func (o Options) validate() error {
	var all []error
	bad := func(format string, args ...any) { all = append(all, fmt.Errorf(format, args...)) }
	for _, dir := range []struct{ name, path string }{
		{"state directory", o.StateDir}, {"run directory", o.RunDir}, {"image directory", o.ImageDir},
	} {
		if !filepath.IsAbs(dir.path) || filepath.Clean(dir.path) == "/" {
			bad("%s %q: want an absolute path that is not /", dir.name, dir.path)
		}
	}
	if longest := o.socket() + ".ttrpc"; o.External == "" && len(longest) > socketPathMax {
		bad("run directory %q: socket path %s has %d bytes, the kernel takes %d: choose a run directory shorter by %d",
			o.RunDir, longest, len(longest), socketPathMax, len(longest)-socketPathMax)
	}
	if o.Bridge == "" || len(o.Bridge) > linkNameMax || strings.ContainsAny(o.Bridge, "/ :%") || o.Bridge == "." ||
		o.Bridge == ".." {
		bad("bridge %q: want a network interface name of 1 to %d bytes without / : %% or blanks", o.Bridge, linkNameMax)
	}
	prefix, err := netip.ParsePrefix(o.PodCIDR)
	suits := err == nil && prefix.Addr().Is4() && prefix.Bits() <= podCIDRBits && prefix.Masked() == prefix
	if o.PodCIDR != "" && !suits {
		bad("pod CIDR %q: want an IPv4 network of /%d or larger, such as 10.85.0.0/16", o.PodCIDR, podCIDRBits)
	}
	if o.CgroupDriver != "cgroupfs" && o.CgroupDriver != "systemd" {
		bad("cgroup driver %q: want cgroupfs or systemd", o.CgroupDriver)
	}
	if clean := filepath.Clean(o.CgroupRoot); !filepath.IsAbs(o.CgroupRoot) || clean != o.CgroupRoot || clean == "/" {
		bad("cgroup root %q: want an absolute path that is not /, such as /plimsoll", o.CgroupRoot)
	}
	if o.OCIRuntime != "" && o.OCIRuntime != "runc" && o.OCIRuntime != "crun" {
		bad("OCI runtime %q: want runc or crun", o.OCIRuntime)
	}
	if o.External != "" && !filepath.IsAbs(o.External) {
		bad("external endpoint %q: want an absolute socket path or unix:///path", o.External)
	}
	return errors.Join(all...)
}

// The paths of the instance. Nothing else in this package joins StateDir or RunDir with a name.
func (o Options) configPath() string     { return filepath.Join(o.StateDir, "containerd.toml") }
func (o Options) containerdRoot() string { return filepath.Join(o.StateDir, "containerd") }
func (o Options) cniConfDir() string     { return filepath.Join(o.StateDir, "cni") }
func (o Options) cniBinDir() string      { return filepath.Join(o.StateDir, "cni-bin") }
func (o Options) leaseDir() string       { return filepath.Join(o.StateDir, "cni-leases") }
func (o Options) registriesDir() string {
	return cmp.Or(o.Registries, filepath.Join(o.StateDir, "registries"))
}
func (o Options) containerdState() string { return filepath.Join(o.RunDir, "containerd") }
func (o Options) runcRoot() string        { return filepath.Join(o.RunDir, "oci") }
func (o Options) networkName() string     { return o.Bridge }

// hostsPath returns the path of the file that containerd reads about a registry.
func (o Options) hostsPath(registry string) string {
	return filepath.Join(o.registriesDir(), registry, "hosts.toml")
}

func (o Options) socket() string {
	if o.External != "" {
		return o.External
	}
	return filepath.Join(o.RunDir, "containerd.sock")
}

// checkPodCIDR returns an error if the pod network overlaps another interface's network, whose hosts would become
// unreachable.
func checkPodCIDR(o Options) error {
	pods, err := netip.ParsePrefix(o.AllPods)
	if err != nil {
		return err
	}
	overlap, err := link.Overlapping(pods, o.Bridge)
	if err == nil && overlap != nil {
		err = fmt.Errorf("pod CIDR %s: overlaps %s of interface %s: choose another one", pods, overlap.Address, overlap.Link)
	}
	return err
}
