package containerruntime

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// settings are all inputs of containerd's configuration.
type settings struct {
	options     Options
	tools       tools
	pause       string // image name of the sandbox container
	version     release
	restrictOOM bool // this process may not lower oom_score_adj, so containerd must not try
}

// disabledPlugins are the parts of containerd that CRI with overlayfs does not need. opt would create /opt/containerd;
// the others probe for file systems, export unused metrics, or trace. Every release accepts IDs that it does not have.
// io.containerd.runtime.v1.linux is not disabled although nothing uses it, because 1.6 loads no task service without
// it.
var disabledPlugins = []string{
	"io.containerd.internal.v1.opt",
	"io.containerd.internal.v1.restart",
	"io.containerd.internal.v1.tracing",
	"io.containerd.monitor.v1.cgroups",
	"io.containerd.monitor.task.v1.cgroups",
	"io.containerd.nri.v1.nri",
	"io.containerd.snapshotter.v1.aufs",
	"io.containerd.snapshotter.v1.blockfile",
	"io.containerd.snapshotter.v1.btrfs",
	"io.containerd.snapshotter.v1.devmapper",
	"io.containerd.snapshotter.v1.erofs",
	"io.containerd.snapshotter.v1.native",
	"io.containerd.snapshotter.v1.zfs",
	"io.containerd.tracing.processor.v1.otlp",
}

// toml writes a configuration line by line. It does not use text/template, which calls methods by name. With it, the
// linker would keep every exported method of every type: a quarter of the program, in the memory of each of Plimsoll's
// processes.
type toml struct{ strings.Builder }

// set writes a key at an indentation of depth; value is a string, a bool, an int or a list of strings.
func (t *toml) set(depth int, key string, value any) {
	text := fmt.Sprint(value)
	switch v := value.(type) {
	case string:
		text = quoteTOML(v)
	case []string:
		quoted := make([]string, len(v))
		for i, item := range v {
			quoted[i] = quoteTOML(item)
		}
		text = "[" + strings.Join(quoted, ", ") + "]"
	}
	t.line(depth, key+" = "+text)
}

// table starts a table, after an empty line.
func (t *toml) table(depth int, parts ...string) {
	t.WriteByte('\n')
	t.line(depth, "["+strings.Join(parts, ".")+"]")
}

func (t *toml) line(depth int, text string) {
	t.WriteString(strings.Repeat("  ", depth) + text + "\n")
}

// containerdConfig returns containerd-config.toml(5). Releases 1.6 and 1.7 read version 2 with one CRI plugin; 2.0
// split the plugin in three and raised the version to 3 (docs/cri/config.md of each release).
func containerdConfig(s settings) string {
	o := s.options
	version := 2
	v3 := !s.version.before(2, 0)
	if v3 {
		version = 3
	}
	t := &toml{}
	t.line(0, "# Written by plimsoll up at every start: edits are lost.")
	t.set(0, "version", version)
	t.set(0, "root", o.containerdRoot())
	t.set(0, "state", o.containerdState())
	t.line(0, "disabled_plugins = [")
	for _, id := range disabledPlugins {
		t.line(1, quoteTOML(id)+",")
	}
	t.line(0, "]")
	t.table(0, "grpc")
	t.set(1, "address", o.socket())
	t.table(0, "ttrpc")
	t.set(1, "address", o.socket()+".ttrpc")
	t.table(0, "debug")
	t.set(1, "level", o.LogLevel)
	cri := quoteTOML("io.containerd.grpc.v1.cri")
	if v3 {
		images := quoteTOML("io.containerd.cri.v1.images")
		t.table(0, "plugins", images)
		t.set(1, "snapshotter", "overlayfs")
		t.table(1, "plugins", images, "pinned_images")
		t.set(2, "sandbox", s.pause)
		t.table(1, "plugins", images, "registry")
		t.set(2, "config_path", o.registriesDir())
		t.table(0, "plugins", cri)
		t.serveStreams()
		cri = quoteTOML("io.containerd.cri.v1.runtime")
	}
	t.table(0, "plugins", cri)
	if !v3 {
		t.set(1, "sandbox_image", s.pause)
		t.serveStreams()
	}
	t.runtimePlugin(s, cri, v3)
	if !v3 {
		t.table(1, "plugins", cri, "registry")
		t.set(2, "config_path", o.registriesDir())
	}
	return t.String()
}

// serveStreams makes containerd serve exec, attach and port-forward on loopback only.
func (t *toml) serveStreams() {
	t.set(1, "disable_tcp_service", true)
	t.set(1, "stream_server_address", "127.0.0.1")
	t.set(1, "stream_server_port", "0")
}

// runtimePlugin writes those settings of the plugin for containers that have the same names in all versions.
func (t *toml) runtimePlugin(s settings, cri string, v3 bool) {
	o := s.options
	t.line(1, "# Network namespaces are then mounted below our state and not in /var/run/netns.")
	t.set(1, "netns_mounts_under_state_dir", true)
	t.set(1, "restrict_oom_score_adj", s.restrictOOM)
	t.set(1, "tolerate_missing_hugetlb_controller", true)
	t.table(1, "plugins", cri, "cni")
	if s.version.before(2, 1) { // 2.1 deprecated bin_dir for a list
		t.set(2, "bin_dir", o.cniBinDir())
	} else {
		t.set(2, "bin_dirs", []string{o.cniBinDir()})
	}
	t.set(2, "conf_dir", o.cniConfDir())
	t.set(2, "max_conf_num", 1)
	t.table(1, "plugins", cri, "containerd")
	t.set(2, "default_runtime_name", s.tools.defaultOCI(o))
	if !v3 {
		t.set(2, "snapshotter", "overlayfs")
	}
	for _, name := range slices.Sorted(maps.Keys(s.tools.oci)) {
		t.table(2, "plugins", cri, "containerd.runtimes", name)
		t.set(3, "runtime_type", "io.containerd.runc.v2")
		t.table(3, "plugins", cri, "containerd.runtimes", name, "options")
		t.set(4, "BinaryName", s.tools.oci[name])
		t.set(4, "Root", o.runcRoot())
		t.set(4, "SystemdCgroup", o.CgroupDriver == "systemd")
	}
}

// quoteTOML writes a TOML basic string. Go's \x and \a escapes are not TOML's: containerd's parser returns an error for
// paths with such bytes.
func quoteTOML(text string) string { return strconv.Quote(text) }
