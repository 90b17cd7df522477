package lab

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
)

// packages are Debian's; their dependencies are added. The kernel is not among them: its package depends on a boot
// loader, which guests do not need.
var packages = []string{
	"base-files", "base-passwd", "bash", "coreutils", "dash", "e2fsprogs", "findutils", "grep", "gzip", "hostname",
	"iproute2", "kmod",
	"mawk", "mount", "numactl", "procps", "sed", "tar", "util-linux",
	"systemd", "systemd-sysv", "dbus",
	"containerd", "runc", "containernetworking-plugins",
}

// kernelPackage depends on the newest cloud kernel, which has half of the modules and all that QEMU needs.
const kernelPackage = "linux-image-cloud-amd64"

// unpackNot are packages on which others depend for their maintainer scripts, which are not run here. They are half of
// the download.
var unpackNot = []string{"adduser", "debconf", "dpkg", "libperl", "perl"}

// leaveOut are directories that no program reads in a guest.
var leaveOut = []string{"usr/share/doc/", "usr/share/man/", "usr/share/locale/", "usr/share/info/",
	"usr/share/lintian/", "usr/share/bug/", "usr/share/perl/"}

// An Image is a kernel and a root file system.
type Image struct {
	Dir    string
	Kernel string // bzImage
	Root   string // an ext4 file system
	// drivers is a directory with the modules that are needed to mount the root, and their order.
	drivers string
}

func imageIn(dir string) Image {
	return Image{Dir: dir, Kernel: filepath.Join(dir, "vmlinuz"), Root: filepath.Join(dir, "root.ext4"),
		drivers: filepath.Join(dir, "drivers")}
}

// recipeVersion is increased when an image is made differently and the digest of the recipe would not show it.
const recipeVersion = "2"

// recipe returns everything that decides what is in an image, except the versions of the packages: those are the
// current ones of this host.
func recipe() string {
	parts := []string{recipeVersion, kernelPackage}
	for _, list := range [][]string{packages, unpackNot, leaveOut, driverNames} {
		parts = append(parts, strings.Join(list, " "))
	}
	for _, f := range rootFiles {
		parts = append(parts, f.path, f.link, f.text)
	}
	return digest(parts...)
}

// Build returns the image; it builds it if the cache has none. say is called with each step.
func Build(ctx context.Context, cache string, say func(string)) (Image, error) {
	s, err := openStore(cache)
	if err != nil {
		return Image{}, err
	}
	dir, err := s.get("image", recipe(), func(dir string) error {
		if os.Geteuid() != 0 {
			return fmt.Errorf("%w: files that belong to root are unpacked: run as root", ErrCannot)
		}
		return imageBuild{ctx: ctx, dir: dir, say: say}.run()
	})
	if err != nil {
		return Image{}, fmt.Errorf("build guest image: %w", err)
	}
	return imageIn(dir), nil
}

// imageBuild builds one image.
type imageBuild struct {
	ctx context.Context
	dir string
	say func(string)
}

func (b imageBuild) run() error {
	root := filepath.Join(b.dir, "root")
	debs := filepath.Join(b.dir, "debs")
	if err := errors.Join(os.Mkdir(root, 0o755), os.MkdirAll(filepath.Join(debs, "partial"), 0o755)); err != nil {
		return err
	}
	b.say("download packages")
	if err := b.download(debs); err != nil {
		return err
	}
	b.say("unpack packages")
	if err := b.unpack(debs, root); err != nil {
		return err
	}
	b.say("finish the root file system")
	if err := b.finish(root); err != nil {
		return err
	}
	b.say("make the root file system's image")
	if err := makeExt4(b.ctx, imageIn(b.dir).Root, root, "root"); err != nil {
		return err
	}
	return errors.Join(os.RemoveAll(root), os.RemoveAll(debs))
}

// download has apt fetch and verify the packages by this machine's own configuration: sources, keys, proxies. An empty
// list of installed packages makes it fetch everything they depend on.
func (b imageBuild) download(debs string) error {
	status := filepath.Join(b.dir, "status")
	if err := os.WriteFile(status, nil, 0o644); err != nil {
		return err
	}
	defer os.Remove(status)
	options := []string{"-qq", "-o", "Dir::Cache::archives=" + debs + "/", "-o", "Debug::NoLocking=1", "-o",
		"APT::Sandbox::User=root", "-o", "APT::Architecture=amd64"}
	install := slices.Concat(options, []string{"-o", "Dir::State::status=" + status, "--download-only",
		"--no-install-recommends", "-y", "install"}, packages)
	if err := b.runIn(debs, "apt-get", install...); err != nil {
		return fmt.Errorf("%w (are the package lists there? apt-get update)", err)
	}
	kernel, err := exec.CommandContext(b.ctx, "apt-cache", "depends", "--important", kernelPackage).Output()
	if err != nil {
		return fmt.Errorf("find the kernel's package: apt-cache depends %s: %w", kernelPackage, err)
	}
	_, name, found := strings.Cut(string(kernel), "Depends: ")
	if name, _, _ = strings.Cut(name, "\n"); !found {
		return fmt.Errorf("find the kernel's package: apt-cache depends %s: %q: want a Depends line", kernelPackage, kernel)
	}
	return b.runIn(debs, "apt-get", slices.Concat(options, []string{"download", strings.TrimSpace(name)})...)
}

// runIn runs a program in a directory.
func (b imageBuild) runIn(dir, name string, args ...string) error {
	command := exec.CommandContext(b.ctx, name, args...)
	command.Dir = dir
	return runQuietly(command)
}

