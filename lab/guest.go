package lab

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/plimsoll-dev/plimsoll/internal/core/machine"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
	"github.com/plimsoll-dev/plimsoll/internal/host/procfs"
	"github.com/plimsoll-dev/plimsoll/lab/wire"
)

// ErrCannot is in the chain of errors of a host that cannot run a guest: a program or memory is missing. A test should
// then be skipped.
var ErrCannot = errors.New("this machine cannot run a guest")

// The variants of a guest.
const (
	Tiny    = wire.InitTiny
	Systemd = wire.InitSystemd
)

// Options of a guest.
type Options struct {
	Init       wire.InitKind // empty: Tiny
	Name       string        // host name; empty: that of the description
	KernelArgs []string      // further arguments of the kernel, like isolcpus=1
	Time       time.Time     // the guest's clock at power on; zero: the host's
	Bin        string        // directory of the built binaries; empty: PLIMSOLL_BIN, else bin/ of the repository
	Cache      string        // directory of the images; empty: PLIMSOLL_LAB_CACHE, else in the user's cache directory
	NoCargo    bool          // without our binaries and container images
	Cargo      []string      // further files of Bin that the guest gets, as plimsoll-controlplane
	Network    *Network      // connects it with other guests; nil: it reaches only the host
	FillMemory bool          // the guest will fill its memory after it has run many programs; see processor
	CPUThreads bool          // a thread for each CPU with every QEMU: faster, but the guest may hang; see threadsOf
	Say        func(string)  // called with each step when an image is built

	Console io.Writer // also gets the guest's console output
	Stdin   io.Reader // input of the console; a shell runs there, and the guest ends with it
}

// bootTimeout bounds a boot (chosen: a boot takes some 5 s on two idle cores, with systemd 15 s; this is many times
// that, for a busy host).
const bootTimeout = 5 * time.Minute

// bootHangs is after what time a boot is repeated the first time if /init has reported nothing; the time doubles with
// each repetition. Guests of eight CPUs on two cores spent minutes in their timers before init (QEMU 7.2; two of some
// forty boots, before kernelArgs made one CPU probe the devices; none of 180 since). A shorter time would repeat boots
// that are only slow: with nine guests at a time a boot takes half of it.
const bootHangs = time.Minute

// errHangs is the cause when a boot is cancelled because of bootHangs.
var errHangs = errors.New("the boot hangs")

// consoleKept is how much of a console is kept: enough for several boots.
const consoleKept = 256 << 10

// A Guest is a machine that runs in QEMU, or that has run and can run again.
type Guest struct {
	Name string
	IP   string // of its network card, also for guests of the same Network; the host is at Host
	Host string // the address at which the guest reaches the host's loopback interface

	PodCIDR string // the addresses of its pods

	number  int // no other guest of this process has it, but the 250th after it
	options Options
	board   board
	args    []string // of QEMU
	files   []*os.File
	console *tail
	memory  *memory
	process *process // nil: switched off
	port    *port    // nil: in no Network
}

// booted counts the guests of this process, so that each gets its own addresses.
var booted atomic.Int32

// Start boots a machine. The error wraps ErrCannot if this host cannot run it. The caller must Close the guest.
func Start(ctx context.Context, description string, o Options) (*Guest, error) {
	file, err := Describe(description)
	if err != nil {
		return nil, err
	}
	b, err := newBoard(file.Machine)
	if err != nil {
		return nil, fmt.Errorf("boot %s: %w", description, err)
	}
	if o.Init == "" {
		o.Init = Tiny
	}
	if o.Name == "" {
		o.Name = file.Name
	}
	number := int(booted.Add(1)) % 250
	g := &Guest{
		Name: o.Name, IP: fmt.Sprintf("10.77.%d.15", number), Host: fmt.Sprintf("10.77.%d.2",
			number), PodCIDR: fmt.Sprintf("10.78.%d.0/24", number),
		number: number, options: o, board: b, console: &tail{max: consoleKept},
	}
	err = g.prepare(ctx)
	if err == nil {
		err = g.PowerOn(ctx)
	}
	if err != nil {
		console := g.ConsoleText()
		if console != "" {
			err = fmt.Errorf("%w\nits console:\n%s", err, console[max(0, len(console)-consoleShown):])
		}
		return nil, errors.Join(fmt.Errorf("boot %s: %w", description, err), g.Close())
	}
	return g, nil
}

