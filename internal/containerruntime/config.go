package containerruntime

import (
	"maps"
	"slices"
	"strconv"
	"strings"
	"text/template"
)

// settings is everything that containerd's configuration depends on.
type settings struct {
	options     Options
	tools       tools
	pause       string // image name of the sandbox container
	version     release
	restrictOOM bool // lowering oom_score_adj is forbidden to us, so containerd must not try
}

// disabledPlugins are containerd's parts that CRI with overlayfs does not need. opt would create /opt/containerd;
// the others probe for file systems, export metrics nobody reads, or trace.
// Disabling an id that a release does not have is allowed in all of them. Not disabled, though nothing uses it:
// io.containerd.runtime.v1.linux, without which 1.6 loads no task service.
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

// configTemplate is containerd-config.toml(5). Version 2 with one CRI plugin is what 1.6 and 1.7 read; 2.0 split the
// plugin in three and raised the version to 3 (docs/cri/config.md of each release).
var configTemplate = template.Must(template.New("containerd.toml").Funcs(template.FuncMap{"quote": quoteTOML}).Parse(
	`# Written by plimsoll up at every start: edits are lost.
version = {{if .V3}}3{{else}}2{{end}}
root = {{quote .Root}}
state = {{quote .State}}
disabled_plugins = [
{{- range .Disabled}}
  {{quote .}},
{{- end}}
]

[grpc]
  address = {{quote .Socket}}

[ttrpc]
  address = {{quote .TTRPC}}

[debug]
  level = {{quote .LogLevel}}
{{if .V3}}
[plugins."io.containerd.cri.v1.images"]
  snapshotter = "overlayfs"

  [plugins."io.containerd.cri.v1.images".pinned_images]
    sandbox = {{quote .Pause}}

[plugins."io.containerd.grpc.v1.cri"]
  disable_tcp_service = true
  stream_server_address = "127.0.0.1"
  stream_server_port = "0"
{{end}}
[plugins.{{quote .CRI}}]
{{- if not .V3}}
  disable_tcp_service = true
  sandbox_image = {{quote .Pause}}
  stream_server_address = "127.0.0.1"
  stream_server_port = "0"
{{- end}}
  # Network namespaces are then mounted below our state and not in /var/run/netns.
  netns_mounts_under_state_dir = true
  restrict_oom_score_adj = {{.RestrictOOM}}
  tolerate_missing_hugetlb_controller = true

  [plugins.{{quote .CRI}}.cni]
    {{.BinDirKey}} = {{if .BinDirList}}[{{quote .BinDir}}]{{else}}{{quote .BinDir}}{{end}}
    conf_dir = {{quote .ConfDir}}
    max_conf_num = 1

  [plugins.{{quote .CRI}}.containerd]
    default_runtime_name = {{quote .DefaultOCI}}
{{- if not .V3}}
    snapshotter = "overlayfs"
{{- end}}
{{range .OCI}}
    [plugins.{{quote $.CRI}}.containerd.runtimes.{{.Name}}]
      runtime_type = "io.containerd.runc.v2"

      [plugins.{{quote $.CRI}}.containerd.runtimes.{{.Name}}.options]
        BinaryName = {{quote .Path}}
        Root = {{quote $.OCIRoot}}
        SystemdCgroup = {{$.SystemdCgroup}}
{{end}}`))

type ociRuntime struct{ Name, Path string }

func containerdConfig(s settings) string {
	o := s.options
	view := struct {
		V3                         bool
		Root, State, Socket, TTRPC string
		LogLevel, Pause, CRI       string
		Disabled                   []string
		RestrictOOM, SystemdCgroup bool
		BinDirKey, BinDir, ConfDir string
		BinDirList                 bool
		DefaultOCI, OCIRoot        string
		OCI                        []ociRuntime
	}{
		V3:            !s.version.before(2, 0),
		Root:          o.containerdRoot(),
		State:         o.containerdState(),
		Socket:        o.socket(),
		TTRPC:         o.socket() + ".ttrpc",
		LogLevel:      o.LogLevel,
		Pause:         s.pause,
		CRI:           "io.containerd.grpc.v1.cri",
		Disabled:      disabledPlugins,
		RestrictOOM:   s.restrictOOM,
		SystemdCgroup: o.CgroupDriver == "systemd",
		BinDirKey:     "bin_dir",
		BinDir:        o.cniBinDir(),
		ConfDir:       o.cniConfDir(),
		DefaultOCI:    s.tools.defaultOCI(o),
		OCIRoot:       o.runcRoot(),
	}
	if view.V3 {
		view.CRI = "io.containerd.cri.v1.runtime"
	}
	if !s.version.before(2, 1) { // 2.1 deprecated bin_dir for a list
		view.BinDirKey, view.BinDirList = "bin_dirs", true
	}
	for _, name := range slices.Sorted(maps.Keys(s.tools.oci)) {
		view.OCI = append(view.OCI, ociRuntime{name, s.tools.oci[name]})
	}
	var out strings.Builder
	if err := configTemplate.Execute(&out, view); err != nil {
		panic("containerd.toml: " + err.Error()) // the template and the view are both constants of this file
	}
	return out.String()
}

// quoteTOML writes a TOML basic string. Go's \x and \a escapes are not TOML's; paths with such bytes fail in
// containerd's parser, loudly.
func quoteTOML(text string) string { return strconv.Quote(text) }
