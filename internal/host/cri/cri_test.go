package cri

import (
	"context"
	"net"
	"path/filepath"
	"testing"

	"google.golang.org/grpc"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// service is a runtime with one image.
type service struct {
	runtimeapi.UnimplementedRuntimeServiceServer
	runtimeapi.UnimplementedImageServiceServer
	name string
}

func (s service) Version(context.Context, *runtimeapi.VersionRequest) (*runtimeapi.VersionResponse, error) {
	return &runtimeapi.VersionResponse{RuntimeName: s.name, RuntimeApiVersion: "v1"}, nil
}

func (s service) ListImages(context.Context, *runtimeapi.ListImagesRequest) (*runtimeapi.ListImagesResponse, error) {
	return &runtimeapi.ListImagesResponse{Images: []*runtimeapi.Image{{Id: s.name}}}, nil
}

func serve(t *testing.T, name string) (endpoint string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "sock")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	runtimeapi.RegisterRuntimeServiceServer(server, service{name: name})
	runtimeapi.RegisterImageServiceServer(server, service{name: name})
	go func() { _ = server.Serve(l) }()
	t.Cleanup(server.Stop)
	return "unix://" + path
}

// TestImagesFrom: image calls go to the image service (imageServiceEndpoint), all others to the runtime.
func TestImagesFrom(t *testing.T) {
	client, err := Dial(serve(t, "runtime"))
	if err != nil {
		t.Fatal(err)
	}
	asked := func() string {
		version, err := client.Handshake(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		images, err := client.Images.ListImages(t.Context(), &runtimeapi.ListImagesRequest{})
		if err != nil {
			t.Fatal(err)
		}
		return version.RuntimeName + " " + images.Images[0].Id
	}
	if got := asked(); got != "runtime runtime" {
		t.Errorf("answers of %s", got)
	}
	if err := client.ImagesFrom("relative"); err == nil {
		t.Error("an endpoint that is no absolute path is taken")
	}
	if err := client.ImagesFrom(serve(t, "images")); err != nil {
		t.Fatal(err)
	}
	if got := asked(); got != "runtime images" {
		t.Errorf("answers of %s", got)
	}
	if err := client.Close(); err != nil {
		t.Error(err)
	}
}
