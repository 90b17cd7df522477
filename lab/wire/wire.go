// Package wire is what the lab and its guests say to each other: how a guest is told what it shall be, and how the host
// runs commands in it. It is shared by package lab, on the host, and by the guest's own program.
//
// # Model
//
// Before boot the host lays down one Config, which the firmware hands to the guest (fw_cfg). From then on the two share one
// byte stream, a virtio serial port, which no network fault touches. The guest begins it with Stages, one JSON object
// per line: first what memory it has, last Ready or Failed. After Ready the stream is HTTP/2 without TLS, the guest being the server: any
// number of commands at once, each with flow control of its own.
//
// A command is a POST to PathExec. Its body is one line of JSON, an Exec, and then the command's standard input. The
// answer's body is Frames: pieces of its two outputs in order, and last an Exit. Who hangs up kills the command.
//
// # What it does not do
//
// It opens nothing and starts nothing, and it keeps no compatibility: both ends are built from one source tree.
package wire

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

// Names that both ends know.
const (
	Port      = "plimsoll.lab"                    // of the virtio serial port
	FWConfig  = "opt/plimsoll-lab"                // of the Config in the firmware's configuration
	PathExec  = "/exec"                           // of requests that run a command
	Dir       = "/run/plimsoll-lab"               // where the guest keeps its own program
	Program   = Dir + "/guest"                    // the guest's program
	CargoDir  = "/opt/plimsoll"                   // where the cargo is mounted
	Runtime   = "/run/containerd/containerd.sock" // containerd's socket
	CNIConfig = "/etc/cni/net.d/10-lab.conflist"
	PathValue = CargoDir + ":/usr/sbin:/usr/bin:/sbin:/bin" // the PATH of commands
)

// Serial numbers of disks, by which the guest tells them apart: the order of a bus is nobody's promise.
const (
	DiskRoot    = "root"    // the image, read-only
	DiskCargo   = "cargo"   // what was brought along, read-only
	DiskNodeFS  = "nodefs"  // everything that is written
	DiskImageFS = "imagefs" // the runtime's own, where the machine has one
	DiskSwap    = "swap"
)

// InitKind is which program is process 1 of a guest.
type InitKind string

// The variants of a guest.
const (
	InitTiny    InitKind = "tiny"    // our own: mounts, a network, and nothing that runs beside the test
	InitSystemd InitKind = "systemd" // Debian's systemd, with its slices and its cgroup tree
)

// Config tells a guest what it shall be.
type Config struct {
	Hostname  string
	MachineID string // /etc/machine-id: stable over boots of one guest
	Init      InitKind
	Console   bool   // a shell on the console, whose end is the guest's
	Address   string // of its network card, in CIDR form
	Gateway   string // the host, seen from the guest
	CNI       string // the network of its pods: a CNI configuration list
	PIDs      int64  // the most processes and threads at once; 0: as the kernel likes
}

// A Stage is where a guest has come to.
type Stage struct {
	Memory []int64 `json:",omitempty"` // of each NUMA node, what the kernel can use, in bytes
	Ready  bool    `json:",omitempty"`
	Failed string  `json:",omitempty"` // why it can go no further
}

// Exec is a command to run.
type Exec struct {
	Args []string
	Env  []string `json:",omitempty"` // NAME=value, laid over the guest's own
	Dir  string   `json:",omitempty"` // empty: /
}

// Exit is how a command ended.
type Exit struct {
	Code   int
	Signal int    `json:",omitempty"` // the signal that killed it; Code is then 128 more than it, as in a shell
	Error  string `json:",omitempty"` // why it could not be started
}

// Kind says what is in a frame.
type Kind byte

// The kinds of frames.
const (
	Stdout Kind = 1
	Stderr Kind = 2
	Ended  Kind = 3 // an Exit, in JSON; the last frame
)

// frameMax is the most bytes in a frame (chosen: what io.Copy reads at once). A longer one is a broken stream.
const frameMax = 32 << 10

// WriteFrame writes a frame, or several where data does not fit in one.
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

// ReadFrames hands the pieces of both outputs on until the Exit. An output that is nil is read and dropped.
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

// noEOF makes an end before the Exit the fault that it is.
func noEOF(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}
