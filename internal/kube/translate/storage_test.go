package translate

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestStorageClasses: the annotation of older releases has precedence over the field, even if it is empty; a claim
// without either has not chosen a class.
func TestStorageClasses(t *testing.T) {
	fast, none := "fast", ""
	old := func(class string) map[string]string {
		return map[string]string{corev1.BetaStorageClassAnnotation: class}
	}
	for name, c := range map[string]struct {
		field       *string
		annotations map[string]string
		class       string
		named       bool
	}{
		"neither":              {nil, nil, "", false},
		"field":                {&fast, nil, "fast", true},
		"empty field":          {&none, nil, "", true},
		"annotation":           {nil, old("slow"), "slow", true},
		"both":                 {&fast, old("slow"), "slow", true},
		"empty annotation too": {&fast, old(""), "", true},
	} {
		claim := &corev1.PersistentVolumeClaim{
			ObjectMeta: metav1.ObjectMeta{Annotations: c.annotations},
			Spec:       corev1.PersistentVolumeClaimSpec{StorageClassName: c.field},
		}
		if class, named := ClaimClass(claim); class != c.class || named != c.named || SchedulerClaim(claim).Class != c.class {
			t.Errorf("claim with %s: class %q, named %v, want %q, %v", name, class, named, c.class, c.named)
		}
		volume := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Annotations: c.annotations}}
		if c.field != nil {
			volume.Spec.StorageClassName = *c.field
		}
		if got := SchedulerVolume(volume).Class; got != c.class {
			t.Errorf("volume with %s: class %q, want %q", name, got, c.class)
		}
	}
}