// prepare collects all arguments and files of QEMU.
func (g *Guest) prepare(ctx context.Context) error {
	if _, err := exec.LookPath(qemuProgram); err != nil || runtime.GOARCH != "amd64" {
		return fmt.Errorf("%w: no %s on %s: install qemu-system-x86", ErrCannot, qemuProgram, runtime.GOARCH)
	}
	if memory, err := procfs.Default.Memory(); err != nil {
		return err
	} else if free, known := memory.Available.Get(); known && free < g.board.installed()+memorySpare {
		return fmt.Errorf("%w: it has %v of memory available, the guest needs %v and QEMU some more", ErrCannot, free,
			g.board.installed())
	}
	bin, err := findBin(g.options.Bin)
	if err != nil {
		return err
	}
	say := g.options.Say
	if say == nil {
		say = func(string) {}
	}
	image, err := Build(ctx, g.options.Cache, say)
	if err != nil {
		return err
	}
	s, err := openStore(g.options.Cache)
	if err != nil {
		return err
	}
	ram, err := initRAM(s, image, filepath.Join(bin, guestProgram))
	if err != nil {
		return err
	}
	version, err := exec.CommandContext(ctx, qemuProgram, "--version").Output()
	if err != nil {
		return fmt.Errorf("%s --version: %w", qemuProgram, err)
	}
	threads, err := threadsOf(string(version))
	if err != nil {
		return err
	}
	if g.options.CPUThreads {
		threads = "multi"
	}
	accel, cpu := g.processor(threads)
	g.args = append([]string{
		"-nodefaults", "-no-user-config", "-display", "none", "-no-reboot",
		"-machine", "q35", "-accel", accel, "-cpu", cpu,
		"-kernel", image.Kernel, "-initrd", ram,
		"-chardev", "stdio,id=console,signal=off,mux=on", "-serial", "chardev:console", "-mon",
		"chardev=monitor,mode=control",
		"-device", "virtio-serial-pci", "-device", "virtserialport,chardev=channel,name=" + wire.Port,
		"-netdev", fmt.Sprintf("user,id=%s,ipv6=off,net=%s/24,host=%s,dhcpstart=%s", network, subnet(g.Host), g.Host, g.IP),
		"-device", "virtio-net-pci,romfile=,netdev=" + network,
	}, g.board.qemu()...)
	if err := g.plugNetwork(); err != nil {
		return err
	}
	if !g.options.Time.IsZero() {
		g.args = append(g.args, "-rtc", "base="+g.options.Time.UTC().Format("2006-01-02T15:04:05"))
	}
	if err := g.configure(); err != nil {
		return err
	}
	if err := g.plugDisks(ctx, s, image, bin); err != nil {
		return err
	}
	// How much memory a kernel uses itself depends on the kernel, its arguments, and what QEMU reports to it.
	args := slices.Concat([]string{image.Dir, ram, cpu}, g.board.qemu(), g.kernelArgs())
	if g.port != nil {
		args = append(args, peers)
	}
	g.memory, err = openMemory(s, g.board, digest(args...))
	return err
}

// translations is how much translated code QEMU keeps before it drops all of it, in a guest that will fill its memory.
// QEMU's default of 1 GiB is hardly ever reached. Then each store to a page that once contained code makes QEMU search
// all translations of that page, until the last is overwritten: in a guest that had run many programs, filling 540 MiB
// took over three minutes (29 s with this). With 128 MiB the start of programs takes a third longer.
const translations = 256 * unit.MiB

