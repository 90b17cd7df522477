package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/plimsoll-dev/plimsoll/lab/wire"
)

// Mount points in the initial RAM file system, while the new root is assembled.
const (
	lower   = "/lower" // the image
	data    = "/data"  // the nodefs disk
	newRoot = "/new"
)

// boot sets up the machine and becomes process 1 of its variant. It does not return: on an error it reports the error
// and powers off.
func boot() {
	err := assemble()
	fmt.Fprintln(os.Stderr, "guest: boot:", err)
	if port, openErr := openPort(); openErr == nil {
		report(port, wire.Stage{Failed: err.Error()})
		port.Close()
	}
	if err := powerOff(); err != nil {
		fmt.Fprintln(os.Stderr, "guest: power off:", err)
	}
	select {} // process 1 must not end
}

func assemble() error {
	if err := mountAll(early); err != nil {
		return err
	}
	if err := loadModules("/modules"); err != nil {
		return err
	}
	if err := startCPUs(); err != nil {
		return err
	}
	config, err := readConfig()
	if err != nil {
		return err
	}
	if err := reportMemory(); err != nil {
		return err
	}
	if err := assembleRoot(); err != nil {
		return err
	}
	if err := enterRoot(); err != nil {
		return err
	}
	if err := configure(config); err != nil {
		return err
	}
	env := []string{"PATH=" + wire.PathValue, "HOME=/root"}
	if config.Init == wire.InitSystemd {
		return fmt.Errorf("start systemd: %w", syscall.Exec("/sbin/init", []string{"/sbin/init"}, env))
	}
	if err := mountAll(late); err != nil {
		return err
	}
	return fmt.Errorf("start init: %w", syscall.Exec(wire.Program, []string{wire.Program, "init"}, env))
}

// A mounting is the arguments of mount(2).
type mounting struct {
	source, target, kind string
	flags                uintptr
	options              string
}

const quiet = unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC

// early is needed before anything else; late is what systemd would mount, for the tiny variant.
var (
	early = []mounting{
		{"proc", "/proc", "proc", quiet, ""},
		{"sysfs", "/sys", "sysfs", quiet, ""},
		{"devtmpfs", "/dev", "devtmpfs", unix.MS_NOSUID, "mode=0755"},
	}
	late = []mounting{
		{"devpts", "/dev/pts", "devpts", unix.MS_NOSUID | unix.MS_NOEXEC, "mode=0620,ptmxmode=0666"},
		{"tmpfs", "/dev/shm", "tmpfs", unix.MS_NOSUID | unix.MS_NODEV, "mode=1777"},
		{"mqueue", "/dev/mqueue", "mqueue", quiet, ""},
		{"hugetlbfs", "/dev/hugepages", "hugetlbfs", unix.MS_NOSUID | unix.MS_NODEV, ""},
		{"cgroup2", "/sys/fs/cgroup", "cgroup2", quiet, "nsdelegate,memory_recursiveprot"}, // systemd's options
	}
)

func mountAll(list []mounting) error {
	for _, m := range list {
		if err := m.mount(); err != nil {
			return err
		}
	}
	return nil
}

func (m mounting) mount() error {
	if err := os.MkdirAll(m.target, 0o755); err != nil {
		return err
	}
	if err := unix.Mount(m.source, m.target, m.kind, m.flags, m.options); err != nil {
		return fmt.Errorf("mount %s %s at %s, options %q: %w", m.kind, m.source, m.target, m.options, err)
	}
	return nil
}

// loadModules loads the drivers in the order of the list in their directory, and removes their files to free memory.
func loadModules(dir string) error {
	list, err := os.Open(filepath.Join(dir, "order"))
	if err != nil {
		return err
	}
	defer list.Close()
	lines := bufio.NewScanner(list)
	for lines.Scan() {
		if err := loadModule(filepath.Join(dir, lines.Text())); err != nil {
			return fmt.Errorf("load module %s: %w", lines.Text(), err)
		}
	}
	if err := lines.Err(); err != nil {
		return err
	}
	return os.RemoveAll(dir)
}

func loadModule(path string) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer file.Close()
	if err := unix.FinitModule(int(file.Fd()), "", 0); err != nil && !errors.Is(err, unix.EEXIST) {
		return err
	}
	return nil
}

// startCPUs starts all CPUs except the first, which alone ran until now (maxcpus=1, package lab).
func startCPUs() error {
	for n := 1; ; n++ {
		err := os.WriteFile(fmt.Sprintf("/sys/devices/system/cpu/cpu%d/online", n), []byte("1"), 0)
		if errors.Is(err, os.ErrNotExist) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("start CPU %d: %w", n, err)
		}
	}
}

func readConfig() (config wire.Config, err error) {
	text, err := os.ReadFile("/sys/firmware/qemu_fw_cfg/by_name/" + wire.FWConfig + "/raw")
	if err != nil {
		return config, fmt.Errorf("read configuration: %w", err)
	}
	if err := json.Unmarshal(text, &config); err != nil {
		return config, fmt.Errorf("read configuration: %.200q: %w", text, err)
	}
	return config, nil
}