// runQuietly runs a command whose output matters only if it fails.
func runQuietly(command *exec.Cmd) error {
	var said bytes.Buffer
	command.Stdout, command.Stderr = &said, &said
	if err := command.Run(); err != nil {
		return fmt.Errorf("%s: %w: %s", strings.Join(command.Args[:min(4, len(command.Args))], " "), err,
			bytes.TrimSpace(said.Bytes()))
	}
	return nil
}

func (b imageBuild) unpack(debs, root string) error {
	// Debian's merged /usr: packages contain files under both names.
	for _, name := range []string{"bin", "sbin", "lib", "lib64"} {
		if err := errors.Join(os.MkdirAll(filepath.Join(root, "usr", name), 0o755), os.Symlink("usr/"+name,
			filepath.Join(root, name))); err != nil {
			return err
		}
	}
	paths, err := filepath.Glob(filepath.Join(debs, "*.deb"))
	if err != nil {
		return err
	}
	for _, path := range paths {
		name, _, _ := strings.Cut(filepath.Base(path), "_")
		if slices.ContainsFunc(unpackNot, func(prefix string) bool { return strings.HasPrefix(name, prefix) }) {
			continue
		}
		if err := b.unpackOne(path, root); err != nil {
			return fmt.Errorf("unpack %s: %w", filepath.Base(path), err)
		}
	}
	return nil
}

func (b imageBuild) unpackOne(path, root string) error {
	deb := exec.CommandContext(b.ctx, "dpkg-deb", "--fsys-tarfile", path)
	var said bytes.Buffer
	deb.Stderr = &said
	archive, err := deb.StdoutPipe()
	if err == nil {
		err = deb.Start()
	}
	if err != nil {
		return err
	}
	unpackErr := unpackTar(archive, root, func(name string) bool {
		return slices.ContainsFunc(leaveOut, func(prefix string) bool { return strings.HasPrefix(name, prefix) })
	})
	if unpackErr != nil {
		_, _ = io.Copy(io.Discard, archive) // so that dpkg-deb can end
	}
	if err := deb.Wait(); err != nil {
		return fmt.Errorf("dpkg-deb: %w: %s", err, bytes.TrimSpace(said.Bytes()))
	}
	return unpackErr
}

// finish does what maintainer scripts would have done, as far as a guest needs it, and takes the kernel out of the
// root.
func (b imageBuild) finish(root string) error {
	for _, f := range rootFiles {
		if err := f.write(root); err != nil {
			return err
		}
	}
	kernels, err := filepath.Glob(filepath.Join(root, "boot/vmlinuz-*"))
	if err != nil {
		return err
	}
	if len(kernels) != 1 {
		return fmt.Errorf("find the kernel: %d files boot/vmlinuz-*: want one", len(kernels))
	}
	_, version, _ := strings.Cut(filepath.Base(kernels[0]), "-")
	if err := os.Rename(kernels[0], imageIn(b.dir).Kernel); err != nil {
		return err
	}
	if err := onlyConfig(filepath.Join(root, "boot")); err != nil {
		return err
	}
	// The image's own depmod supports its own modules; it needs only the files.
	depmod := exec.CommandContext(b.ctx, "/sbin/depmod", version)
	depmod.SysProcAttr = &syscall.SysProcAttr{Chroot: root}
	depmod.Dir = "/"
	if err := runQuietly(depmod); err != nil {
		return err
	}
	return collectDrivers(filepath.Join(root, "usr/lib/modules", version), imageIn(b.dir).drivers)
}

// onlyConfig removes everything from /boot but the kernel's configuration, which kubeadm reads.
func onlyConfig(boot string) error {
	entries, err := os.ReadDir(boot)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), "config-") {
			continue
		}
		if err := os.RemoveAll(filepath.Join(boot, e.Name())); err != nil {
			return err
		}
	}
	return nil
}

// driverNames are the drivers that a guest needs before it has a root; it loads others itself, on demand.
var driverNames = []string{"virtio_pci", "virtio_blk", "virtio_console", "virtio_net", "qemu_fw_cfg", "overlay"}

// collectDrivers copies the named modules and their dependencies, and writes their order to a file.
func collectDrivers(modules, to string) error {
	text, err := os.ReadFile(filepath.Join(modules, "modules.dep"))
	if err != nil {
		return err
	}
	order, err := driverOrder(string(text), driverNames)
	if err != nil {
		return err
	}
	if err := os.Mkdir(to, 0o755); err != nil {
		return err
	}
	var names []string
	for _, path := range order {
		data, err := os.ReadFile(filepath.Join(modules, path))
		if err != nil {
			return err
		}
		names = append(names, filepath.Base(path))
		if err := os.WriteFile(filepath.Join(to, filepath.Base(path)), data, 0o644); err != nil {
			return err
		}
	}
	return os.WriteFile(filepath.Join(to, "order"), []byte(strings.Join(names, "\n")+"\n"), 0o644)
}

// driverOrder returns the paths of the named modules and their dependencies, dependencies first. deps has the format of
// modules.dep(5): "path: path path ...", where the first depends on the others.
func driverOrder(deps string, names []string) ([]string, error) {
	lines := map[string][]string{}
	for line := range strings.Lines(deps) {
		path, needs, ok := strings.Cut(line, ":")
		if !ok {
			return nil, fmt.Errorf("read modules.dep: %q: want a path, a colon, and paths", line)
		}
		name, _, _ := strings.Cut(filepath.Base(path), ".ko")
		needed := strings.Fields(needs)
		slices.Reverse(needed)
		lines[name] = append(needed, path)
	}
	var order []string
	for _, name := range names {
		paths, ok := lines[name]
		if !ok {
			return nil, fmt.Errorf("read modules.dep: no module %s: %w", name, fs.ErrNotExist)
		}
		for _, path := range paths {
			if !slices.Contains(order, path) {
				order = append(order, path)
			}
		}
	}
	return order, nil
}
