package volume

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/plimsoll-dev/plimsoll/internal/agent/podcert"
)

// credentials is what pods get.
type credentials struct {
	has       podcert.Credentials
	err       error
	at        podcert.Place
	written   string
	untracked []types.UID
}

func (c *credentials) Credentials(
	_ context.Context, _ *corev1.Pod, at podcert.Place, _ *corev1.PodCertificateProjection, written func() []byte,
) (podcert.Credentials, error) {
	c.at, c.written = at, string(written())
	return c.has, c.err
}
func (c *credentials) Untrack(uid types.UID) { c.untracked = append(c.untracked, uid) }

// TestPodCertificate: without its feature gate, and for static pods, the source is refused. A pod without a certificate
// waits. With one, key and chain are files with a token's mode that change together; the next agent is given what is
// there, and the pod is forgotten with its volumes.
func TestPodCertificate(t *testing.T) {
	r := newRig(t)
	user := int64(1234)
	projected := &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{
		{DownwardAPI: &corev1.DownwardAPIProjection{}},
		{PodCertificate: &corev1.PodCertificateProjection{
			SignerName:           "example.com/s",
			CredentialBundlePath: "a/both.pem", KeyPath: "key.pem", CertificateChainPath: "chain.pem",
		}},
	}}
	pod := podWith("u1", volumeOf("v", corev1.VolumeSource{Projected: projected}))
	pod.Spec.SecurityContext = &corev1.PodSecurityContext{RunAsUser: &user}
	var unsupported *UnsupportedError
	err := r.SetUp(t.Context(), pod)
	if !errors.As(err, &unsupported) || !strings.Contains(err.Error(), "feature gate PodCertificateRequest") {
		t.Errorf("without the gate: %v", err)
	}
	cluster := &credentials{err: errors.New("no answer yet")}
	r.Certificates = cluster
	static := pod.DeepCopy()
	static.UID, static.Annotations = "u2", map[string]string{"kubernetes.io/config.source": "file"}
	err = r.SetUp(t.Context(), static)
	if !errors.As(err, &unsupported) || !strings.Contains(err.Error(), "static pods") {
		t.Errorf("static: %v", err)
	}
	if err := r.SetUp(t.Context(), pod); err == nil || !strings.Contains(err.Error(), "no answer yet") {
		t.Errorf("without an answer: %v", err)
	}
	dir := filepath.Join(r.root, "memory/u1/kubernetes.io~projected/v")
	if _, err := os.Stat(dir); err == nil && hasContent(dir) {
		t.Error("something was written")
	}
	cluster.err = nil
	for _, n := range []string{"1", "2"} {
		cluster.has = podcert.Credentials{Key: []byte("key" + n), Chain: []byte("chain" + n)}
		r.mustSetUp(pod)
		for name, want := range map[string]string{
			"a/both.pem": "key" + n + "chain" + n, "key.pem": "key" + n, "chain.pem": "chain" + n,
		} {
			got, err := os.ReadFile(filepath.Join(dir, name))
			must(t, err)
			st, err := os.Stat(filepath.Join(dir, name))
			must(t, err)
			if string(got) != want || st.Mode().Perm() != 0o600 {
				t.Errorf("%s: %q of mode %v, want %q", name, got, st.Mode(), want)
			}
		}
	}
	if want := (podcert.Place{Volume: "v", Source: 1}); cluster.at != want {
		t.Errorf("asked for %+v", cluster.at)
	}
	for _, without := range []bool{false, true} {
		r.restart()
		r.Certificates = cluster
		if without {
			pod.Spec.Volumes[0].Projected.Sources[1].PodCertificate.CredentialBundlePath = ""
		}
		if r.mustSetUp(pod); cluster.written != "key2chain2" {
			t.Errorf("the next agent is given %q", cluster.written)
		}
	}
	r.tearDownClean("u1")
	if !slices.Contains(cluster.untracked, "u1") {
		t.Errorf("untracked %v", cluster.untracked)
	}
}
