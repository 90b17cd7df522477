package cluster

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// testOptions returns options of an instance in a directory of the test.
func testOptions(t *testing.T) Options {
	t.Helper()
	dir := t.TempDir()
	return Options{
		Instance: "test", StateDir: filepath.Join(dir, "state"), RunDir: filepath.Join(dir,
			"run"), NodeName: "node-1", NodeIP: "192.0.2.10",
		BindAddress: "127.0.0.1", APIServerPort: 6443, ControllerManagerPort: 10257, AgentPort: 10250, AgentHealthPort: 10248,
		PodCIDR: "10.85.0.0/16", ServiceCIDR: "10.96.0.0/16", Agent: true,
	}
}

func TestDirectories(t *testing.T) {
	none := func(string) string { return "" }
	home := func(name string) string { return map[string]string{"HOME": "/home/u"}[name] }
	xdg := func(name string) string {
		return map[string]string{"HOME": "/home/u", "XDG_STATE_HOME": "/s", "XDG_RUNTIME_DIR": "/run/user/1"}[name]
	}
	for _, c := range []struct {
		what       string
		o          Options
		root       bool
		getenv     func(string) string
		state, run string
	}{
		{"root", Options{Instance: "plimsoll"}, true, none, "/var/lib/plimsoll", "/run/plimsoll"},
		{"root, another instance", Options{Instance: "b"}, true, none, "/var/lib/plimsoll-b", "/run/plimsoll-b"},
		{"root, state moved: the rest moves along", Options{Instance: "b", StateDir: "/d"}, true, none, "/d", "/d/run"},
		{"root, both moved", Options{Instance: "b", StateDir: "/d", RunDir: "/r"}, true, none, "/d", "/r"},
		{"user", Options{Instance: "plimsoll"}, false, home, "/home/u/.local/state/plimsoll",
			"/home/u/.local/state/plimsoll/run"},
		{"user with XDG", Options{Instance: "plimsoll"}, false, xdg, "/s/plimsoll", "/run/user/1/plimsoll"},
		{"user without a home", Options{Instance: "plimsoll"}, false, none, "", ""},
	} {
		state, run, err := c.o.directories(c.root, c.getenv)
		if state != c.state || run != c.run || (err != nil) != (c.state == "") {
			t.Errorf("%s: %q, %q, %v, want %q, %q", c.what, state, run, err, c.state, c.run)
		}
	}
}

func TestValidateAcceptsDefaults(t *testing.T) {
	o := testOptions(t)
	if err := o.Validate(); err != nil {
		t.Error(err)
	}
}

// Every problem is reported at once, with the flag and the value.
func TestValidateReportsEverything(t *testing.T) {
	o := testOptions(t)
	o.Instance = "Not/Good"
	o.RunDir = "/" + strings.Repeat("long/", 30)
	o.NodeName = "Node_1"
	o.NodeIP, o.BindAddress = "here", "there"
	o.PodCIDR, o.ServiceCIDR = "10.85.0.1/16", "ten"
	o.APIServerPort = 0
	o.ControllerManagerPort = 70000
	o.AgentPort = 10250
	o.AgentHealthPort = 10250
	o.SchedulerPort = 10250
	o.LifecyclePort = 10267
	o.NoLifecycle = true
	o.EtcdServers = []string{"ftp://a"}
	o.EtcdCAFile, o.EtcdCertFile = "/no/such/file", ""
	o.EtcdKeyFile = "/no/such/key"
	o.Hollow = -1
	o.VolumesMax = -1
	o.GCPercent = 5
	o.SigningDuration = time.Second
	o.ContainerRuntimeEndpoint = "relative.sock"
	err := o.Validate()
	if err == nil {
		t.Fatal("no error")
	}
	for _, want := range []string{`--instance "Not/Good"`, "--run-dir", `--node-name "Node_1"`, `--node-ip "here"`,
		`--bind-address "there"`,
		`--pod-cidr "10.85.0.1/16"`, `--service-cidr "ten"`, "--apiserver-port 0", "--controller-manager-port 70000",
		"--agent-health-port 10250: --agent-port has the same port",
		"--agent-port 10250: --scheduler-port has the same port", "--lifecycle-port 10267: has no effect with --no-lifecycle",
		`--etcd-servers "ftp://a"`, "/no/such/file", "--etcd-certfile and --etcd-keyfile",
		"--hollow -1", "--volumes-max -1", "--gc-percent 5", "--cluster-signing-duration 1s",
		"--container-runtime-endpoint relative.sock"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("the error does not hold %q:\n%v", want, err)
		}
	}
}

