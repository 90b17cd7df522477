package cri

import (
	"bytes"
	"context"
	"encoding/binary"
	"net"
	"net/http"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/plimsoll-dev/plimsoll/test/cost"
)

// commands is a runtime that answers ExecSync.
type commands struct {
	runtimeapi.UnimplementedRuntimeServiceServer
	run func(context.Context, *runtimeapi.ExecSyncRequest) (*runtimeapi.ExecSyncResponse, error)
}

func (c commands) ExecSync(ctx context.Context, in *runtimeapi.ExecSyncRequest) (*runtimeapi.ExecSyncResponse, error) {
	return c.run(ctx, in)
}

// dialServer returns a client of a socket on which serve answers.
func dialServer(t *testing.T, serve func(net.Listener) error, options ...grpc.DialOption) *Client {
	t.Helper()
	path := filepath.Join(t.TempDir(), "sock")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() { _ = serve(l) }()
	client, err := Dial(path, options...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	return client
}

// TestExecSyncKeeps: from a gRPC server's answer, the exit code and as much of each output as the caller requested are
// read.
func TestExecSyncKeeps(t *testing.T) {
	server := grpc.NewServer(grpc.MaxSendMsgSize(messageMax))
	t.Cleanup(server.Stop)
	long := bytes.Repeat([]byte("0123456789"), 16<<20/10)
	runtimeapi.RegisterRuntimeServiceServer(server,
		commands{run: func(_ context.Context, in *runtimeapi.ExecSyncRequest) (*runtimeapi.ExecSyncResponse, error) {
			switch in.Cmd[0] {
			case "long":
				return &runtimeapi.ExecSyncResponse{Stdout: long, Stderr: long[1:], ExitCode: -1}, nil
			case "short":
				return &runtimeapi.ExecSyncResponse{Stdout: []byte("out"), Stderr: []byte("err"), ExitCode: 130}, nil
			}
			return &runtimeapi.ExecSyncResponse{}, nil
		}})
	seen := ""
	client := dialServer(t, server.Serve, grpc.WithChainUnaryInterceptor(
		func(ctx context.Context, method string, in, out any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker,
			o ...grpc.CallOption) error {
			seen += method + " "
			return invoke(ctx, method, in, out, cc, o...)
		}))
	for _, c := range []struct {
		command        string
		options        []grpc.CallOption
		stdout, stderr string
		exit           int32
	}{
		{"long", []grpc.CallOption{KeepOutput(12)}, "012345678901", "123456789012", -1},
		{"long", []grpc.CallOption{KeepOutput(0)}, "", "", -1},
		{"long", nil, string(long), string(long[1:]), -1},
		{"short", []grpc.CallOption{KeepOutput(10 << 10)}, "out", "err", 130},
		{"nothing", nil, "", "", 0},
	} {
		answer, err := client.ExecSync(t.Context(), &runtimeapi.ExecSyncRequest{Cmd: []string{c.command}}, c.options...)
		if err != nil {
			t.Fatalf("%s: %v", c.command, err)
		}
		if string(answer.Stdout) != c.stdout || string(answer.Stderr) != c.stderr || answer.ExitCode != c.exit {
			t.Errorf("%s: %.20q (%d bytes), %.20q (%d bytes), exit code %d", c.command,
				answer.Stdout, len(answer.Stdout), answer.Stderr, len(answer.Stderr), answer.ExitCode)
		}
	}
	if want := strings.Repeat(runtimeapi.RuntimeService_ExecSync_FullMethodName+" ", 5); seen != want {
		t.Errorf("the caller's interceptor saw %q", seen)
	}
}

// TestExecSyncHoldsLittle: a command's output costs its reader no memory. The server sends 2 x 16 MiB from one small
// buffer.
func TestExecSyncHoldsLittle(t *testing.T) {
	const length = 16 << 20
	protocols := new(http.Protocols)
	protocols.SetUnencryptedHTTP2(true)
	server := &http.Server{Protocols: protocols, Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		head := protowire.AppendVarint(protowire.AppendTag(nil, stdoutField, protowire.BytesType), length)
		between := protowire.AppendVarint(protowire.AppendTag(nil, stderrField, protowire.BytesType), length)
		tail := protowire.AppendVarint(protowire.AppendTag(nil, exitField, protowire.VarintType), 7)
		prefix := binary.BigEndian.AppendUint32([]byte{0}, uint32(2*length+len(head)+len(between)+len(tail)))
		w.Header().Set("Content-Type", "application/grpc")
		w.Header().Set("Trailer", "Grpc-Status")
		chunk := bytes.Repeat([]byte("x"), 32<<10)
		print := func() {
			for range length / len(chunk) {
				_, _ = w.Write(chunk)
			}
		}
		_, _ = w.Write(append(prefix, head...))
		print()
		_, _ = w.Write(between)
		print()
		_, _ = w.Write(tail)
		w.Header().Set("Grpc-Status", "0")
	})}
	t.Cleanup(func() { server.Close() })
	client := dialServer(t, server.Serve)
	run := func() {
		answer, err := client.ExecSync(t.Context(), &runtimeapi.ExecSyncRequest{Cmd: []string{"x"}}, KeepOutput(10<<10))
		if err != nil || answer.ExitCode != 7 || len(answer.Stdout) != 10<<10 || len(answer.Stderr) != 10<<10 {
			t.Fatalf("exit code %d, %d and %d bytes, %v", answer.GetExitCode(), len(answer.GetStdout()), len(answer.GetStderr()),
				err)
		}
	}
	run() // connects
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	run()
	runtime.ReadMemStats(&after)
	// includes the server's memory, and with the race detector pools are cleared
	if used := after.TotalAlloc - before.TotalAlloc; used > length {
		t.Errorf("an answer of 32 MiB, of which 20 KiB are kept, had %d bytes allocated", used)
	}
}

