package csi

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// node is a driver's node service whose answers the tests choose.
type node struct {
	stage func(context.Context, *csi.NodeStageVolumeRequest) error
	info  *csi.NodeGetInfoResponse
	csi.UnimplementedNodeServer
}

func (n *node) NodeStageVolume(ctx context.Context,
	r *csi.NodeStageVolumeRequest) (*csi.NodeStageVolumeResponse, error) {
	return &csi.NodeStageVolumeResponse{}, n.stage(ctx, r)
}

func (n *node) NodeGetInfo(context.Context, *csi.NodeGetInfoRequest) (*csi.NodeGetInfoResponse, error) {
	return n.info, nil
}

// serve serves n on a socket until the test or the returned function ends it.
func serve(t *testing.T, path string, n *node) func() {
	t.Helper()
	listener, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	csi.RegisterNodeServer(server, n)
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(server.Stop)
	return server.Stop
}

func dial(t *testing.T, endpoint string, finished func(Call)) *Client {
	t.Helper()
	c, err := Dial(endpoint, finished)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// TestErrors: the driver's code is kept, its text is bounded and has no secret of the request.
func TestErrors(t *testing.T) {
	path := filepath.Join(t.TempDir(), "csi.sock")
	n := &node{}
	serve(t, path, n)
	var calls []Call
	c := dial(t, "unix://"+path, func(done Call) { calls = append(calls, done) })
	request := &csi.NodeStageVolumeRequest{
		VolumeId: "v1",
		Secrets:  map[string]string{"user": "adm", "password": "hunter2hunter2", "prefix": "hunter2"},
		VolumeContext: map[string]string{
			tokensKey: `{"vault":{"token":"eyJhbGciOi.payload.sig","expirationTimestamp":"2026-11-24T00:00:00Z"}}`,
			"share":   "public",
		},
	}
	for _, test := range []struct {
		name string
		err  error
		code codes.Code
		text string
	}{
		{"none", nil, codes.OK, ""},
		{"code", status.Error(codes.ResourceExhausted, "no more disks"), codes.ResourceExhausted, "no more disks"},
		{
			"secrets", status.Error(codes.Unauthenticated,
				"login adm:hunter2hunter2 (was hunter2) to public with eyJhbGciOi.payload.sig"),
			codes.Unauthenticated, "login adm:***stripped*** (was ***stripped***) to public with ***stripped***",
		},
		{"long", status.Error(codes.Internal, strings.Repeat("x", 2*textMax)), codes.Internal, strings.Repeat("x", textMax) +
			" (cut)"},
		{"no status", errors.New("plain"), codes.Unknown, "plain"},
	} {
		n.stage = func(context.Context, *csi.NodeStageVolumeRequest) error { return test.err }
		calls = nil
		_, err := c.NodeStageVolume(Migrated(t.Context()), request)
		if got := status.Convert(err); got.Code() != test.code || got.Message() != test.text {
			t.Errorf("%s: got %v %q", test.name, got.Code(), got.Message())
		}
		want := Call{Method: "/csi.v1.Node/NodeStageVolume", Migrated: true, Code: test.code}
		if len(calls) != 1 || calls[0].Took <= 0 {
			t.Fatalf("%s: calls %+v", test.name, calls)
		}
		if want.Took = calls[0].Took; calls[0] != want {
			t.Errorf("%s: call %+v, want %+v", test.name, calls[0], want)
		}
	}
}

// TestBounds: a huge answer and huge headers are errors, not memory.
func TestBounds(t *testing.T) {
	path := filepath.Join(t.TempDir(), "csi.sock")
	n := &node{info: &csi.NodeGetInfoResponse{NodeId: strings.Repeat("n", answerMax+1)}}
	serve(t, path, n)
	c := dial(t, path, nil)
	if _, err := c.NodeGetInfo(t.Context(), &csi.NodeGetInfoRequest{}); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("answer of more than %d bytes: %v", answerMax, err)
	}
	n.stage = func(context.Context, *csi.NodeStageVolumeRequest) error {
		return status.Error(codes.Internal, strings.Repeat("x", 2*headersMax))
	}
	if _, err := c.NodeStageVolume(t.Context(), &csi.NodeStageVolumeRequest{}); err == nil ||
		len(err.Error()) > 2*textMax {
		t.Errorf("error of %d bytes: %v", 2*headersMax, err)
	}
}

// TestRestart: a driver that listens at its path again is reached again, and so is one that did not listen at first.
func TestRestart(t *testing.T) {
	path := filepath.Join(t.TempDir(), "csi.sock")
	n := &node{info: &csi.NodeGetInfoResponse{NodeId: "n"}}
	c := dial(t, path, nil)
	ask := func() error {
		_, err := c.NodeGetInfo(t.Context(), &csi.NodeGetInfoRequest{})
		return err
	}
	for range 3 {
		err := ask()
		for ; status.Code(err) == codes.Unavailable && !strings.Contains(err.Error(), path); err = ask() {
			// the end of the connection to the previous driver
		}
		if status.Code(err) != codes.Unavailable {
			t.Fatalf("no driver: %v", err)
		}
		stop := serve(t, path, n)
		for err = ask(); err != nil; err = ask() {
			if status.Code(err) != codes.Unavailable || t.Context().Err() != nil {
				t.Fatal(err)
			}
		}
		stop()
		if err := os.Remove(path); err != nil && !os.IsNotExist(err) {
			t.Fatal(err)
		}
	}
}

// TestHang: a call to a driver that never answers ends after CallMax, or earlier if the caller's context ends.
func TestHang(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var bound time.Duration
		hang := func(ctx context.Context, _ string, _, _ any, _ *grpc.ClientConn, _ ...grpc.CallOption) error {
			begun := time.Now()
			<-ctx.Done()
			bound = time.Since(begun)
			return status.FromContextError(ctx.Err()).Err()
		}
		call := func(ctx context.Context) error {
			return bounded(nil)(ctx, "/csi.v1.Node/NodeStageVolume", &csi.NodeStageVolumeRequest{}, nil, nil, hang)
		}
		if err := call(t.Context()); status.Code(err) != codes.DeadlineExceeded || bound != CallMax {
			t.Errorf("ended after %v with %v", bound, err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := call(ctx); status.Code(err) != codes.DeadlineExceeded || bound != time.Second {
			t.Errorf("ended after %v with %v", bound, err)
		}
	})
}

// TestSilent: a program that accepts connections and says nothing does not block a call beyond its context.
func TestSilent(t *testing.T) {
	path := filepath.Join(t.TempDir(), "csi.sock")
	listener, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	_, err = dial(t, path, nil).NodeGetInfo(ctx, &csi.NodeGetInfoRequest{})
	if status.Code(err) != codes.DeadlineExceeded {
		t.Error(err)
	}
}

func TestDialRefuses(t *testing.T) {
	for _, endpoint := range []string{"", "csi.sock", "unix://csi.sock", "tcp://127.0.0.1:1", "/a\x00b"} {
		if c, err := Dial(endpoint, nil); err == nil {
			_ = c.Close()
			t.Errorf("%q was accepted", endpoint)
		}
	}
}
