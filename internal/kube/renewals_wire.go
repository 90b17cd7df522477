package kube

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

// A watch in protobuf is a sequence of frames: length (4 bytes, big endian), then a WatchEvent. The object in it is
// what every stored or sent Kubernetes object is: four magic bytes, then an Unknown with the type and the bytes of the
// object. Field numbers are those of apimachinery's and api's generated.proto, which the API's compatibility promise
// freezes:
//
//	WatchEvent    { 1: type string; 2: RawExtension object }
//	RawExtension  { 1: raw bytes }
//	"k8s\x00" Unknown { 1: TypeMeta; 2: raw bytes }
//	Lease         { 1: ObjectMeta metadata; 2: LeaseSpec spec }
//	ObjectMeta    { 1: name string; 6: resourceVersion string }
//	LeaseSpec     { 4: MicroTime renewTime }
//	MicroTime     { 1: seconds int64; 2: nanos int32 }
const (
	frameHead = 4
	// frameMax bounds a frame. A lease is well below 2 KiB, and etcd's limit for any object is 1.5 MiB. A longer frame
	// means that the stream is not the expected protobuf.
	frameMax = 4 << 20
)

var objectMagic = []byte("k8s\x00")

// leaseEvent is one event of a watch of leases. A bookmark has no name.
type leaseEvent struct {
	name, version string
	renewed       unit.Wall
	gone          bool
}

// readFrame reads one frame, into buffer if it is large enough. An end between frames is io.EOF.
func readFrame(r *bufio.Reader, buffer []byte) ([]byte, error) {
	var head [frameHead]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return buffer, err
	}
	n := binary.BigEndian.Uint32(head[:])
	if n > frameMax {
		return buffer, fmt.Errorf("watch node leases: frame of %d bytes: at most %d, or the stream is not protobuf", n,
			frameMax)
	}
	if uint32(cap(buffer)) < n {
		buffer = make([]byte, n)
	}
	buffer = buffer[:n]
	if _, err := io.ReadFull(r, buffer); err != nil {
		return buffer, fmt.Errorf("watch node leases: frame of %d bytes: %w", n, io.ErrUnexpectedEOF)
	}
	return buffer, nil
}

// parseRenewal reads a WatchEvent of a Lease.
func parseRenewal(frame []byte) (leaseEvent, error) {
	var kind string
	var object []byte
	err := eachField(frame, func(n protowire.Number, value []byte) {
		switch n {
		case 1:
			kind = string(value)
		case 2:
			// after an error the object is empty, which is reported below
			_ = eachField(value, func(n protowire.Number, value []byte) {
				if n == 1 {
					object = value
				}
			})
		}
	})
	if err == nil && (len(object) < len(objectMagic) || string(object[:len(objectMagic)]) != string(objectMagic)) {
		err = fmt.Errorf("object of %d bytes: does not begin with %q", len(object), objectMagic)
	}
	var raw []byte
	if err == nil {
		err = eachField(object[len(objectMagic):], func(n protowire.Number, value []byte) {
			if n == 2 {
				raw = value
			}
		})
	}
	if err != nil {
		return leaseEvent{}, fmt.Errorf("watch node leases: read event %q: %w", kind, err)
	}
	e := leaseEvent{gone: kind == "DELETED"}
	switch kind {
	case "ADDED", "MODIFIED", "DELETED", "BOOKMARK":
		err = e.parseLease(raw)
	case "ERROR":
		var status metav1.Status
		if err := status.Unmarshal(raw); err != nil {
			return leaseEvent{}, fmt.Errorf("watch node leases: read error of the server: %w", err)
		}
		return leaseEvent{}, errorOfWatch(status)
	default:
		err = fmt.Errorf("not a kind of event")
	}
	if err == nil && e.version == "" {
		err = fmt.Errorf("lease %q: no resourceVersion", e.name)
	}
	if err != nil {
		return leaseEvent{}, fmt.Errorf("watch node leases: read event %q: %w", kind, err)
	}
	if kind == "BOOKMARK" {
		e.name = ""
	}
	return e, nil
}

func (e *leaseEvent) parseLease(raw []byte) error {
	var broken error
	keep := func(err error) {
		if broken == nil {
			broken = err
		}
	}
	keep(eachField(raw, func(n protowire.Number, value []byte) {
		switch n {
		case 1:
			keep(eachField(value, func(n protowire.Number, value []byte) {
				switch n {
				case 1:
					e.name = string(value)
				case 6:
					e.version = string(value)
				}
			}))
		case 2:
			keep(eachField(value, func(n protowire.Number, value []byte) {
				if n == 4 {
					var err error
					e.renewed, err = parseTime(value)
					keep(err)
				}
			}))
		}
	}))
	return broken
}

// parseTime reads a MicroTime. Its fields are numbers, which eachField skips.
func parseTime(b []byte) (unit.Wall, error) {
	var seconds, nanos int64
	for len(b) > 0 {
		n, kind, size := protowire.ConsumeTag(b)
		if size < 0 {
			return 0, fmt.Errorf("time: %w", protowire.ParseError(size))
		}
		b = b[size:]
		if kind != protowire.VarintType {
			return 0, fmt.Errorf("time: field %d: not a number", n)
		}
		v, size := protowire.ConsumeVarint(b)
		if size < 0 {
			return 0, fmt.Errorf("time: field %d: %w", n, protowire.ParseError(size))
		}
		b = b[size:]
		switch n {
		case 1:
			seconds = int64(v)
		case 2:
			nanos = int64(int32(v))
		}
	}
	return unit.WallOf(time.Unix(seconds, nanos)), nil
}

// eachField calls do for every field of a message that contains bytes, and skips the others.
func eachField(b []byte, do func(protowire.Number, []byte)) error {
	for len(b) > 0 {
		n, kind, size := protowire.ConsumeTag(b)
		if size < 0 {
			return protowire.ParseError(size)
		}
		b = b[size:]
		if kind == protowire.BytesType {
			value, size := protowire.ConsumeBytes(b)
			if size < 0 {
				return fmt.Errorf("field %d: %w", n, protowire.ParseError(size))
			}
			do(n, value)
			b = b[size:]
			continue
		}
		size = protowire.ConsumeFieldValue(n, kind, b)
		if size < 0 {
			return fmt.Errorf("field %d: %w", n, protowire.ParseError(size))
		}
		b = b[size:]
	}
	return nil
}
