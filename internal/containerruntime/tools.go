package containerruntime

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// binDirs are searched after PATH, because a caller's PATH often lacks the sbin directories.
var binDirs = []string{"/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"}

// pluginDirs are the directories where distributions put CNI plugins: Debian's, the plugins' own, Fedora's.
var pluginDirs = []string{"/usr/lib/cni", "/opt/cni/bin", "/usr/libexec/cni"}

// plugins are the CNI plugins of the pod network; containerd itself needs loopback.
var plugins = []string{"bridge", "host-local", "loopback"}

// tools are the absolute paths of the system's programs that an instance uses; "" for missing ones.
type tools struct {
	containerd, ctr string
	shim            string            // containerd looks for it by its name, in PATH
	oci             map[string]string // those of runc and crun that exist, by name
	pluginDir       string
}

// installCommand is the command for missing packages in errors; `make deps` does the same.
const installCommand = "apt-get install -y --no-install-recommends "

// findTools returns an error with everything that is missing, and the command that installs it.
func findTools(o Options) (tools, error) { return findToolsIn(o, findProgram, pluginDirs) }

func findToolsIn(o Options, find func(string) string, pluginDirs []string) (tools, error) {
	t := tools{containerd: find("containerd"), ctr: find("ctr"), shim: find("containerd-shim-runc-v2"),
		oci: map[string]string{}}
	if o.External != "" {
		return t, nil
	}
	var missing, packages []string
	lack := func(what, pkg string) {
		missing = append(missing, what)
		if !slices.Contains(packages, pkg) {
			packages = append(packages, pkg)
		}
	}
	for _, name := range []string{"containerd", "ctr", "containerd-shim-runc-v2"} {
		if find(name) == "" {
			lack(name, "containerd")
		}
	}
	for _, name := range []string{"runc", "crun"} {
		if path := find(name); path != "" {
			t.oci[name] = path
		}
	}
	if want := o.OCIRuntime; want != "" && t.oci[want] == "" {
		lack(want, want)
	} else if len(t.oci) == 0 {
		lack("runc (or crun)", "runc")
	}
	absent := plugins
	for _, dir := range pluginDirs {
		if lacks := absentIn(dir); len(lacks) < len(absent) {
			t.pluginDir, absent = dir, lacks
		}
	}
	for _, name := range absent {
		lack("CNI plugin "+name, "containernetworking-plugins")
	}
	if len(missing) > 0 {
		return t, fmt.Errorf("not on this machine: %s: install with: %s%s", strings.Join(missing, ", "), installCommand,
			strings.Join(packages, " "))
	}
	return t, nil
}

// defaultOCI returns the OCI runtime of pods without a RuntimeClass.
func (t tools) defaultOCI(o Options) string {
	if o.OCIRuntime != "" {
		return o.OCIRuntime
	}
	if t.oci["runc"] != "" {
		return "runc"
	}
	return "crun"
}

// crunRefusal returns why crun would start no container here, or "" if it would. crun up to at least 1.8 refuses a
// hybrid cgroup hierarchy whose v2 part has a controller (src/libcrun/cgroup.c), wherever it is mounted.
func crunRefusal(cgroupMount string) string {
	text, err := os.ReadFile(filepath.Join(cgroupMount, "unified/cgroup.controllers"))
	if held := strings.Fields(string(text)); err == nil && len(held) > 0 {
		return fmt.Sprintf("crun does not support a hybrid cgroup hierarchy with controllers in its v2 part, "+
			"and %s/unified has %s", cgroupMount, strings.Join(held, ", "))
	}
	return ""
}

func absentIn(dir string) []string {
	var absent []string
	for _, name := range plugins {
		if !isProgram(filepath.Join(dir, name)) {
			absent = append(absent, name)
		}
	}
	return absent
}

func findProgram(name string) string {
	if path, err := exec.LookPath(name); err == nil {
		if path, err = filepath.Abs(path); err == nil {
			return path
		}
	}
	for _, dir := range binDirs {
		if path := filepath.Join(dir, name); isProgram(path) {
			return path
		}
	}
	return ""
}

func isProgram(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular() && info.Mode().Perm()&0o111 != 0
}

// release is the part of a containerd version on which the configuration depends.
type release struct{ major, minor int }

// versionPattern finds the release in "containerd github.com/containerd/containerd 1.6.20~ds1 1.6.20~ds1-1+deb12u3" and
// "containerd github.com/containerd/containerd/v2 v2.1.4 75cb2b7193e4": the first field that is a version.
var versionPattern = regexp.MustCompile(` v?([0-9]+)\.([0-9]+)\.[0-9]`)

func (t tools) containerdVersion(ctx context.Context) (release, error) {
	text, err := exec.CommandContext(ctx, t.containerd, "--version").Output()
	if err != nil {
		return release{}, fmt.Errorf("ask containerd its version: %s: %w", t.containerd, err)
	}
	return parseVersion(string(text))
}

func parseVersion(text string) (release, error) {
	found := versionPattern.FindStringSubmatch(text)
	if found == nil {
		return release{}, fmt.Errorf("read containerd's version: %q: no version in it", text)
	}
	major, err := strconv.Atoi(found[1])
	if err != nil {
		return release{}, fmt.Errorf("read containerd's version: %q: %w", text, err)
	}
	minor, err := strconv.Atoi(found[2])
	if err != nil {
		return release{}, fmt.Errorf("read containerd's version: %q: %w", text, err)
	}
	if r := (release{major, minor}); r.before(1, 6) {
		return r, fmt.Errorf("containerd %d.%d: want 1.6 or later, which have CRI v1", major, minor)
	}
	return release{major, minor}, nil
}

func (r release) before(major, minor int) bool {
	return r.major < major || r.major == major && r.minor < minor
}
