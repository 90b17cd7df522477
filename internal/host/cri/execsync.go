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

// The answer to ExecSync holds all that a command printed: up to 16 MiB of each output, chosen by whoever wrote the
// command, and gRPC holds a message whole, three times, before its receiver sees any of it. A node of a hundred pods
// that are probed by commands would need gigabytes to learn exit codes. So this one call is read as it comes, by HTTP/2
// of the standard library, and what nobody wants of it is thrown away on the way. To the runtime, and to interceptors,
// it is a gRPC call as any other.

const (
	// streamBuffer is how much of an answer the runtime may send before it was read, in bytes (chosen: HTTP/2's first
	// window).
	streamBuffer = 64 << 10

	// idleLife is how long a connection stays open that no command uses (chosen: longer than usual periods of probes).
	idleLife = 90 * time.Second
)

// outputOption is a call's own bound on what is kept of a command's outputs.
type outputOption struct {
	grpc.EmptyCallOption
	bytes int
}

// KeepOutput has ExecSync keep at most so many bytes of each of the command's two outputs: zero for a caller who wants
// the exit code only. Without it all is kept that the runtime sends.
func KeepOutput(bytes int) grpc.CallOption { return outputOption{bytes: bytes} }

// KeptOutput is how much of each output a call's options have ExecSync keep, in bytes.
func KeptOutput(options []grpc.CallOption) int {
	kept := messageMax
	for _, o := range options {
		if output, ok := o.(outputOption); ok {
			kept = output.bytes
		}
	}
	return kept
}

// execSync makes ExecSync calls to the socket at path.
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
	return func(ctx context.Context, method string, in, out any, conn *grpc.ClientConn, invoke grpc.UnaryInvoker, options ...grpc.CallOption) error {
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

// call makes one unary gRPC call (its protocol: PROTOCOL-HTTP2.md of github.com/grpc/grpc) and has read read the
// answer. Errors are gRPC's. The runtime is not told the deadline of ctx: it ends the command at the request's own, and
// the call when this ends.
func call(ctx context.Context, transport *http.Transport, method string, in proto.Message, read func(io.Reader) error) error {
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
	if _, err := io.Copy(io.Discard, answer.Body); err != nil { // the trailers come behind it
		return status.Errorf(codes.Unavailable, "the connection ends within the answer: %v", err)
	}
	if err := verdict(answer.Trailer); err != nil {
		return err
	}
	return unread
}

// prefixLen is the length of what stands before a message: whether it is compressed, and its length.
const prefixLen = 5

// readMessage has read read the one message of an answer.
func readMessage(body io.Reader, read func(io.Reader) error) error {
	var prefix [prefixLen]byte
	if _, err := io.ReadFull(body, prefix[:]); err != nil {
		return status.Errorf(codes.Internal, "the answer has no message: %v", err)
	}
	length := binary.BigEndian.Uint32(prefix[1:])
	if prefix[0] != 0 {
		return status.Error(codes.Internal, "the answer is compressed, which was not asked for")
	}
	if length > messageMax {
		return status.Errorf(codes.ResourceExhausted, "received message larger than max (%d vs. %d)", length, messageMax)
	}
	if err := read(io.LimitReader(body, int64(length))); err != nil {
		return status.Errorf(codes.Internal, "read the answer: %v", err)
	}
	return nil
}

// verdict is how the call went, as its trailers say.
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

// What the protocol buffers of an ExecSyncResponse are made of (k8s.io/cri-api, api.proto;
// protobuf.dev/programming-guides/encoding).
const (
	stdoutField = 1
	stderrField = 2
	exitField   = 3

	varint  = 0
	fixed64 = 1
	counted = 2 // its length in bytes comes first
	fixed32 = 5
)

// readExecSync reads an ExecSyncResponse to its end and keeps at most so many bytes of each output.
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

// cut is err, in which the end of the message is where none should be.
func cut(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// wire reads bytes, one by one where it must: between outputs there are few.
type wire struct {
	r    io.Reader
	byte [1]byte
}

func (w *wire) ReadByte() (byte, error) {
	_, err := io.ReadFull(w.r, w.byte[:])
	return w.byte[0], err
}

// output reads a counted field and keeps its beginning.
func (w *wire) output(kept int) ([]byte, error) {
	length, err := w.length()
	if err != nil || length == 0 {
		return nil, err
	}
	var text []byte
	if want := min(length, int64(kept)); want > 0 {
		var buffer bytes.Buffer // grows by what comes, not by what is announced
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

// skip reads a field that we do not know.
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
