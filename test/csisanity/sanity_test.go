// Package csisanity runs upstream's csi-sanity suite against bin/plimsoll-csi, which is a separate process with its own
// file system: with file systems in sparse files, with block devices, and with directories that project quota limits.
// After each run nothing may be left: no mount, no loop device, no file of a volume. The package is a separate module
// so that the suite's dependencies do not become ours.
//
// It needs root and the program (`make bin/plimsoll-csi`), and is skipped without root.
package csisanity

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/kubernetes-csi/csi-test/v5/pkg/sanity"
)

// A variant is a kind of volume that the suite is run with.
type variant struct {
	name       string
	access     string
	parameters map[string]string
	features   []string // of the file system that keeps the volumes
	mount      string
}

var variants = []variant{
	{name: "image", access: "mount", parameters: map[string]string{"backing": "image"}, mount: "loop"},
	{name: "block", access: "block", mount: "loop"},
	{
		name:     "directory",
		access:   "mount",
		features: []string{"-O", "project,quota", "-E", "quotatype=prjquota"},
		mount:    "loop,prjquota",
	},
}

// chosen names the variant in the process that runs it: the suite can run once in a process.
const chosen = "PLIMSOLL_SANITY"

const (
	diskBytes   = 64 << 30 // sparse; more than all volumes of the suite together
	volumeBytes = 1 << 30
)

func TestSanity(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: mounts file systems")
	}
	program, err := filepath.Abs("../../bin/plimsoll-csi")
	if err == nil {
		_, err = os.Stat(program)
	}
	if err != nil {
		t.Fatalf("needs `make bin/plimsoll-csi`: %v", err)
	}
	for _, v := range variants {
		if name := os.Getenv(chosen); name == v.name {
			v.run(t, program)
			return
		} else if name != "" {
			continue
		}
		t.Run(v.name, func(t *testing.T) {
			suite := exec.Command(os.Args[0], "-test.run=^TestSanity$", "-test.v", "-ginkgo.no-color")
			suite.Env = append(os.Environ(), chosen+"="+v.name)
			// It has its own mount namespace: another program may copy ours at any time, and would keep our mounts then.
			suite.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
			out, err := suite.CombinedOutput()
			if err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			for line := range strings.Lines(string(out)) {
				if strings.Contains(line, "Passed") || strings.Contains(line, "needs a kernel") {
					t.Log(strings.TrimSpace(line))
				}
			}
		})
	}
}

func (v variant) run(t *testing.T, program string) {
	base, err := os.MkdirTemp("/tmp", "plc") // a short name: paths of sockets have at most 107 bytes
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(base)
	disk := filepath.Join(base, "disk")
	state := filepath.Join(base, "state")
	must(t, os.WriteFile(disk, nil, 0o600), os.Truncate(disk, diskBytes), os.Mkdir(state, 0o700))
	command(t, "mkfs.ext4", append(append([]string{"-q"}, v.features...), disk)...)
	if out, err := exec.Command("mount", "-o", v.mount, disk, state).CombinedOutput(); err != nil && v.features != nil {
		t.Skipf("needs a kernel with project quota: %v: %s", err, out)
	} else if err != nil {
		t.Fatalf("mount: %v: %s", err, out)
	}
	defer func() {
		if err := syscall.Unmount(state, 0); err != nil {
			t.Errorf("something is left in the volumes' file system: %v", err)
		}
	}()
	address := filepath.Join(base, "csi.sock")
	volumes := filepath.Join(state, "volumes")
	end := start(t, program, "--dir", volumes, "--node-name", "sanity", "--endpoint", address, "--reserved-percent", "0")
	config := sanity.NewTestConfig()
	config.Address = "unix:" + address
	config.TargetPath = filepath.Join(base, "target")
	config.StagingPath = filepath.Join(base, "staging")
	config.TestVolumeSize = volumeBytes
	config.TestVolumeExpandSize = 2 * volumeBytes
	config.TestVolumeAccessType = v.access
	config.TestVolumeParameters = v.parameters
	sanity.Test(t, config)
	nothingLeft(t, base, volumes)
	end()
}

// nothingLeft checks the kernel's tables and the directory while the driver still runs.
func nothingLeft(t *testing.T, base, volumes string) {
	t.Helper()
	for _, sub := range []string{"volumes", "snapshots", "new", "old"} {
		entries, err := os.ReadDir(filepath.Join(volumes, sub))
		if err != nil || len(entries) > 0 {
			t.Errorf("left in %s: %v, %v", sub, entries, err)
		}
	}
	table, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	for _, at := range []string{"target", "staging"} {
		if strings.Contains(string(table), filepath.Join(base, at)) {
			t.Errorf("something is still mounted below %s", at)
		}
	}
	backing, err := filepath.Glob("/sys/block/loop*/loop/backing_file")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range backing {
		if file, err := os.ReadFile(path); err == nil && strings.HasPrefix(string(file), volumes) {
			t.Errorf("a loop device is left: %s is of %s", path, file)
		}
	}
}

// start starts the driver and waits for its socket. The result ends it.
func start(t *testing.T, program string, args ...string) (end func()) {
	t.Helper()
	var log bytes.Buffer
	driver := exec.Command(program, args...)
	driver.Stderr = &log
	must(t, driver.Start())
	ended := make(chan error, 1)
	go func() { ended <- driver.Wait() }()
	deadline := time.After(30 * time.Second)
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for socket := args[5]; ; {
		if _, err := os.Stat(socket); err == nil {
			break
		}
		select {
		case err := <-ended:
			t.Fatalf("the driver ended: %v\n%s", err, &log)
		case <-deadline:
			t.Fatalf("the driver does not listen at %s", socket)
		case <-tick.C:
		}
	}
	return func() {
		must(t, driver.Process.Signal(syscall.SIGTERM))
		select {
		case err := <-ended:
			if err != nil || t.Failed() {
				t.Errorf("the driver ended with %v; its log:\n%s", err, &log)
			}
		case <-time.After(30 * time.Second):
			t.Error("the driver does not end", driver.Process.Kill())
		}
	}
}

func command(t *testing.T, name string, args ...string) {
	t.Helper()
	if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		t.Fatalf("%s: %v: %s", name, err, out)
	}
}

func must(t *testing.T, errs ...error) {
	t.Helper()
	for _, err := range errs {
		if err != nil {
			t.Fatal(err)
		}
	}
}
