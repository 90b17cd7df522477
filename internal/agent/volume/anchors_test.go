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
)

// bundles is the cluster's certificates, of which a source selects one by name.
type bundles struct {
	texts     map[string]string
	untracked []types.UID
}

func (b *bundles) Anchors(_ context.Context, _ types.UID, source *corev1.ClusterTrustBundleProjection) ([]byte, error) {
	text, ok := b.texts[*source.Name]
	if !ok {
		return nil, errors.New("no such bundle")
	}
	return []byte(text), nil
}
func (b *bundles) Untrack(uid types.UID) { b.untracked = append(b.untracked, uid) }

// TestClusterTrustBundle: without its feature gate the source is refused by a text that names the gate. With it, the
// certificates are a file with a token's mode, follow the bundle, and their pod is forgotten with its volumes.
func TestClusterTrustBundle(t *testing.T) {
	r := newRig(t)
	name, group := "roots", int64(4242)
	pod := podWith("u1", volumeOf("v",
		corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{
			{ClusterTrustBundle: &corev1.ClusterTrustBundleProjection{Name: &name, Path: "ca/roots.pem"}},
		}}}))
	pod.Spec.SecurityContext = &corev1.PodSecurityContext{FSGroup: &group}
	var unsupported *UnsupportedError
	if err := r.SetUp(t.Context(), pod); !errors.As(err, &unsupported) ||
		!strings.Contains(err.Error(), "feature gate ClusterTrustBundleProjection") {
		t.Errorf("without the gate: %v", err)
	}
	cluster := &bundles{texts: map[string]string{}}
	r.Bundles = cluster
	if err := r.SetUp(t.Context(), pod); err == nil || !strings.Contains(err.Error(), "no such bundle") {
		t.Errorf("without the bundle: %v", err)
	}
	path := filepath.Join(r.root, "memory/u1/kubernetes.io~projected/v/ca/roots.pem")
	for _, text := range []string{"first", "second", ""} {
		cluster.texts[name] = text
		r.mustSetUp(pod)
		got, err := os.ReadFile(path)
		must(t, err)
		st, err := os.Stat(path)
		must(t, err)
		if string(got) != text || st.Mode().Perm() != 0o640 {
			t.Errorf("%q of mode %v, want %q", got, st.Mode(), text)
		}
	}
	r.tearDownClean("u1")
	if !slices.Contains(cluster.untracked, "u1") {
		t.Errorf("untracked %v", cluster.untracked)
	}
}
