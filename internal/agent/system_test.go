package agent

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/plimsoll-dev/plimsoll/internal/core/admission"
)

// TestSuited: the runtime is asked only for pods whose verdict depends on it. A runtime that does not answer never
// rejects a pod for good.
func TestSuited(t *testing.T) {
	strict := corev1.SupplementalGroupsPolicyStrict
	wants := &corev1.Pod{
		Spec: corev1.PodSpec{SecurityContext: &corev1.PodSecurityContext{SupplementalGroupsPolicy: &strict}},
	}
	for name, c := range map[string]struct {
		pod    *corev1.Pod
		can    bool
		err    error
		reason string
		later  bool
	}{
		"it can":    {pod: wants, can: true},
		"it cannot": {pod: wants, reason: "SupplementalGroupsPolicyNotSupported"},
		"it says nothing": {pod: wants, err: errors.New("deadline exceeded"), reason: "UnexpectedAdmissionError",
			later: true},
		"another system": {pod: &corev1.Pod{Spec: corev1.PodSpec{OS: &corev1.PodOS{Name: corev1.Windows}}},
			err: errors.New("asked"), reason: "PodOSNotSupported"},
		"nothing asked": {pod: &corev1.Pod{}, err: errors.New("asked")},
	} {
		r := suited(c.pod, admission.System{OS: "linux"}, func() (bool, error) { return c.can, c.err })
		if (r == nil) != (c.reason == "") || r != nil && (r.Reason != c.reason || r.Later != c.later) {
			t.Errorf("%s: %+v, want %q, later %v", name, r, c.reason, c.later)
		}
	}
}

func TestHasAppArmor(t *testing.T) {
	path := filepath.Join(t.TempDir(), "enabled")
	if hasAppArmor(path) {
		t.Error("there is none, and it is on")
	}
	for text, want := range map[string]bool{"Y\n": true, "N\n": false} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := hasAppArmor(path); got != want {
			t.Errorf("%q: %v", text, got)
		}
	}
}
