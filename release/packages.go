package main

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/goreleaser/nfpm/v2"
	"github.com/goreleaser/nfpm/v2/deb"
	"github.com/goreleaser/nfpm/v2/files"
)

// description is the package's: a line, and what apt shows below it.
const description = `node agent, scheduler and node-lifecycle controller for Kubernetes
Plimsoll computes what a machine can carry, runs the pods that fit, notices
when a node is gone, and says why it evicted a pod. Each part takes the place
of one of upstream's: the kubelet, kube-scheduler, or two controllers of
kube-controller-manager. The services are not started by the installation.`

// packages writes a Debian package for each architecture.
func (b build) packages() error {
	for _, arch := range b.archs {
		info, err := b.info(arch)
		if err != nil {
			return err
		}
		path := filepath.Join(b.results, deb.Default.ConventionalFileName(info))
		if info, err = b.info(arch); err != nil { // the packager changes what it is given
			return err
		}
		f, err := os.Create(path)
		if err != nil {
			return err
		}
		err = deb.Default.Package(info, f)
		if closed := f.Close(); err == nil {
			err = closed
		}
		if err != nil {
			return fmt.Errorf("package for %s: %w", arch, err)
		}
	}
	return nil
}

// info describes the package of an architecture.
func (b build) info(arch string) (*nfpm.Info, error) {
	contents, err := b.contents(arch)
	if err != nil {
		return nil, err
	}
	maintainer := func(name string) string { return filepath.Join(b.source, "release", "maintainer", name) }
	return nfpm.WithDefaults(&nfpm.Info{
		Name:        "plimsoll",
		Arch:        arch,
		Platform:    "linux",
		Version:     b.version,
		Section:     "admin",
		Priority:    "optional",
		Maintainer:  "Plimsoll maintainers <plimsoll-dev@users.noreply.github.com>",
		Description: description,
		Homepage:    "https://github.com/plimsoll-dev/plimsoll",
		MTime:       b.time,
		Overridables: nfpm.Overridables{
			Depends:    []string{"mount"},
			Recommends: []string{"containerd | containerd.io | cri-o", "iptables"},
			Suggests:   []string{"nfs-common"},
			Contents:   contents,
			Scripts: nfpm.Scripts{
				PostInstall: maintainer("postinst"),
				PreRemove:   maintainer("prerm"),
				PostRemove:  maintainer("postrm"),
			},
			Deb: nfpm.Deb{Compression: "xz"},
		},
	}), nil
}

// contents are the files of the package of an architecture. Owner, mode and time are said for each, so that those in
// the stage do not matter.
func (b build) contents(arch string) (files.Contents, error) {
	entry := func(from, to string, mode fs.FileMode) *files.Content {
		return &files.Content{
			Source:      from,
			Destination: to,
			FileInfo:    &files.ContentFileInfo{Owner: "root", Group: "root", Mode: mode, MTime: b.time},
		}
	}
	etc := entry("", "/etc/plimsoll", 0o700) // kubeconfigs are secrets
	etc.Type = files.TypeDir
	out := files.Contents{entry(filepath.Join(b.stage, program(arch)), "/usr/bin/plimsoll", 0o755), etc}
	err := filepath.WalkDir(b.root(), func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		to, err := filepath.Rel(b.root(), path)
		out = append(out, entry(path, "/"+to, 0o644))
		return err
	})
	return out, err
}
