//go:build e2e

package pods

import (
	"encoding/base64"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// secret creates a secret with one key in the test's namespace.
func (b bench) secret(name string, kind corev1.SecretType, key, content string) {
	b.t.Helper()
	s := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name}, Type: kind, StringData: map[string]string{key: content}}
	if _, err := b.API.CoreV1().Secrets(b.ns).Create(b.t.Context(), s, metav1.CreateOptions{}); err != nil {
		b.t.Fatal(err)
	}
}

// pulls is a pod with one container whose image is pulled each time.
func pulls(image string, secrets ...string) corev1.PodSpec {
	c := workload("c", "exit", "--code", "0")
	c.Image = image
	c.ImagePullPolicy = corev1.PullAlways
	spec := brief(c)
	for _, name := range secrets {
		spec.ImagePullSecrets = append(spec.ImagePullSecrets, corev1.LocalObjectReference{Name: name})
	}
	return spec
}

// An image of a registry that requires a password: without one the pull fails. With several credentials each is tried,
// the most specific first. Old forms of secrets count. Secrets without credentials and missing ones are reported and
// passed over.
func TestImagePullSecrets(t *testing.T) {
	b := at(t)
	r := newRegistry(t)
	host := r.Listener.Addr().String()
	padless := base64.RawStdEncoding.EncodeToString([]byte("team:right"))
	b.secret("right", corev1.SecretTypeDockerConfigJson, corev1.DockerConfigJsonKey,
		fmt.Sprintf(`{"auths":{%q:{"username":"team","password":"right"}}}`, host))
	b.secret("wrong", corev1.SecretTypeDockerConfigJson, corev1.DockerConfigJsonKey,
		fmt.Sprintf(`{"auths":{"http://%s/v2/shop":{"username":"team","password":"old"}}}`, host))
	b.secret("of-old", corev1.SecretTypeDockercfg, corev1.DockerConfigKey, fmt.Sprintf(`{%q:{"auth":%q}}`, host, padless))
	b.secret("elsewhere", corev1.SecretTypeDockerConfigJson, corev1.DockerConfigJsonKey,
		`{"auths":{"registry.example":{"username":"team","password":"right"}}}`)
	b.secret("opaque", corev1.SecretTypeOpaque, "user", "team")

	b.create("with", pulls(r.name("one/app"), "right"))
	b.ended("with", corev1.PodSucceeded)
	if got := r.take(); !slices.Equal(got, []string{"team:right"}) {
		t.Errorf("one secret: tried %q", got)
	}

	b.create("several", pulls(r.name("shop/app"), "opaque", "missing", "elsewhere", "right", "wrong"))
	b.ended("several", corev1.PodSucceeded)
	if got := r.take(); !slices.Equal(got, []string{"team:old", "team:right"}) {
		t.Errorf("several secrets: tried %q", got)
	}
	b.event("several", "FailedToRetrieveImagePullSecret", "Unable to retrieve some image pull secrets (missing)")
	b.event("several", "FailedToRetrieveImagePullSecret", "Unable to use some image pull secrets (opaque: type")

	b.create("of-old", pulls(r.name("three/app"), "of-old"))
	b.ended("of-old", corev1.PodSucceeded)
	r.take()

	b.create("without", pulls(r.name("one/app"), "elsewhere"))
	b.until("without", "is refused", soon, waiting("c", "ErrImagePull"))
	b.event("without", "Failed", "Failed to pull image", "401 Unauthorized")
	if got := r.take(); len(got) != 0 {
		t.Errorf("credentials of another registry were sent: %q", got)
	}
}