// reportMemory reports to the host how much memory the kernel can use.
func reportMemory() error {
	var stage wire.Stage
	for node := 0; ; node++ {
		text, err := os.ReadFile(fmt.Sprintf("/sys/devices/system/node/node%d/meminfo", node))
		if errors.Is(err, os.ErrNotExist) {
			break
		}
		if err != nil {
			return err
		}
		var number, kib int64
		if _, err := fmt.Sscanf(strings.TrimSpace(string(text)), "Node %d MemTotal: %d kB", &number, &kib); err != nil {
			return fmt.Errorf("read memory of node %d: %.80q: %w", node, text, err)
		}
		stage.Memory = append(stage.Memory, kib<<10)
	}
	port, err := openPort()
	if err != nil {
		return err
	}
	report(port, stage)
	return port.Close()
}

// disks returns the devices of disks by serial number.
func disks() (map[string]string, error) {
	paths, err := filepath.Glob("/sys/block/*/serial")
	if err != nil {
		return nil, err
	}
	found := map[string]string{}
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		found[strings.TrimSpace(string(text))] = "/dev/" + filepath.Base(filepath.Dir(path))
	}
	return found, nil
}

// assembleRoot mounts the nodefs disk as an overlay over the image. /var/lib is a directory of the disk itself, because
// containerd cannot put an overlay on an overlay. minixdf makes statfs(2) count every block of a file system, including
// ext4's own (ext4(5)), so that a disk of 4 GiB is a file system of 4 GiB.
func assembleRoot() error {
	disk, err := disks()
	if err != nil {
		return err
	}
	const writable = "minixdf,noinit_itable"
	if err := mountAll([]mounting{
		{disk[wire.DiskRoot], lower, "ext4", unix.MS_RDONLY, "noload"},
		{disk[wire.DiskNodeFS], data, "ext4", 0, writable},
	}); err != nil {
		return err
	}
	for _, dir := range []string{"/root", "/work", "/lib"} {
		if err := os.MkdirAll(data+dir, 0o755); err != nil {
			return err
		}
	}
	list := []mounting{
		{"overlay", newRoot, "overlay", 0, "lowerdir=" + lower + ",upperdir=" + data + "/root,workdir=" + data + "/work"},
		{data + "/lib", newRoot + "/var/lib", "", unix.MS_BIND, ""},
		{"tmpfs", newRoot + "/run", "tmpfs", unix.MS_NOSUID | unix.MS_NODEV, "mode=0755"},
	}
	if dev, ok := disk[wire.DiskImageFS]; ok {
		list = append(list, mounting{source: dev, target: newRoot + "/var/lib/containerd", kind: "ext4", options: writable})
	}
	if dev, ok := disk[wire.DiskCargo]; ok {
		list = append(list, mounting{source: dev, target: newRoot + wire.CargoDir, kind: "ext4", flags: unix.MS_RDONLY,
			options: "noload"})
	}
	if err := mountAll(list); err != nil {
		return err
	}
	if dev, ok := disk[wire.DiskSwap]; ok {
		return swapOn(dev)
	}
	return nil
}

func swapOn(device string) error {
	path, err := unix.BytePtrFromString(device)
	if err != nil {
		return err
	}
	if _, _, errno := unix.Syscall(unix.SYS_SWAPON, uintptr(unsafe.Pointer(path)), 0, 0); errno != 0 {
		return fmt.Errorf("swap on %s: %w", device, errno)
	}
	return nil
}

// enterRoot copies this program to the new root, moves the early mounts there, and makes it the root (switch_root(8)).
func enterRoot() error {
	if err := copyFile("/init", newRoot+wire.Program, 0o755); err != nil {
		return err
	}
	if err := os.Remove("/init"); err != nil { // it uses the machine's memory
		return err
	}
	for _, m := range early {
		if err := unix.Mount(m.target, newRoot+m.target, "", unix.MS_MOVE, ""); err != nil {
			return fmt.Errorf("move %s: %w", m.target, err)
		}
	}
	if err := os.Chdir(newRoot); err != nil {
		return err
	}
	if err := unix.Mount(".", "/", "", unix.MS_MOVE, ""); err != nil {
		return fmt.Errorf("move the root: %w", err)
	}
	if err := unix.Chroot("."); err != nil {
		return fmt.Errorf("enter the root: %w", err)
	}
	if err := os.Chdir("/"); err != nil {
		return err
	}
	// Mounts are shared, as under systemd: containers' volumes depend on that.
	return unix.Mount("", "/", "", unix.MS_SHARED|unix.MS_REC, "")
}

func copyFile(from, to string, mode os.FileMode) error {
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return err
	}
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, mode)
	if err != nil {
		return err
	}
	if _, err := io.Copy(out, in); err != nil {
		out.Close()
		return err
	}
	return out.Close()
}

// configure sets the machine's name, id and network.
func configure(config wire.Config) error {
	if err := unix.Sethostname([]byte(config.Hostname)); err != nil {
		return fmt.Errorf("set host name %s: %w", config.Hostname, err)
	}
	files := map[string]string{
		"/etc/hostname":    config.Hostname + "\n",
		"/etc/machine-id":  config.MachineID + "\n",
		"/etc/hosts":       "127.0.0.1\tlocalhost\n::1\tlocalhost\n",
		"/etc/resolv.conf": "# There is no name server: the lab has no network but the host.\n",
	}
	if config.CNI != "" {
		files[wire.CNIConfig] = config.CNI
	}
	if config.Console {
		files[consoleWanted] = ""
	}
	for path, text := range files {
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			return err
		}
	}
	if config.PIDs > 0 {
		for _, name := range []string{"pid_max", "threads-max"} {
			if err := os.WriteFile("/proc/sys/kernel/"+name, fmt.Append(nil, config.PIDs), 0); err != nil {
				return err
			}
		}
	}
	return configureNetwork(config)
}
