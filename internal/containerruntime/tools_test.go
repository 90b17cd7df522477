package containerruntime

import (
	"testing"

	"github.com/plimsoll-dev/plimsoll/test/cost"
)

// FuzzParseVersion: any version text of containerd becomes a release from 1.6 on, or an error.
func FuzzParseVersion(f *testing.F) {
	for _, text := range []string{
		"containerd github.com/containerd/containerd 1.6.20~ds1 1.6.20~ds1-1+deb12u3",
		"containerd github.com/containerd/containerd/v2 v2.1.4 75cb2b7193e4",
		" 1.5.0", " 99999999999999999999.1.1", "",
	} {
		cost.Attack(f, text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		defer cost.Spend(t, len(text))()
		if r, err := parseVersion(text); err == nil && r.before(1, 6) {
			t.Errorf("%q: %+v", text, r)
		}
	})
}
