package containerruntime

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/plimsoll-dev/plimsoll/internal/host/cri"
	"github.com/plimsoll-dev/plimsoll/internal/host/link"
)

var update = flag.Bool("update", false, "rewrite the files in testdata; read the diff")

// golden compares got with a file of testdata.
func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("%s differs (go test -update rewrites it):\n%s", path, got)
	}
}

// TestContainerdConfig writes the configuration in each form that releases of containerd read.
func TestContainerdConfig(t *testing.T) {
	both := tools{oci: map[string]string{"runc": "/usr/sbin/runc", "crun": "/usr/bin/crun"}, pluginDir: "/usr/lib/cni"}
	for _, c := range []struct {
		file        string
		version     release
		options     Options
		restrictOOM bool
	}{
		{"containerd-1.6.toml", release{1, 6}, Options{}, true},
		{"containerd-1.7-systemd-crun.toml", release{1, 7}, Options{CgroupDriver: "systemd", OCIRuntime: "crun",
			StateDir: `/srv/odd "name"`, LogLevel: "debug"}, false},
		{"containerd-2.0.toml", release{2, 0}, Options{}, false},
		{"containerd-2.1.toml", release{2, 1}, Options{}, false},
	} {
		golden(t, c.file, containerdConfig(settings{
			options: c.options.withDefaults(), tools: both, pause: "plimsoll.dev/pause:1", version: c.version,
			restrictOOM: c.restrictOOM,
		}))
	}
}

func TestCNIConfig(t *testing.T) {
	got, err := cniConfig(Options{}.withDefaults(), true)
	if err != nil {
		t.Fatal(err)
	}
	golden(t, "cni.conflist", got)
}

func TestParseVersion(t *testing.T) {
	for _, c := range []struct {
		text string
		want release
		fail string
	}{
		{"containerd github.com/containerd/containerd 1.6.20~ds1 1.6.20~ds1-1+deb12u3\n", release{1, 6}, ""},
		{"containerd containerd.io 1.7.27 05044ec0a9a75232cad458027ca83437aae3f4da\n", release{1, 7}, ""},
		{"containerd github.com/containerd/containerd/v2 v2.1.4 75cb2b7193e4e490e9fbdc236c0e811ccaba3376\n", release{2, 1},
			""},
		{"containerd github.com/containerd/containerd 1.4.13~ds1 1.4.13~ds1-1~deb11u4\n", release{1, 4}, "want 1.6 or later"},
		{"containerd\n", release{}, "no version"},
	} {
		got, err := parseVersion(c.text)
		if got != c.want || (err == nil) != (c.fail == "") || err != nil && !strings.Contains(err.Error(), c.fail) {
			t.Errorf("%q: %v, %v; want %v, error with %q", c.text, got, err, c.want, c.fail)
		}
	}
}

