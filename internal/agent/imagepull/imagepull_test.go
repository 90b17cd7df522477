package imagepull

import (
	"context"
	"slices"
	"testing"

	"google.golang.org/grpc"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/record"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// vault has the secrets of a registry, by name.
type vault struct{}

func (vault) Secret(_ context.Context, namespace, name string) (*corev1.Secret, error) {
	if namespace != "ns" || name == "gone" {
		return nil, apierrors.NewNotFound(corev1.Resource("secrets"), name)
	}
	text := `{"auths":{"registry.example":{"username":"` + name + `","password":"p"}}}`
	return &corev1.Secret{Type: corev1.SecretTypeDockerConfigJson, Data: map[string][]byte{corev1.DockerConfigJsonKey: []byte(text)}}, nil
}

// pulled notes who images are pulled as.
type pulled struct {
	runtimeapi.ImageServiceClient
	as *[]string
}

func (p pulled) PullImage(_ context.Context, in *runtimeapi.PullImageRequest, _ ...grpc.CallOption) (*runtimeapi.PullImageResponse, error) {
	*p.as = append(*p.as, in.Auth.GetUsername())
	return &runtimeapi.PullImageResponse{}, nil
}

// TestPullSecrets: an image is pulled with what the pod's imagePullSecrets have for its registry, and without anything
// when they have nothing. One that is not there is told of.
func TestPullSecrets(t *testing.T) {
	for _, c := range []struct {
		image string
		names []string
		as    string
		event bool
	}{
		{"registry.example/a", nil, "", false},
		{"registry.example/a", []string{"alice"}, "alice", false},
		{"registry.example/a", []string{"bob"}, "bob", false},
		{"elsewhere.example/a", []string{"alice"}, "", false},
		{"registry.example/a", []string{"gone", "", "alice"}, "alice", true},
		{"registry.example/a", []string{"gone"}, "", true},
	} {
		var as []string
		events := record.NewFakeRecorder(10)
		puller := New(pulled{as: &as}, vault{}, events, 1)
		pod := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "web"},
			Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "zeta"}}},
		}
		for _, name := range c.names {
			pod.Spec.ImagePullSecrets = append(pod.Spec.ImagePullSecrets, corev1.LocalObjectReference{Name: name})
		}
		pod.Spec.Containers[0].Image = c.image
		if err := puller.pull(t.Context(), pod, &pod.Spec.Containers[0], &runtimeapi.ImageSpec{Image: c.image}); err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(as, []string{c.as}) {
			t.Errorf("%s with imagePullSecrets %q: pulled as %q, want %q", c.image, c.names, as, c.as)
		}
		const told = "Warning FailedToRetrieveImagePullSecret Unable to retrieve some image pull secrets (gone); attempting to pull the image may not succeed."
		if first := <-events.Events; (first == told) != c.event {
			t.Errorf("%s with imagePullSecrets %q: told of what is missing: %q, want %v", c.image, c.names, first, c.event)
		}
	}
}
