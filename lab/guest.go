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

// ErrCannot is in the chain of errors of a machine that cannot have a guest: a program is missing, or memory. A test should
// be skipped then.
var ErrCannot = errors.New("this machine cannot run a guest")

// The variants of a guest.
const (
	Tiny    = wire.InitTiny
	Systemd = wire.InitSystemd
)

// Options of a guest.
type Options struct {
	Init       wire.InitKind // Tiny, when empty
	Name       string        // host name; empty: that of the description
	KernelArgs []string      // more of the kernel's command line, like isolcpus=1
	Time       time.Time     // what its clock says at power on; zero: the host's
	Bin        string        // directory of the built binaries; empty: PLIMSOLL_BIN, else bin/ of the repository
	Cache      string        // directory of the images; empty: PLIMSOLL_LAB_CACHE, else the user's
	NoCargo    bool          // without our binaries and images
	FillMemory bool          // it is to fill its memory after it has run many programs
	Say        func(string)  // hears of the steps of an image's build

	Console io.Writer // also gets what the guest prints
	Stdin   io.Reader // typed on the console; then a shell runs there, and its end is the guest's
}

// bootTimeout bounds a boot (chosen: some 5 s on two idle cores, systemd 15 s; many times that where others work).
const bootTimeout = 5 * time.Minute

// bootHangs is when a boot of which /init has said nothing yet is begun anew the first time, and twice as long the next. Guests of eight CPUs on
// two cores were seen to spend all of them on their timers, for minutes, before init (QEMU 7.2; two in some forty boots, before kernelArgs
// had one CPU find the devices; none of 180 since). Shorter begins anew what is only slow: with nine guests at a time it takes half of this.
const bootHangs = time.Minute

// errHangs is the cause of the end of such a boot.
var errHangs = errors.New("it hangs in its boot")

// consoleKept is how much of a console is kept: several boots' worth.
const consoleKept = 256 << 10

// A Guest is a machine that runs in QEMU, or did and can again.
type Guest struct {
	Name string
	IP   string // of its network card; the host is at Host
	Host string // where the guest finds the host's loopback interface

	PodCIDR string // the addresses of its pods

	options Options
	board   board
	args    []string // of QEMU
	files   []*os.File
	console *tail
	memory  *memory
	process *process // nil: switched off
}

// booted tells guests of one process apart.
var booted atomic.Int32

// Start boots a machine. The error wraps ErrCannot where this one is to blame. Who starts a guest must Close it.
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
		Name: o.Name, IP: fmt.Sprintf("10.77.%d.15", number), Host: fmt.Sprintf("10.77.%d.2", number), PodCIDR: fmt.Sprintf("10.78.%d.0/24", number),
		options: o, board: b, console: &tail{max: consoleKept},
	}
	err = g.prepare(ctx)
	if err == nil {
		err = g.PowerOn(ctx)
	}
	if err != nil {
		console := g.ConsoleText()
		if console != "" {
			err = fmt.Errorf("%w\nits console said:\n%s", err, console[max(0, len(console)-consoleShown):])
		}
		return nil, errors.Join(fmt.Errorf("boot %s: %w", description, err), g.Close())
	}
	return g, nil
}

