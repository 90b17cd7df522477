package cri

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// The answer to ExecSync contains all of a command's output: up to 16 MiB of each of the two outputs, as the command's
// author chooses. gRPC stores a whole message three times before the receiver gets any of it. A node with a hundred
// pods that are probed by commands would need gigabytes of memory to read exit codes. So the answer to this one call is
// read while it arrives, by the standard library's HTTP/2, and output that is not needed is discarded at once. For the
// runtime, and for interceptors, it is a gRPC call like any other.

const (
	// streamBuffer is how many bytes of an answer the runtime may send before they are read (chosen: HTTP/2's initial
	// window).
	streamBuffer = 64 << 10

	// idleLife is how long an unused connection for commands stays open (chosen: longer than the usual periods of
	// probes).
	idleLife = 90 * time.Second
)

// outputOption is a call's own bound on how much of a command's output is kept.
type outputOption struct {
	grpc.EmptyCallOption
	bytes int
}

// KeepOutput makes ExecSync keep at most that many bytes of each of the command's two outputs: zero if only the exit
// code is needed. Without it everything that the runtime sends is kept.
func KeepOutput(bytes int) grpc.CallOption { return outputOption{bytes: bytes} }

// KeptOutput returns how many bytes of each output ExecSync keeps with these options.
func KeptOutput(options []grpc.CallOption) int {
	kept := messageMax
	for _, o := range options {
		if output, ok := o.(outputOption); ok {
			kept = output.bytes
		}
	}
	return kept
}

// execSync returns the interceptor that makes ExecSync calls to the socket at path, and its transport.
func execSync(path string) (grpc.UnaryClientInterceptor, *http.Transport) {
	protocols := new(http.Protocols)
	protocols.SetUnencryptedHTTP2(true)
	transport := &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", path)
		},
		Protocols:          protocols,
		DisableCompression: true,
		IdleConnTimeout:    idleLife,
		HTTP2:              &http.HTTP2Config{MaxReceiveBufferPerStream: streamBuffer},
	}
	return func(ctx context.Context, method string, in, out any, conn *grpc.ClientConn, invoke grpc.UnaryInvoker,
		options ...grpc.CallOption) error {
		response, ok := out.(*runtimeapi.ExecSyncResponse)
		if !ok {
			return invoke(ctx, method, in, out, conn, options...)
		}
		err := call(ctx, transport, method, in.(*runtimeapi.ExecSyncRequest), func(body io.Reader) error {
			return readExecSync(body, KeptOutput(options), response)
		})
		if err != nil && ctx.Err() != nil {
			return status.FromContextError(ctx.Err()).Err()
		}
		return err
	}, transport
}

// call makes one unary gRPC call (protocol: PROTOCOL-HTTP2.md of github.com/grpc/grpc), and read reads the answer.
// Errors are gRPC's. The deadline of ctx is not sent to the runtime. The runtime ends the command at the timeout in the
// request, and the call when the client ends it.
func call(ctx context.Context, transport *http.Transport, method string, in proto.Message,
	read func(io.Reader) error) error {
	message, err := proto.MarshalOptions{}.MarshalAppend(make([]byte, prefixLen), in)
	if err != nil {
		return status.Error(codes.Internal, err.Error())
	}
	binary.BigEndian.PutUint32(message[1:], uint32(len(message)-prefixLen))
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://localhost"+method, bytes.NewReader(message))
	if err != nil {
		return status.Error(codes.Internal, err.Error())
	}
	request.Header = http.Header{"Content-Type": {"application/grpc"}, "Te": {"trailers"}, "User-Agent": {"plimsoll"}}
	answer, err := transport.RoundTrip(request)
	if err != nil {
		return status.Errorf(codes.Unavailable, "connection error: %v", err)
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return status.Errorf(codes.Unavailable, "the runtime answers with HTTP status %s", answer.Status)
	}
	if answer.Header.Get("Grpc-Status") != "" { // refused: there are no trailers
		return verdict(answer.Header)
	}
	unread := readMessage(answer.Body, read)
	if _, err := io.Copy(io.Discard, answer.Body); err != nil { // the trailers follow it
		return status.Errorf(codes.Unavailable, "the connection ends within the answer: %v", err)
	}
	if err := verdict(answer.Trailer); err != nil {
		return err
	}
	return unread
}

