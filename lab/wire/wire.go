// Package wire is the protocol between the lab and its guests: how a guest gets its configuration, and how the host
// runs commands in it. Package lab, on the host, and the guest's own program share it.
//
// # Model
//
// Before boot the host writes one Config, which the firmware passes to the guest (fw_cfg). From then on the two share
// one byte stream, a virtio serial port, which network faults do not affect. The guest begins it with Stages, one JSON
// object per line: first its memory, last Ready or Failed. After Ready the stream is HTTP/2 without TLS, with the guest
// as the server: any number of commands at once, each with its own flow control.
//
// A command is a POST to PathExec. Its body is one line of JSON, an Exec, and then the command's standard input. The
// answer's body is Frames: pieces of its two outputs in order, and last an Exit. When the host closes the request, the
// command is killed.
//
// # What it does not do
//
// It opens nothing and starts nothing. It is not compatible between versions: both ends are built from one source tree.
package wire

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

// Names that both ends use.
const (
	Port      = "plimsoll.lab"                    // of the virtio serial port
	FWConfig  = "opt/plimsoll-lab"                // of the Config in the firmware's configuration
	PathExec  = "/exec"                           // the path of requests that run a command
	Dir       = "/run/plimsoll-lab"               // directory of the guest's own program
	Program   = Dir + "/guest"                    // the guest's program
	CargoDir  = "/opt/plimsoll"                   // where the cargo is mounted
	Runtime   = "/run/containerd/containerd.sock" // containerd's socket
	CNIConfig = "/etc/cni/net.d/10-lab.conflist"
	PathValue = CargoDir + ":/usr/sbin:/usr/bin:/sbin:/bin" // the PATH of commands
)

// Serial numbers of disks. The guest identifies disks by them, since the order of devices on a bus is not defined.
const (
	DiskRoot    = "root"    // the image, read-only
	DiskCargo   = "cargo"   // our binaries and images, read-only
	DiskNodeFS  = "nodefs"  // everything that the guest writes
	DiskImageFS = "imagefs" // the runtime's directory, if the machine has this disk
	DiskSwap    = "swap"
)

// InitKind is which program is process 1 of a guest.
type InitKind string

// The variants of a guest.
const (
	InitTiny    InitKind = "tiny"    // our own: mounts, a network, and no other processes
	InitSystemd InitKind = "systemd" // Debian's systemd, with its slices and its cgroup tree
)

// Config is the configuration of a guest.
type Config struct {
	Hostname  string
	MachineID string // /etc/machine-id: the same at each boot of a guest
	Init      InitKind
	Console   bool   // run a shell on the console; the guest ends with it
	Address   string // of its network card, in CIDR form
	Gateway   string // the host, as seen from the guest
	Peer      string // address of its second card, which reaches other guests, in CIDR form; empty: it has none
	CNI       string // the network of its pods: a CNI configuration list
	PIDs      int64  // the greatest number of processes and threads; 0: the kernel's default
}

// A Stage reports the progress of a guest's boot.
type Stage struct {
	Memory []int64 `json:",omitempty"` // what the kernel can use of each NUMA node, in bytes
	Ready  bool    `json:",omitempty"`
	Failed string  `json:",omitempty"` // why the boot cannot continue
}

// Exec is a command to run.
type Exec struct {
	Args []string
	Env  []string `json:",omitempty"` // NAME=value, in addition to the guest's own
	Dir  string   `json:",omitempty"` // empty: /
}

// Exit is how a command ended.
type Exit struct {
	Code   int
	Signal int    `json:",omitempty"` // the signal that killed it; Code is then 128 + Signal, as in a shell
	Error  string `json:",omitempty"` // why it could not be started
}

// Kind says what a frame contains.
type Kind byte

// The kinds of frames.
const (
	Stdout Kind = 1
	Stderr Kind = 2
	Ended  Kind = 3 // an Exit, in JSON; the last frame
)

// frameMax is the greatest size of a frame's data in bytes (chosen: what io.Copy reads at once). A longer frame means
// that the stream is broken.
const frameMax = 32 << 10

// WriteFrame writes data as one frame, or as several if it does not fit in one.
func WriteFrame(w io.Writer, kind Kind, data []byte) error {
	for {
		part := data[:min(len(data), frameMax)]
		frame := append(binary.BigEndian.AppendUint32([]byte{byte(kind)}, uint32(len(part))), part...)
		if _, err := w.Write(frame); err != nil {
			return err
		}
		if data = data[len(part):]; len(data) == 0 {
			return nil
		}
	}
}

// ReadFrames passes on the pieces of both outputs until the Exit. If an output is nil, it is read and dropped.
func ReadFrames(r io.Reader, stdout, stderr io.Writer) (Exit, error) {
	var exit Exit
	var head [5]byte
	data := make([]byte, frameMax)
	for {
		if _, err := io.ReadFull(r, head[:]); err != nil {
			return exit, fmt.Errorf("read frame: %w", noEOF(err))
		}
		size := binary.BigEndian.Uint32(head[1:])
		if size > frameMax {
			return exit, fmt.Errorf("read frame: %d bytes: want %d at most", size, frameMax)
		}
		if _, err := io.ReadFull(r, data[:size]); err != nil {
			return exit, fmt.Errorf("read frame: %w", noEOF(err))
		}
		out := io.Writer(nil)
		switch kind := Kind(head[0]); kind {
		case Stdout:
			out = stdout
		case Stderr:
			out = stderr
		case Ended:
			if err := json.Unmarshal(data[:size], &exit); err != nil {
				return exit, fmt.Errorf("read exit: %.80q: %w", data[:size], err)
			}
			return exit, nil
		default:
			return exit, fmt.Errorf("read frame: kind %d: want 1 to 3", kind)
		}
		if out != nil {
			if _, err := out.Write(data[:size]); err != nil {
				return exit, err
			}
		}
	}
}

// noEOF converts an end of the stream before the Exit to an error.
func noEOF(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}