// prepare collects everything that QEMU needs.
func (g *Guest) prepare(ctx context.Context) error {
	if _, err := exec.LookPath(qemuProgram); err != nil || runtime.GOARCH != "amd64" {
		return fmt.Errorf("%w: no %s on %s: install qemu-system-x86", ErrCannot, qemuProgram, runtime.GOARCH)
	}
	if memory, err := procfs.Default.Memory(); err != nil {
		return err
	} else if free, known := memory.Available.Get(); known && free < g.board.installed()+memorySpare {
		return fmt.Errorf("%w: it has %v of memory available, the guest wants %v and QEMU some more", ErrCannot, free, g.board.installed())
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
	accel, cpu := g.processor()
	g.args = append([]string{
		"-nodefaults", "-no-user-config", "-display", "none", "-no-reboot",
		"-machine", "q35", "-accel", accel, "-cpu", cpu,
		"-kernel", image.Kernel, "-initrd", ram,
		"-chardev", "stdio,id=console,signal=off,mux=on", "-serial", "chardev:console", "-mon", "chardev=monitor,mode=control",
		"-device", "virtio-serial-pci", "-device", "virtserialport,chardev=channel,name=" + wire.Port,
		"-netdev", fmt.Sprintf("user,id=%s,ipv6=off,net=%s/24,host=%s,dhcpstart=%s", network, subnet(g.Host), g.Host, g.IP),
		"-device", "virtio-net-pci,romfile=,netdev=" + network,
	}, g.board.qemu()...)
	if !g.options.Time.IsZero() {
		g.args = append(g.args, "-rtc", "base="+g.options.Time.UTC().Format("2006-01-02T15:04:05"))
	}
	if err := g.configure(); err != nil {
		return err
	}
	if err := g.plugDisks(ctx, s, image, bin); err != nil {
		return err
	}
	// What a kernel keeps for itself depends on it, on its arguments, and on what QEMU tells it.
	args := slices.Concat([]string{image.Dir, ram, cpu}, g.board.qemu(), g.kernelArgs())
	g.memory, err = openMemory(s, g.board, digest(args...))
	return err
}

// translations is how much translated code QEMU keeps, before it forgets all of it, in a guest that is to fill its memory. Its default of
// 1 GiB is hardly ever full: then each store to a page that once held code has it look through all that is kept of that page, until the
// last is overwritten, and in a guest that had run many programs filling 540 MiB took over three minutes (29 s with this). 128 MiB costs
// starts of programs a third more.
const translations = 256 * unit.MiB

// processor is what QEMU emulates, and how: all that Debian's kernel and Go want of an amd64. One that is to fill its memory says that it has
// no fast string instructions (erms, fsrm): told so, Linux and libc clear and copy memory a byte at a time by them, and QEMU
// emulates each as one store; without, it is eight bytes at a time.
func (g *Guest) processor() (accel, cpu string) {
	accel, cpu = "tcg,thread=multi", "Skylake-Server"
	if g.options.FillMemory {
		accel, cpu = fmt.Sprintf("%s,tb-size=%d", accel, int64(translations/unit.MiB)), cpu+",-erms,-fsrm"
	}
	return accel, cpu
}

// memorySpare is what must be left beside a guest's memory (chosen: QEMU itself takes some 200 MiB, and its translations).
const memorySpare = 512 * unit.MiB

// network is QEMU's name of the guest's network.
const network = "net0"

func subnet(address string) string { return address[:strings.LastIndex(address, ".")] + ".0" }

// kernelArgs is the kernel's command line.
func (g *Guest) kernelArgs() []string {
	args := []string{
		"console=ttyS0", "loglevel=5", "rdinit=/init", "net.ifnames=0",
		"panic=-1", // reboot at once, which QEMU is told not to do: the guest has ended
		"psi=1", "mitigations=off",
		// QEMU 7.2 may crash when the kernel gives devices their places while other CPUs run: the CPU that does changes the table in
		// which the others look (likely in softmmu/physmem.c, tcg_commit; since 8.2 each changes its own). One of 37 boots
		// of eight CPUs died so, none of 180 since one CPU finds the devices and the guest starts the others then.
		"maxcpus=1",
		"nokaslr",      // a kernel at a random place leaves other amounts of memory to the nodes
		"tsc=reliable", // the emulated counter never drifts; without this the kernel distrusts it and clocks become slow
		"systemd.unified_cgroup_hierarchy=1", "systemd.show_status=0",
	}
	if text, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		if khz := counterRate(string(text)); khz > 0 {
			// Else the kernel measures it against an emulated timer, and when QEMU does not get a CPU meanwhile, the guest's
			// clocks run several times too fast.
			args = append(args, fmt.Sprintf("tsc_early_khz=%d", khz))
		}
	}
	return append(append(args, g.board.kernel()...), g.options.KernelArgs...)
}

// counterRate returns the rate of the host's time stamp counter, which is the guest's too, in kHz; 0 when it is not known.
// /proc/cpuinfo has it as bogomips, which is the rate by 500 (arch/x86/kernel/tsc.c, tsc_init: loops_per_jiffy).
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

// configure hands the guest its configuration, as a file without a name.
func (g *Guest) configure() error {
	text, err := json.Marshal(wire.Config{
		Hostname: g.Name, MachineID: digest("machine", g.Name, g.IP), Init: g.options.Init, Console: g.options.Stdin != nil,
		Address: g.IP + "/24", Gateway: g.Host, PIDs: g.board.pids, CNI: cniConfig(g.PodCIDR),
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

// inherit gives QEMU a file and returns its path there.
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
		path, err := cargo(ctx, s, bin)
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

// plug adds a disk. QEMU need not flush: what it has written outlives it in the host's memory, and nobody pulls the
// host's cord.
func (g *Guest) plug(d disk) {
	mode := "cache=unsafe,discard=unmap,detect-zeroes=unmap"
	if d.readOnly {
		mode = "readonly=on"
	}
	g.args = append(g.args, "-drive", fmt.Sprintf("if=none,format=raw,id=%s,file=%s,%s", d.serial, g.inherit(d.file), mode),
		"-device", fmt.Sprintf("virtio-blk-pci,drive=%s,serial=%s", d.serial, d.serial))
}

// findBin is the directory that `make build` fills.
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

// PowerOn boots a guest that is switched off, on the disks that it has.
func (g *Guest) PowerOn(ctx context.Context) error {
	if g.process != nil {
		return fmt.Errorf("power on %s: it runs", g.Name)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, bootTimeout, fmt.Errorf("not within %v", bootTimeout))
	defer cancel()
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

// boot runs l until a guest is up whose kernel does not hang, or ctx ends.
func boot(ctx context.Context, l launch) (*process, error) {
	hasMemory := l.hasMemory
	for patience := bootHangs; ; patience *= 2 {
		once, cancel := context.WithCancelCause(ctx)
		hangs := time.AfterFunc(patience, func() { cancel(errHangs) })
		l.hasMemory = func(has []int64) error { // the first that /init says
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

// Close switches the guest off and gives everything back.
func (g *Guest) Close() error {
	g.PowerOff()
	var problems []error
	for _, file := range g.files {
		problems = append(problems, file.Close())
	}
	g.files = nil
	return errors.Join(problems...)
}

// PowerOff pulls the cord: a crash, as the cluster sees it.
func (g *Guest) PowerOff() {
	if g.process != nil {
		g.process.kill()
		g.process = nil
	}
}

// Wait waits until the guest ends by itself, and returns why, in QEMU's words: guest-shutdown, guest-panic, host-qmp-quit
// and the like.
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

// Exec runs a command until it ends, or ctx does, which kills it. A command that does not end with status 0 makes an
// *ExitError.
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

// ConsoleText is the end of what the guest printed.
func (g *Guest) ConsoleText() string { return g.console.String() }

// Init is what process 1 of the guest is.
func (g *Guest) Init() wire.InitKind { return g.options.Init }