// prefixLen is the length in bytes of a message's prefix: whether the message is compressed, and its length.
const prefixLen = 5

// readMessage lets read read the one message of an answer.
func readMessage(body io.Reader, read func(io.Reader) error) error {
	var prefix [prefixLen]byte
	if _, err := io.ReadFull(body, prefix[:]); err != nil {
		return status.Errorf(codes.Internal, "the answer has no message: %v", err)
	}
	length := binary.BigEndian.Uint32(prefix[1:])
	if prefix[0] != 0 {
		return status.Error(codes.Internal, "the answer is compressed, although the request did not allow it")
	}
	if length > messageMax {
		return status.Errorf(codes.ResourceExhausted, "received message larger than max (%d vs. %d)", length, messageMax)
	}
	if err := read(io.LimitReader(body, int64(length))); err != nil {
		return status.Errorf(codes.Internal, "read the answer: %v", err)
	}
	return nil
}

// verdict returns the outcome of the call by its trailers.
func verdict(trailers http.Header) error {
	text := trailers.Get("Grpc-Status")
	code, err := strconv.ParseUint(text, 10, 32)
	if err != nil {
		return status.Errorf(codes.Internal, "the answer has grpc-status %.20q: want a number", text)
	}
	message := trailers.Get("Grpc-Message")
	if plain, err := url.PathUnescape(message); err == nil {
		message = plain
	}
	return status.Error(codes.Code(code), message)
}

// The protocol buffer encoding of an ExecSyncResponse (k8s.io/cri-api, api.proto;
// protobuf.dev/programming-guides/encoding).
const (
	stdoutField = 1
	stderrField = 2
	exitField   = 3

	varint  = 0
	fixed64 = 1
	counted = 2 // preceded by its length in bytes
	fixed32 = 5
)

// readExecSync reads an ExecSyncResponse to its end and keeps at most kept bytes of each output.
func readExecSync(message io.Reader, kept int, out *runtimeapi.ExecSyncResponse) error {
	r := &wire{r: message}
	for {
		tag, err := binary.ReadUvarint(r)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return cut(err)
		}
		switch field, kind := tag>>3, tag&7; {
		case field == stdoutField && kind == counted:
			out.Stdout, err = r.output(kept)
		case field == stderrField && kind == counted:
			out.Stderr, err = r.output(kept)
		case field == exitField && kind == varint:
			var code uint64
			code, err = binary.ReadUvarint(r)
			out.ExitCode = int32(code)
		default:
			err = r.skip(kind)
		}
		if err != nil {
			return cut(err)
		}
	}
}

// cut returns err, or ErrUnexpectedEOF if the message ended too early.
func cut(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// wire reads the message. It reads single bytes outside of the outputs, where there are few.
type wire struct {
	r    io.Reader
	byte [1]byte
}

func (w *wire) ReadByte() (byte, error) {
	_, err := io.ReadFull(w.r, w.byte[:])
	return w.byte[0], err
}

// output reads a length-prefixed field and keeps its beginning.
func (w *wire) output(kept int) ([]byte, error) {
	length, err := w.length()
	if err != nil || length == 0 {
		return nil, err
	}
	var text []byte
	if want := min(length, int64(kept)); want > 0 {
		var buffer bytes.Buffer // grows with the bytes that arrive, not with the announced length
		if _, err := io.CopyN(&buffer, w.r, want); err != nil {
			return nil, err
		}
		text, length = buffer.Bytes(), length-want
	}
	_, err = io.CopyN(io.Discard, w.r, length)
	return text, err
}

func (w *wire) length() (int64, error) {
	length, err := binary.ReadUvarint(w)
	if err == nil && length > messageMax {
		err = fmt.Errorf("a field of %d bytes: want at most %d", length, messageMax)
	}
	return int64(length), err
}

// skip reads an unknown field.
func (w *wire) skip(kind uint64) error {
	switch kind {
	case varint:
		_, err := binary.ReadUvarint(w)
		return err
	case fixed64:
		_, err := io.CopyN(io.Discard, w.r, 8)
		return err
	case fixed32:
		_, err := io.CopyN(io.Discard, w.r, 4)
		return err
	case counted:
		_, err := w.output(0)
		return err
	}
	return fmt.Errorf("wire type %d: want one of a field", kind)
}