// The agent's configuration file is input like the flags: its problems are reported with theirs.
func TestValidateReadsTheAgentsConfiguration(t *testing.T) {
	o := testOptions(t)
	o.AgentConfig, o.Hollow = filepath.Join(t.TempDir(), "kubelet.yaml"), -1
	text := "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\nmaxPods: -1\nnoSuchField: 1\n"
	if err := os.WriteFile(o.AgentConfig, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	err := o.Validate()
	for _, want := range []string{"--agent-config", o.AgentConfig, "maxPods", "noSuchField", "--hollow"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("the error does not hold %q: %v", want, err)
		}
	}
	if o.Agent, o.Hollow = false, 1; o.Validate() != nil {
		t.Error("a file that nobody will read is read")
	}
}

func TestOptionsAreKept(t *testing.T) {
	o := testOptions(t)
	if _, err := Load(o); err == nil || !strings.Contains(err.Error(), "never been up here") {
		t.Errorf("before up: %v", err)
	}
	if err := (layout{o}).makeDirectories(); err != nil {
		t.Fatal(err)
	}
	if err := o.save(); err != nil {
		t.Fatal(err)
	}
	kept, err := Load(Options{Instance: o.Instance, StateDir: o.StateDir})
	if err != nil || kept.RunDir != o.RunDir || kept.APIServerPort != o.APIServerPort || !kept.Agent {
		t.Errorf("kept %+v, %v", kept, err)
	}
	path := layout{o}.options()
	if err := os.WriteFile(path, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Load(o); err == nil || !strings.Contains(err.Error(), path) {
		t.Errorf("damaged: %v does not name %s", err, path)
	}
}

// `down --purge` removes directories, so `up` must not use one that contains other files.
func TestStrangersDirectoriesAreRefused(t *testing.T) {
	for _, flag := range []string{"state-dir", "run-dir"} {
		o := testOptions(t)
		dir := map[string]string{"state-dir": o.StateDir, "run-dir": o.RunDir}[flag]
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "thesis.tex"), nil, 0o644); err != nil {
			t.Fatal(err)
		}
		if err := (layout{o}).makeDirectories(); err == nil || !strings.Contains(err.Error(), "--"+flag) ||
			!strings.Contains(err.Error(), "thesis.tex") {
			t.Errorf("%s: error %v", flag, err)
		}
	}
	o := testOptions(t)
	for range 2 { // our own directories are accepted again and again
		if err := (layout{o}).makeDirectories(); err != nil {
			t.Error(err)
		}
	}
}

// TestDirectoryModes: other users can pass through the run directory, as containers of pods with user namespaces must,
// and reach neither the state directory nor etcd's socket.
func TestDirectoryModes(t *testing.T) {
	o := testOptions(t)
	if err := os.MkdirAll(o.RunDir, 0o777); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := (layout{o}).makeDirectories(); err != nil {
			t.Fatal(err)
		}
		etcd := filepath.Dir(layout{o}.etcdSocket())
		for dir, want := range map[string]os.FileMode{o.StateDir: 0o700, o.RunDir: 0o711, etcd: 0o700} {
			if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != want {
				t.Errorf("%s: %v, want %v (%v)", dir, info.Mode().Perm(), want, err)
			}
			if err := os.Chmod(dir, 0o755); err != nil {
				t.Fatal(err)
			}
		}
	}
}

func TestInterfaceAndCgroupNames(t *testing.T) {
	for _, c := range []struct{ instance, bridge, cgroupRoot, podCgroup string }{
		{"plimsoll", "plimsoll0", "/", "/kubepods"},
		{"b", "pl-b", "/plimsoll-b", "/plimsoll-b"},
		{"a-long-name-for-tests", "pl-a-long4bb718", "/plimsoll-a-long-name-for-tests", "/plimsoll-a-long-name-for-tests"},
	} {
		l := layout{Options{Instance: c.instance}}
		if l.bridge() != c.bridge || l.cgroupRoot() != c.cgroupRoot || l.podCgroup() != c.podCgroup {
			t.Errorf("%s: %s %s %s", c.instance, l.bridge(), l.cgroupRoot(), l.podCgroup())
		}
	}
}