// TestMissingToolsAreListedTogether removes all tools, or some, and expects one error with one command.
func TestMissingToolsAreListedTogether(t *testing.T) {
	plugins := t.TempDir()
	for _, name := range []string{"bridge", "loopback"} {
		if err := os.WriteFile(filepath.Join(plugins, name), nil, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	without := func(names ...string) func(string) string {
		return func(name string) string {
			for _, n := range names {
				if n == name || n == "*" {
					return ""
				}
			}
			return "/bin/" + name
		}
	}
	for _, c := range []struct {
		find    func(string) string
		dirs    []string
		options Options
		want    string
	}{
		{without("*"), nil, Options{},
			"not on this machine: containerd, ctr, containerd-shim-runc-v2, runc (or crun), CNI plugin bridge, CNI plugin " +
				"host-local, CNI plugin loopback: " +
				"install with: apt-get install -y --no-install-recommends containerd runc containernetworking-plugins"},
		{without("runc"), []string{plugins}, Options{},
			"not on this machine: CNI plugin host-local: install with: apt-get install -y --no-install-recommends " +
				"containernetworking-plugins"},
		{without("crun"), []string{"/nowhere", plugins}, Options{OCIRuntime: "crun"},
			"not on this machine: crun, CNI plugin host-local: " +
				"install with: apt-get install -y --no-install-recommends crun containernetworking-plugins"},
		{without("*"), nil, Options{External: "/run/crio.sock"}, ""},
	} {
		_, err := findToolsIn(c.options, c.find, c.dirs)
		if got := errorText(err); got != c.want {
			t.Errorf("got  %s\nwant %s", got, c.want)
		}
	}
}

func errorText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// TestInstallScriptKnowsThePackages keeps scripts/deps.sh and the error about missing programs consistent.
func TestInstallScriptKnowsThePackages(t *testing.T) {
	script, err := os.ReadFile("../../scripts/deps.sh")
	if err != nil {
		t.Fatal(err)
	}
	for _, pkg := range []string{"containerd", "runc", "containernetworking-plugins"} {
		if !strings.Contains(string(script), ":"+pkg+"\"") {
			t.Errorf("scripts/deps.sh does not install %s, which a missing program is blamed on", pkg)
		}
	}
	if !strings.Contains(string(script), strings.TrimSpace(installCommand)) {
		t.Errorf("scripts/deps.sh does not run %q, which errors tell the user to", installCommand)
	}
}

func TestOptionsReportEveryProblem(t *testing.T) {
	bad := Options{
		StateDir: "state", RunDir: "/run/" + strings.Repeat("x",
			90), ImageDir: "", Bridge: "a-bridge-too-far", PodCIDR: "10.85.0.1/16",
		CgroupDriver: "magic", CgroupRoot: "/", OCIRuntime: "kata",
	}.withDefaults()
	got := errorText(bad.validate())
	for _, want := range []string{
		`state directory "state"`, `image directory ""`,
		"has 117 bytes, the kernel takes 107: choose a run directory shorter by 10",
		`bridge "a-bridge-too-far"`, `pod CIDR "10.85.0.1/16"`, `cgroup driver "magic"`, `cgroup root "/"`,
		`OCI runtime "kata"`,
	} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in:\n%s", want, got)
		}
	}
	if err := (Options{ImageDir: "/usr/lib/plimsoll/images"}).withDefaults().validate(); err != nil {
		t.Errorf("defaults do not pass: %v", err)
	}
}

// TestPodCIDROverlap uses the loopback network, which every machine has.
func TestPodCIDROverlap(t *testing.T) {
	err := checkPodCIDR(Options{Bridge: "plimsollrt9", PodCIDR: "127.0.0.0/16"}.withDefaults())
	if err == nil || !strings.Contains(err.Error(), "interface lo") {
		t.Errorf("error %v does not name the interface", err)
	}
}

// TestProbesSayWhat tries probes that must fail on any machine.
func TestProbesSayWhat(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: mounts and makes network links")
	}
	// most kernels support overlays on tmpfs
	if err := probeOverlay("/dev/shm"); err != nil && !strings.Contains(err.Error(), "choose a state directory") {
		t.Errorf("overlay on tmpfs: %v", err)
	}
	if err := probeOverlay("/proc"); err == nil || !strings.Contains(err.Error(), "/proc") {
		t.Errorf("overlay on /proc: %v", err)
	}
	if err := link.CreateBridge("lo"); err == nil || !strings.Contains(err.Error(), "is not a bridge") {
		t.Errorf("a bridge called lo: %v", err)
	}
}

func TestGrace(t *testing.T) {
	for text, want := range map[string]string{"": "10s", "3": "3s", "0": "0s", "30": "10s", "-1": "10s", "x": "10s"} {
		if got := graceOf(map[string]string{cri.AnnotationPodGracePeriod: text}).String(); got != want {
			t.Errorf("grace of %q is %s, want %s", text, got, want)
		}
	}
}

// containerd finds its shim by name: it must find the one that belongs to it, not another release's.
func TestProgramDirIsTheShims(t *testing.T) {
	tools, err := findToolsIn(Options{External: "/run/crio.sock"},
		func(name string) string { return "/opt/containerd-2/bin/" + name }, nil)
	if dir := (&Instance{tools: tools}).ProgramDir(); err != nil || dir != "/opt/containerd-2/bin" {
		t.Errorf("%q, %v", dir, err)
	}
}