// threadsOf returns QEMU's word for how many threads emulate a guest's CPUs, from what --version says: multi is one for
// each. QEMU before 8.1 gets one for all. With several it may keep the translation of an instruction that another CPU
// overwrites meanwhile (mended by QEMU's commit cb62bd15e14e). Linux changes its own code through a breakpoint
// (text_poke_bp): the CPUs of a guest then ran into one that was no longer there, again and again, with interrupts off
// (seen in one of some hundred guests, QEMU 7.2). Options.CPUThreads is for a guest that one thread is too slow for:
// the deadlines of its programs pass while they start, and they start again.
func threadsOf(version string) (string, error) {
	var major, minor int
	if _, err := fmt.Sscanf(version, "QEMU emulator version %d.%d", &major, &minor); err != nil {
		return "", fmt.Errorf("%s --version says %q: %w, want QEMU emulator version MAJOR.MINOR", qemuProgram, version, err)
	}
	if major < 8 || major == 8 && minor < 1 {
		return "single", nil
	}
	return "multi", nil
}

// processor returns what QEMU emulates, and how: an amd64 with all that Debian's kernel and Go need. A guest that will
// fill its memory gets a CPU without fast string instructions (erms, fsrm): with them, Linux and libc clear and copy
// memory one byte at a time, and QEMU emulates each byte as one store; without them, it is eight bytes at a time.
func (g *Guest) processor(threads string) (accel, cpu string) {
	accel, cpu = "tcg,thread="+threads, "Skylake-Server"
	if g.options.FillMemory {
		accel, cpu = fmt.Sprintf("%s,tb-size=%d", accel, int64(translations/unit.MiB)), cpu+",-erms,-fsrm"
	}
	return accel, cpu
}

// memorySpare is how much host memory must be available in addition to a guest's (chosen: QEMU itself needs some 200
// MiB, plus its translations).
const memorySpare = 512 * unit.MiB

// QEMU's names of the guest's networks: the host's, and that of Options.Network.
const (
	network = "net0"
	peers   = "net1"
)

// peerBits makes the address of a guest one of a network that has the addresses of all guests.
const peerBits = "/16"

// plugNetwork connects the guest's second card with Options.Network, if it has one.
func (g *Guest) plugNetwork() error {
	if g.options.Network == nil {
		return nil
	}
	var err error
	if g.port, err = g.options.Network.plug(); err != nil {
		return err
	}
	g.args = append(g.args,
		"-netdev", fmt.Sprintf("socket,id=%s,fd=%d", peers, childFD(len(g.files))),
		"-device", fmt.Sprintf("virtio-net-pci,romfile=,netdev=%s,mac=52:54:00:77:00:%02x", peers, g.number))
	g.files = append(g.files, g.port.there)
	return nil
}

func subnet(address string) string { return address[:strings.LastIndex(address, ".")] + ".0" }

// kernelArgs returns the kernel's arguments.
func (g *Guest) kernelArgs() []string {
	args := []string{
		"console=ttyS0", "loglevel=5", "rdinit=/init", "net.ifnames=0",
		"panic=-1", // reboot at once, which ends QEMU (-no-reboot)
		"psi=1", "mitigations=off",
		// QEMU 7.2 may crash when the kernel assigns addresses to devices while other CPUs run: the CPU that does this
		// changes a table that the others read (suspected: tcg_commit in softmmu/physmem.c; since 8.2 each CPU changes
		// its own). One of 37 boots of eight CPUs crashed like this; none of 180 has since one CPU probes the devices
		// and the guest starts the others afterwards.
		"maxcpus=1",
		"nokaslr",      // a kernel at a random address leaves different amounts of memory to the nodes
		"tsc=reliable", // the emulated counter does not drift; without this the kernel distrusts it and clocks become slow
		"systemd.unified_cgroup_hierarchy=1", "systemd.show_status=0",
	}
	if text, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		if khz := counterRate(string(text)); khz > 0 {
			// Without this the kernel measures it against an emulated timer. If QEMU does not run meanwhile, the
			// guest's clocks then run several times too fast.
			args = append(args, fmt.Sprintf("tsc_early_khz=%d", khz))
		}
	}
	return append(append(args, g.board.kernel()...), g.options.KernelArgs...)
}

