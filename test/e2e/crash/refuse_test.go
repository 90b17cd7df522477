//go:build e2e

package crash

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/plimsoll-dev/plimsoll/test/e2e/rig"
	"github.com/plimsoll-dev/plimsoll/test/freeport"
)

// refusals are files and directories that up must refuse.
type refusals struct {
	binary   string
	dir      string
	several  string // a file with several problems
	foreign  string // a directory with a file of somebody else's
	newer    string // a state directory of a newer release
	nobodys  string // a directory of another user
	full     string // a file system with too little room
	readOnly string // a read-only file system
}

func newRefusals(t *testing.T, binary string) refusals {
	dir := t.TempDir()
	if err := os.Chmod(filepath.Dir(dir), 0o755); err != nil { // a directory that other users may not read
		t.Fatal(err)
	}
	file := func(name, content string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	several := file("several.yaml",
		"apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\nmaxPods: -1\nfileCheckFrequency: soon\n"+
			"noSuchField: 1\nevictionHard: {memory.available: lots}\n")
	foreign := filepath.Join(dir, "foreign")
	if err := os.MkdirAll(foreign, 0o755); err != nil {
		t.Fatal(err)
	}
	file("foreign/letter", "of somebody else's")
	newer := filepath.Join(dir, "newer")
	if err := os.Mkdir(newer, 0o700); err != nil {
		t.Fatal(err)
	}
	file("newer/lock", "")
	file("newer/version", "v1.99.0\n")
	nobodys := filepath.Join(dir, "nobodys")
	if err := errors.Join(os.Mkdir(nobodys, 0o700), os.Chown(nobodys, nobody, nobody)); err != nil {
		t.Fatal(err)
	}
	full, readOnly := filepath.Join(dir, "full"), filepath.Join(dir, "readonly")
	mountTmpfs(t, full, 0, "size=8m")
	mountTmpfs(t, readOnly, unix.MS_RDONLY, "size=8m")
	return refusals{
		binary:   binary,
		dir:      dir,
		several:  several,
		foreign:  foreign,
		newer:    newer,
		nobodys:  nobodys,
		full:     full,
		readOnly: readOnly,
	}
}

// TestRefusals starts instances with input that cannot work. Each is refused before anything is started, with what,
// where, which value and what to do. Scripts rely on the exit code: 1 for a failure, 2 for wrong usage.
func TestRefusals(t *testing.T) {
	t.Parallel()
	binary := rig.Binary(t)
	if os.Geteuid() != 0 {
		t.Skip("needs root: an instance with containers is refused without it, before anything else")
	}
	r := newRefusals(t, binary)
	taken := strconv.Itoa(listen(t))
	for n, c := range []refusal{
		{"port in use", []string{"--apiserver-port", taken}, nil, 1, []string{"port " + taken, "crash.test",
			"pid " + strconv.Itoa(os.Getpid()), "--apiserver-port"}},
		{"agent's port in use", []string{"--agent-port", taken}, nil, 1, []string{"port " + taken,
			"pid " + strconv.Itoa(os.Getpid()), "--agent-port"}},
		{"no containerd", nil, []string{"containerd"}, 1, []string{"not on this machine: containerd",
			"apt-get install -y --no-install-recommends containerd"}},
		{"no runc, no crun", nil, []string{"runc", "crun"}, 1, []string{"not on this machine: runc (or crun)",
			"apt-get install -y --no-install-recommends runc"}},
		{"several problems in a file", []string{"--agent-config", r.several}, nil, 2, []string{r.several, "maxPods",
			"fileCheckFrequency", "noSuchField", "lots"}},
		{"binary as configuration", []string{"--agent-config", "/bin/true"}, nil, 2, []string{"--agent-config", "/bin/true"}},
		{"directory as configuration", []string{"--agent-config", r.dir}, nil, 2, []string{"--agent-config", r.dir}},
		{"flags", []string{"--pod-cidr", "everything", "--hollow", "-1", "--node-ip", "here"}, nil, 2, []string{"--pod-cidr",
			"everything", "--hollow", "--node-ip"}},
		{"unknown add-on", []string{"--without", "dns"}, nil, 2, []string{`--without "dns"`, "kube-proxy"}},
		{"unknown flag", []string{"--no-such-flag"}, nil, 2, []string{"--no-such-flag", "--help"}},
		{"full state directory", []string{"--state-dir", filepath.Join(r.full, "s")}, nil, 1, []string{r.full, "MiB free",
			"--state-dir"}},
		{"read-only state directory", []string{"--state-dir", filepath.Join(r.readOnly, "s")}, nil, 1,
			[]string{r.readOnly, "read-only file system"}},
		{"somebody's state directory", []string{"--state-dir", r.foreign}, nil, 1, []string{r.foreign, "letter",
			"--state-dir"}},
		{"state of a newer release", []string{"--state-dir", r.newer}, nil, 1, []string{r.newer, "v1.99.0", "v1.36",
			"--state-dir"}},
		{"file as state directory", []string{"--state-dir", r.several}, nil, 1, []string{r.several}},
		{"runtime that is not there", []string{"--container-runtime-endpoint", "/no/such.sock", "--timeout", "5s"}, nil, 1,
			[]string{"/no/such.sock"}},
	} {
		t.Run(c.what, func(t *testing.T) { r.check(t, n, c) })
	}
	r.otherUsers(t)
}

// refusal is a call of up, and how it ends.
type refusal struct {
	what  string
	flags []string
	hide  []string // programs
	exit  int
	want  []string
}

func (r refusals) check(t *testing.T, n int, c refusal) {
	state := filepath.Join(r.dir, fmt.Sprint("s", n))
	flags := append([]string{
		"up", "--detach", "--instance", fmt.Sprintf("refuse%d-%d", os.Getpid(), n), "--state-dir", state,
		"--apiserver-port", strconv.Itoa(freeport.ForTest(t)), "--agent-port", strconv.Itoa(freeport.ForTest(t)),
		"--agent-health-port", "0", "--controller-manager-port", "0",
		"--pod-cidr", "10.98.7.0/24",
		"--without", "kube-proxy,coredns,metrics-server,csi",
	}, c.flags...)
	cmd := hiding(r.binary, flags, c.hide)
	t.Cleanup(func() { // otherwise that is refused, too
		_ = exec.Command(r.binary, "down", "--purge", "--instance", flags[3], "--state-dir", state).Run()
	})
	out, err := cmd.CombinedOutput()
	if code := cmd.ProcessState.ExitCode(); code != c.exit {
		t.Errorf("exit code %d, %v, want %d", code, err, c.exit)
	}
	for _, want := range c.want {
		if !strings.Contains(string(out), want) {
			t.Errorf("it does not say %q:\n%s", want, out)
		}
	}
	leavesNothing(t, state)
}

// otherUsers: up says what another user may not do.
func (r refusals) otherUsers(t *testing.T) {
	program := giveProgram(t, r.binary, r.nobodys)
	t.Run("state directory of another user", func(t *testing.T) {
		cmd := exec.Command("setpriv", "--reuid", strconv.Itoa(nobody), "--regid", strconv.Itoa(nobody), "--clear-groups",
			program, "up", "--detach", "--hollow", "1", "--state-dir", filepath.Join(r.foreign, "s"))
		out, err := cmd.CombinedOutput()
		if err == nil || !strings.Contains(string(out), "permission denied") || !strings.Contains(string(out), r.foreign) {
			t.Errorf("%v:\n%s", err, out)
		}
	})
	t.Run("nobody wants containers", func(t *testing.T) {
		cmd := exec.Command(program, "up", "--detach", "--state-dir", filepath.Join(r.nobodys, "s"))
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
		out, err := cmd.CombinedOutput()
		if err == nil || !strings.Contains(string(out), "root") || !strings.Contains(string(out), "--hollow") {
			t.Errorf("%v:\n%s", err, out)
		}
	})
}

// hiding runs plimsoll in a mount namespace where some programs are not executable. Without them in PATH, plimsoll
// would still look in the usual directories.
func hiding(binary string, args, programs []string) *exec.Cmd {
	if len(programs) == 0 {
		return exec.Command(binary, args...)
	}
	script := ""
	for _, name := range programs {
		if path, err := exec.LookPath(name); err == nil {
			script += "mount --bind /dev/null " + path + " && "
		}
	}
	return exec.Command("unshare", append([]string{"--mount", "/bin/sh", "-c", script + `exec "$0" "$@"`, binary},
		args...)...)
}

// leavesNothing checks that no process of a refused instance runs.
func leavesNothing(t *testing.T, state string) {
	t.Helper()
	lines, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range lines {
		if text, err := os.ReadFile(path); err == nil && strings.Contains(string(text), state+"/") {
			t.Errorf("still runs: %q", text)
		}
	}
}

func mountTmpfs(t *testing.T, dir string, flags uintptr, options string) {
	t.Helper()
	if err := errors.Join(os.Mkdir(dir, 0o755), unix.Mount("tmpfs", dir, "tmpfs", flags, options)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
	})
}