// TestExecSyncFails: errors are those of gRPC: the runtime's own, the caller's context, and a runtime that does not
// exist.
func TestExecSyncFails(t *testing.T) {
	server := grpc.NewServer()
	t.Cleanup(server.Stop)
	asked, gone := make(chan struct{}), make(chan struct{})
	runtimeapi.RegisterRuntimeServiceServer(server,
		commands{run: func(ctx context.Context, in *runtimeapi.ExecSyncRequest) (*runtimeapi.ExecSyncResponse, error) {
			switch in.Cmd[0] {
			case "hang":
				asked <- struct{}{}
				<-ctx.Done()
				gone <- struct{}{}
				return nil, ctx.Err()
			case "die":
				go server.Stop()
				<-ctx.Done()
				return nil, ctx.Err()
			}
			return nil, status.Error(codes.DeadlineExceeded, "100% late: ü\n")
		}})
	client := dialServer(t, server.Serve)
	ask := func(ctx context.Context, command string) error {
		_, err := client.ExecSync(ctx, &runtimeapi.ExecSyncRequest{Cmd: []string{command}}, KeepOutput(0))
		return err
	}
	if err := ask(t.Context(), "late"); status.Code(err) != codes.DeadlineExceeded ||
		status.Convert(err).Message() != "100% late: ü\n" {
		t.Errorf("the runtime's own error: %v", err)
	}
	ended, cancel := context.WithCancel(t.Context())
	go func() { <-asked; cancel() }()
	if err := ask(ended, "hang"); status.Code(err) != codes.Canceled {
		t.Errorf("a call that was cancelled: %v", err)
	}
	<-gone // the runtime notices that the call has ended
	over, cancel := context.WithDeadline(t.Context(), time.Now())
	defer cancel()
	if err := ask(over, "hang"); status.Code(err) != codes.DeadlineExceeded {
		t.Errorf("a call whose time is over: %v", err)
	}
	if err := ask(t.Context(), "die"); status.Code(err) != codes.Unavailable {
		t.Errorf("the runtime dies within a call: %v", err)
	}
	if err := ask(t.Context(), "x"); status.Code(err) != codes.Unavailable {
		t.Errorf("the runtime is not there: %v", err)
	}
}

// FuzzExecSync: an answer is decoded like protocol buffers, or refused, and only what is kept costs memory.
func FuzzExecSync(f *testing.F) {
	whole, err := proto.Marshal(&runtimeapi.ExecSyncResponse{Stdout: []byte("out"), Stderr: []byte("err"), ExitCode: -1})
	if err != nil {
		f.Fatal(err)
	}
	cost.Attack(f, string(whole))
	cost.Attack(f, "\x0a\xff\xff\xff\x1fx")
	f.Fuzz(func(t *testing.T, text string) {
		defer cost.Spend(t, len(text))()
		const kept = 4
		got, want := &runtimeapi.ExecSyncResponse{}, &runtimeapi.ExecSyncResponse{}
		err := readExecSync(strings.NewReader(text), kept, got)
		if proto.Unmarshal([]byte(text), want) != nil {
			return // unknown fields are accepted
		}
		if err != nil {
			if strings.Contains(err.Error(), "wire type") { // groups, which no runtime sends
				return
			}
			t.Fatalf("%q is refused: %v", text, err)
		}
		if !bytes.Equal(got.Stdout, want.Stdout[:min(len(want.Stdout), kept)]) ||
			!bytes.Equal(got.Stderr, want.Stderr[:min(len(want.Stderr), kept)]) ||
			got.ExitCode != want.ExitCode {
			t.Fatalf("%q: %v, want the beginning of %v", text, got, want)
		}
	})
}