// counterRate returns the rate of the host's time stamp counter in kHz; 0 if it is not known. The guest's has the same
// rate. /proc/cpuinfo has it as bogomips, which is the rate divided by 500 (arch/x86/kernel/tsc.c, tsc_init:
// loops_per_jiffy).
func counterRate(cpuinfo string) int {
	for line := range strings.Lines(cpuinfo) {
		if name, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(name) == "bogomips" {
			if mips, err := strconv.ParseFloat(strings.TrimSpace(value), 64); err == nil && mips > 0 && mips < 1e5 {
				return int(mips * 500)
			}
		}
	}
	return 0
}

// configure passes the guest its configuration, in an unnamed file.
func (g *Guest) configure() error {
	var peer string
	if g.port != nil {
		peer = g.IP + peerBits
	}
	text, err := json.Marshal(wire.Config{
		Hostname: g.Name, MachineID: digest("machine", g.Name, g.IP), Init: g.options.Init, Console: g.options.Stdin != nil,
		Address: g.IP + "/24", Gateway: g.Host, Peer: peer, PIDs: g.board.pids,
		CNI: cniConfig(g.PodCIDR),
	})
	if err != nil {
		return err
	}
	file, err := memoryFile("configuration", text)
	if err != nil {
		return err
	}
	g.args = append(g.args, "-fw_cfg", "name="+wire.FWConfig+",file="+g.inherit(file))
	return nil
}

// inherit passes QEMU a file and returns the file's path there.
func (g *Guest) inherit(file *os.File) string {
	g.files = append(g.files, file)
	return childFile(len(g.files) - 1)
}

func (g *Guest) plugDisks(ctx context.Context, s store, image Image, bin string) error {
	root, err := openDisk(wire.DiskRoot, image.Root)
	if err != nil {
		return err
	}
	g.plug(root)
	if !g.options.NoCargo {
		path, err := cargo(ctx, s, bin, g.options.Cargo)
		if err != nil {
			return err
		}
		d, err := openDisk(wire.DiskCargo, path)
		if err != nil {
			return err
		}
		g.plug(d)
	}
	for _, fs := range []struct {
		serial string
		machine.Filesystem
	}{{wire.DiskNodeFS, g.board.nodeFS}, {wire.DiskImageFS, g.board.imageFS}} {
		if fs.Capacity == 0 {
			continue
		}
		d, err := newDisk(s.dir, fs.serial, fs.Capacity)
		if err != nil {
			return err
		}
		g.plug(d)
		if err := d.format(ctx, fs.Filesystem); err != nil {
			return err
		}
	}
	if g.board.swap == 0 {
		return nil
	}
	d, err := newSwap(s.dir, g.board.swap)
	if err != nil {
		return err
	}
	g.plug(d)
	return nil
}

// plug adds a disk. QEMU need not flush: what it has written survives QEMU in the host's memory, and the host itself
// does not lose power.
func (g *Guest) plug(d disk) {
	mode := "cache=unsafe,discard=unmap,detect-zeroes=unmap"
	if d.readOnly {
		mode = "readonly=on"
	}
	g.args = append(g.args, "-drive", fmt.Sprintf("if=none,format=raw,id=%s,file=%s,%s", d.serial, g.inherit(d.file),
		mode),
		"-device", fmt.Sprintf("virtio-blk-pci,drive=%s,serial=%s", d.serial, d.serial))
}

// findBin returns the directory of `make build`.
func findBin(dir string) (string, error) {
	if dir == "" {
		dir = os.Getenv("PLIMSOLL_BIN")
	}
	if dir == "" {
		root, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}").Output()
		if err != nil {
			return "", fmt.Errorf("find the repository: %w", err)
		}
		dir = filepath.Join(strings.TrimSpace(string(root)), "bin")
	}
	return filepath.Abs(dir)
}