// TestPrivateImages: an image was pulled with a pod's credentials. A pod without credentials may not use it: it needs
// its own credentials, which the registry must accept. The same credentials in another secret are enough.
func TestPrivateImages(t *testing.T) {
	b := at(t)
	r := newRegistry(t)
	host := r.Listener.Addr().String()
	right := fmt.Sprintf(`{"auths":{%q:{"username":"team","password":"right"}}}`, host)
	b.secret("right", corev1.SecretTypeDockerConfigJson, corev1.DockerConfigJsonKey, right)
	b.secret("copy", corev1.SecretTypeDockerConfigJson, corev1.DockerConfigJsonKey, right)
	b.secret("wrong", corev1.SecretTypeDockerConfigJson, corev1.DockerConfigJsonKey,
		fmt.Sprintf(`{"auths":{%q:{"username":"team","password":"guessed"}}}`, host))
	present := func(secrets ...string) corev1.PodSpec {
		spec := pulls(r.name("private/app"), secrets...)
		spec.Containers[0].ImagePullPolicy = corev1.PullIfNotPresent
		return spec
	}
	b.create("owner", present("right"))
	b.ended("owner", corev1.PodSucceeded)
	r.take()

	b.create("stranger", present())
	b.create("guesser", present("wrong"))
	b.create("copy", present("copy"))
	b.ended("copy", corev1.PodSucceeded)
	b.event("copy", "Pulled", "already present on machine and can be accessed by the pod")
	for _, name := range []string{"stranger", "guesser"} {
		b.until(name, "is refused", soon, waiting("c", "ErrImagePull"))
		b.event(name, "Failed", "Failed to pull image", "401 Unauthorized")
	}
	if got := r.take(); len(got) == 0 || slices.ContainsFunc(got, func(s string) bool { return s != "team:guessed" }) {
		t.Errorf("tried %q, want the guess alone: who may use the image pulls nothing", got)
	}

	never := present()
	never.Containers[0].ImagePullPolicy = corev1.PullNever
	b.create("never", never)
	b.until("never", "is refused", soon, waiting("c", "ErrImageNeverPull"))
}

// TestBadRegistries: a registry that refuses, serves garbage or does not answer delays no pod whose image is on the
// node. An Event says what is wrong. When the registry works again, the pods start by themselves.
func TestBadRegistries(t *testing.T) {
	b := at(t)
	r := newRegistry(t)
	host := r.Listener.Addr().String()
	b.secret("right", corev1.SecretTypeDockerConfigJson, corev1.DockerConfigJsonKey,
		fmt.Sprintf(`{"auths":{%q:{"username":"team","password":"right"}}}`, host))
	bad := map[string]struct {
		answer answer
		says   string
	}{
		"unavailable": {says: "503 Service Unavailable",
			answer: func(w http.ResponseWriter, _ *http.Request, _ http.Handler) {
				http.Error(w, "try again later", http.StatusServiceUnavailable)
			}},
		"no-manifest": {says: "invalid character",
			answer: func(w http.ResponseWriter, request *http.Request, registry http.Handler) {
				if !strings.Contains(request.URL.Path, "/manifests/") {
					registry.ServeHTTP(w, request)
					return
				}
				w.Header().Set("Content-Type", "application/vnd.oci.image.manifest.v1+json")
				fmt.Fprint(w, "<html>Welcome to the hotel's network</html>")
			}},
		"other-blobs": {says: "unexpected commit digest",
			answer: func(w http.ResponseWriter, request *http.Request, registry http.Handler) {
				if !strings.Contains(request.URL.Path, "/blobs/") {
					registry.ServeHTTP(w, request)
					return
				}
				w.Header().Set("Content-Type", "application/octet-stream")
				right := r.blobs[request.URL.Path[strings.LastIndexByte(request.URL.Path, '/')+1:]]
				fmt.Fprint(w, strings.Repeat("x", len(right)))
			}},
	}
	for name, one := range bad {
		r.misbehave(name, one.answer)
		b.create(name, pulls(r.name(name), "right"))
	}
	b.create("neighbour", brief(workload("c", "exit", "--code", "0")))
	b.ended("neighbour", corev1.PodSucceeded)
	for name, one := range bad {
		b.event(name, "Failed", "Failed to pull image", one.says)
	}

	// Pulls are made one after the other (serializeImagePulls), so a silent registry delays all of them. It delays no
	// pod whose image is on the node, and the deletion of its pod ends a pull.
	r.misbehave("silent", func(_ http.ResponseWriter, request *http.Request, _ http.Handler) {
		select {
		case <-request.Context().Done():
		case <-t.Context().Done(): // the test has failed
		}
	})
	b.create("silent", pulls(r.name("silent"), "right"))
	b.event("silent", "Pulling", "silent:1")
	b.create("another", brief(workload("c", "exit", "--code", "0")))
	b.ended("another", corev1.PodSucceeded)
	b.until("silent", "waits for its image", soon, waiting("c", "ContainerCreating"))
	b.delete("silent", -1, soon)

	for name := range bad {
		r.misbehave(name, nil)
	}
	for name := range bad {
		b.ended(name, corev1.PodSucceeded)
	}
}
