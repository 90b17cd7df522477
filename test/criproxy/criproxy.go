// Package criproxy is a proxy between an agent and a real container runtime. It gives wrong answers where a test asks
// for them. Everything else it passes on unchanged, also streams and services that are not CRI's.
//
//	p := criproxy.Listen(t, socket, runtime)
//	criproxy.Lie(p, runtimeapi.RuntimeService_ListContainers_FullMethodName, func(
//		ctx context.Context, q *runtimeapi.ListContainersRequest, ask func() (*runtimeapi.ListContainersResponse, error),
//	) (*runtimeapi.ListContainersResponse, error) {
//		... // ask returns the runtime's own answer
//	})
//	p.TellTheTruth()
package criproxy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"
)

// messageMax bounds one message: as large as the agent takes.
const messageMax = 64 << 20

// Proxy is a socket that leads to a runtime.
type Proxy struct {
	runtime *grpc.ClientConn

	mu   sync.Mutex
	lies map[string]lie // by method
}

// lie answers in the runtime's place. ask returns the runtime's own answer.
type lie func(ctx context.Context, request []byte, ask func() ([]byte, error)) ([]byte, error)

// Listen serves a socket that leads to the runtime at the other one, until the test ends. Both are paths.
func Listen(t *testing.T, socket, runtime string) *Proxy {
	t.Helper()
	connection, err := grpc.NewClient(
		"unix://"+runtime, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(
			grpc.ForceCodec(bytesAsTheyAre{}), grpc.MaxCallRecvMsgSize(messageMax), grpc.MaxCallSendMsgSize(messageMax),
		),
	)
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	p := &Proxy{runtime: connection, lies: map[string]lie{}}
	server := grpc.NewServer(
		grpc.ForceServerCodec(bytesAsTheyAre{}), grpc.MaxRecvMsgSize(messageMax), grpc.MaxSendMsgSize(messageMax),
		grpc.UnknownServiceHandler(p.handle),
	)
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	t.Cleanup(func() {
		server.Stop()
		if err := errors.Join(<-served, connection.Close()); err != nil {
			t.Error(err)
		}
	})
	return p
}

// Lie makes a function answer the calls of a method, until TellTheTruth.
func Lie[Q, A proto.Message](p *Proxy, method string, answer func(context.Context, Q, func() (A, error)) (A, error)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.lies[method] = func(ctx context.Context, request []byte, ask func() ([]byte, error)) ([]byte, error) {
		q := made[Q]()
		if err := proto.Unmarshal(request, q); err != nil {
			return nil, err
		}
		a, err := answer(ctx, q, func() (A, error) {
			a := made[A]()
			said, err := ask()
			if err == nil {
				err = proto.Unmarshal(said, a)
			}
			return a, err
		})
		if err != nil {
			return nil, err
		}
		return proto.Marshal(a)
	}
}

func made[M proto.Message]() M {
	var none M
	return none.ProtoReflect().Type().New().Interface().(M)
}

// TellTheTruth ends all lies. A call that has begun is still answered by its lie.
func (p *Proxy) TellTheTruth() {
	p.mu.Lock()
	defer p.mu.Unlock()
	clear(p.lies)
}

func (p *Proxy) handle(_ any, caller grpc.ServerStream) error {
	method, ok := grpc.MethodFromServerStream(caller)
	if !ok {
		return errors.New("proxy: a call without a method")
	}
	ctx := caller.Context()
	if headers, has := metadata.FromIncomingContext(ctx); has {
		ctx = metadata.NewOutgoingContext(ctx, headers)
	}
	p.mu.Lock()
	lie := p.lies[method]
	p.mu.Unlock()
	if lie == nil {
		return p.handOn(ctx, method, caller)
	}
	var request []byte
	if err := caller.RecvMsg(&request); err != nil {
		return err
	}
	answer, err := lie(ctx, request, func() (answer []byte, err error) {
		err = p.runtime.Invoke(ctx, method, &request, &answer)
		return answer, err
	})
	if err != nil {
		return err
	}
	return caller.SendMsg(&answer)
}

// handOn passes a call on, whatever its method.
func (p *Proxy) handOn(ctx context.Context, method string, caller grpc.ServerStream) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	runtime, err := p.runtime.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, method)
	if err != nil {
		return err
	}
	go func() {
		for {
			var request []byte
			err := caller.RecvMsg(&request)
			if err == nil {
				err = runtime.SendMsg(&request)
			}
			if err != nil {
				_ = runtime.CloseSend() // the answers say what became of it
				return
			}
		}
	}()
	for {
		var answer []byte
		err := runtime.RecvMsg(&answer)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err == nil {
			err = caller.SendMsg(&answer)
		}
		if err != nil {
			return err
		}
	}
}

// bytesAsTheyAre is a codec that does not decode messages.
type bytesAsTheyAre struct{}

func (bytesAsTheyAre) Name() string { return "proto" }

func (bytesAsTheyAre) Marshal(v any) ([]byte, error) {
	message, ok := v.(*[]byte)
	if !ok {
		return nil, fmt.Errorf("proxy: marshal a %T, want bytes", v)
	}
	return *message, nil
}

func (bytesAsTheyAre) Unmarshal(data []byte, v any) error {
	message, ok := v.(*[]byte)
	if !ok {
		return fmt.Errorf("proxy: unmarshal into a %T, want bytes", v)
	}
	*message = append([]byte(nil), data...)
	return nil
}