// PowerOn boots a guest that is switched off, with its disks.
func (g *Guest) PowerOn(ctx context.Context) error {
	if g.process != nil {
		return fmt.Errorf("power on %s: it runs", g.Name)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, bootTimeout, fmt.Errorf("not within %v", bootTimeout))
	defer cancel()
	if g.port != nil {
		g.port.on.Store(true)
	}
	console := io.Writer(g.console)
	if g.options.Console != nil {
		console = io.MultiWriter(g.console, g.options.Console)
	}
	l := launch{files: g.files, console: console, stdin: g.options.Stdin, hasMemory: g.memory.judge}
	for range memoryTries {
		append := slices.Concat(g.kernelArgs(), g.board.withhold(g.memory.withheld))
		l.args = slices.Concat(g.args, []string{"-append", strings.Join(append, " ")})
		p, err := boot(ctx, l)
		switch {
		case err == nil:
			g.process = p
			return g.memory.keep()
		case !errors.Is(err, errOtherMemory):
			return err
		}
	}
	return fmt.Errorf("power on %s: after %d boots: %w", g.Name, memoryTries, errOtherMemory)
}

// boot runs l until a guest is up whose boot did not hang, or ctx ends.
func boot(ctx context.Context, l launch) (*process, error) {
	hasMemory := l.hasMemory
	for patience := bootHangs; ; patience *= 2 {
		once, cancel := context.WithCancelCause(ctx)
		hangs := time.AfterFunc(patience, func() { cancel(errHangs) })
		l.hasMemory = func(has []int64) error { // the first report of /init
			hangs.Stop()
			return hasMemory(has)
		}
		p, err := l.run(once)
		hangs.Stop()
		cancel(nil)
		if err == nil || ctx.Err() != nil || !errors.Is(context.Cause(once), errHangs) {
			return p, err
		}
	}
}

// Close switches the guest off and frees its resources.
func (g *Guest) Close() error {
	g.PowerOff()
	var problems []error
	if g.port != nil {
		problems = append(problems, g.port.unplug())
		g.port = nil
	}
	for _, file := range g.files {
		problems = append(problems, file.Close())
	}
	g.files = nil
	return errors.Join(problems...)
}

// PowerOff switches the guest off at once: for the cluster it has crashed.
func (g *Guest) PowerOff() {
	if g.port != nil {
		g.port.on.Store(false)
	}
	if g.process != nil {
		g.process.kill()
		g.process = nil
	}
}

// Wait waits until the guest ends by itself, and returns why, in QEMU's words: guest-shutdown, guest-panic,
// host-qmp-quit and so on.
func (g *Guest) Wait(ctx context.Context) (string, error) {
	if g.process == nil {
		return "", fmt.Errorf("wait for the end of %s: it is switched off", g.Name)
	}
	select {
	case <-g.process.ended:
		return g.process.endReason(), g.process.complaint()
	case <-ctx.Done():
		return "", fmt.Errorf("wait for the end of %s: %w", g.Name, context.Cause(ctx))
	}
}

// Exec runs a command until it ends; the command is killed when ctx ends. The error of a command with another status
// than 0 is an *ExitError.
func (g *Guest) Exec(ctx context.Context, c Command) error {
	if g.process == nil {
		return fmt.Errorf("run in the guest: %s: %s is switched off", strings.Join(c.Args, " "), g.Name)
	}
	return g.process.channel.exec(ctx, c)
}

// Output runs a command and returns what it prints.
func (g *Guest) Output(ctx context.Context, args ...string) (string, error) {
	var out strings.Builder
	err := g.Exec(ctx, Command{Args: args, Stdout: &out})
	return out.String(), err
}

// ConsoleText returns the end of the guest's console output.
func (g *Guest) ConsoleText() string { return g.console.String() }

// Init returns the kind of the guest's process 1.
func (g *Guest) Init() wire.InitKind { return g.options.Init }
