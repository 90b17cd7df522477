package volume

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
)

// TestFSGroupChangePolicy: with OnRootMismatch a volume whose root already belongs to the group is left as it is;
// otherwise all of it is given to the group.
func TestFSGroupChangePolicy(t *testing.T) {
	needRoot(t)
	always := corev1.FSGroupChangeAlways
	mismatch := corev1.FSGroupChangeOnRootMismatch
	group := int64(1004)
	for name, c := range map[string]struct {
		policy *corev1.PodFSGroupChangePolicy
		shared bool // the root belonged to the group before
		want   int  // group of the file in it afterwards
	}{
		"by default":                  {nil, true, 1004},
		"always":                      {&always, true, 1004},
		"the root is the group's":     {&mismatch, true, 0},
		"the root is somebody else's": {&mismatch, false, 1004},
	} {
		dir := t.TempDir()
		file := filepath.Join(dir, "file")
		if err := os.WriteFile(file, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if c.shared {
			if err := setOwner(dir, 0o770, owner{group: &group}); err != nil {
				t.Fatal(err)
			}
		}
		pod := podWith("u1")
		pod.Spec.SecurityContext = &corev1.PodSecurityContext{FSGroup: &group, FSGroupChangePolicy: c.policy}
		if err := ShareWithGroup(dir, pod); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		var st unix.Stat_t
		if err := unix.Stat(file, &st); err != nil || int(st.Gid) != c.want {
			t.Errorf("%s: group %d, want %d (%v)", name, st.Gid, c.want, err)
		}
	}
}
