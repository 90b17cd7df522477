package lab

import (
	"os"
	"path/filepath"
	"strings"

	"github.com/plimsoll-dev/plimsoll/internal/image"
	"github.com/plimsoll-dev/plimsoll/lab/wire"
)

// A rootFile is a file of the image that is in no package: a text, a symbolic link, or a directory (its path ends in a
// slash).
type rootFile struct {
	path string
	link string
	text string
}

// rootFiles are written after the packages were unpacked and replace their files.
var rootFiles = []rootFile{
	// What base-passwd and dbus would have set up.
	{path: "etc/passwd",
		text: "root:x:0:0:root:/root:/bin/bash\nmessagebus:x:100:100::/nonexistent:/usr/sbin/nologin\n" +
			"nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n"},
	{path: "etc/group",
		text: "root:x:0:\ntty:x:5:\ndisk:x:6:\nkmem:x:15:\nadm:x:4:\nmessagebus:x:100:\nsystemd-journal:x:101:\n" +
			"nogroup:x:65534:\n"},
	{path: "etc/nsswitch.conf", text: "passwd: files\ngroup: files\nhosts: files dns\n"},
	{path: "etc/fstab", text: "# Everything is mounted before systemd runs.\n"},
	{path: "etc/machine-id", text: "uninitialized\n"},
	{path: "usr/bin/awk", link: "mawk"},
	{path: "var/run", link: "/run"},
	// systemd: everything up to the lab's server, without units that need a real machine.
	{path: "etc/systemd/system/default.target", link: "/lib/systemd/system/multi-user.target"},
	{path: "etc/systemd/system/systemd-remount-fs.service", link: "/dev/null"},
	{path: "etc/systemd/system/getty.target", link: "/dev/null"},
	{path: "etc/systemd/system/systemd-networkd.service", link: "/dev/null"},
	{path: "etc/systemd/system/e2scrub_reap.service", link: "/dev/null"},
	{path: "etc/systemd/system/multi-user.target.wants/plimsoll-lab.service",
		link: "/etc/systemd/system/plimsoll-lab.service"},
	{path: "etc/systemd/system/multi-user.target.wants/plimsoll-lab-console.service",
		link: "/etc/systemd/system/plimsoll-lab-console.service"},
	{path: "etc/systemd/system/plimsoll-lab.service", text: `[Unit]
Description=Commands of the host
[Service]
Environment=PATH=` + wire.PathValue + ` HOME=/root
ExecStart=` + wire.Program + ` serve
KillMode=process
TasksMax=infinity
LimitNOFILE=1048576
`},
	{path: "etc/systemd/system/plimsoll-lab-console.service", text: `[Unit]
Description=A shell on the console
ConditionPathExists=` + wire.Dir + `/console
[Service]
Environment=PATH=` + wire.PathValue + ` HOME=/root TERM=vt220
WorkingDirectory=/root
StandardInput=tty
StandardOutput=tty
TTYPath=/dev/ttyS0
ExecStart=-/bin/bash -l
ExecStopPost=/bin/systemctl --no-block poweroff
`},
	{path: "etc/systemd/journald.conf.d/lab.conf", text: "[Journal]\nStorage=volatile\nRuntimeMaxUse=16M\n"},
	// containerd, configured as on a node that was set up by hand.
	{path: "etc/containerd/config.toml", text: containerdConfig(false)},
	{path: "etc/containerd/config-systemd.toml", text: containerdConfig(true)},
	{path: "etc/cni/net.d/"},
	{path: "root/"},
	{path: "opt/plimsoll/"},
	{path: "var/lib/"},
}

// containerdConfig returns containerd-config.toml(5) for release 1.6. The sandbox's image is ours, since there is no
// registry.
func containerdConfig(systemdCgroup bool) string {
	driver := "false"
	if systemdCgroup {
		driver = "true"
	}
	return `version = 2
disabled_plugins = ["io.containerd.internal.v1.opt", "io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.zfs", "io.containerd.snapshotter.v1.devmapper", "io.containerd.snapshotter.v1.aufs"]
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "` + image.Pause + `"
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "/etc/cni/net.d"
  [plugins."io.containerd.grpc.v1.cri".containerd]
    default_runtime_name = "runc"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
        SystemdCgroup = ` + driver + `
`
}

// cniConfig connects the pods of a guest by a bridge. Their network ends at the guest.
func cniConfig(subnet string) string {
	return `{"cniVersion": "1.0.0", "name": "lab", "plugins": [
  {"type": "bridge", "bridge": "cni0", "isGateway": true, "ipMasq": false, "hairpinMode": true,
   "ipam": {"type": "host-local", "ranges": [[{"subnet": "` + subnet + `"}]], "routes": [{"dst": "0.0.0.0/0"}]}}
]}
`
}

func (f rootFile) write(root string) error {
	path := filepath.Join(root, f.path)
	if strings.HasSuffix(f.path, "/") {
		return os.MkdirAll(path, 0o755)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	if err := os.RemoveAll(path); err != nil { // it may be a symbolic link
		return err
	}
	if f.link != "" {
		return os.Symlink(f.link, path)
	}
	return os.WriteFile(path, []byte(f.text), 0o644)
}
