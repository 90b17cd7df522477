package featuregate

import (
	"slices"
	"strings"
	"testing"

	"github.com/plimsoll-dev/plimsoll/test/cost"
)

func TestParse(t *testing.T) {
	set, idle, err := Parse([]string{"NodeDeclaredFeatures=false,kube:GangScheduling=true", "AllAlpha=false",
		"GangScheduling=true"}, "NodeDeclaredFeatures")
	if err != nil || !slices.Equal(idle, []string{"GangScheduling"}) {
		t.Errorf("%v, %v", idle, err)
	}
	if set.On("NodeDeclaredFeatures") || !set.On("GangScheduling") || !set.On("DynamicResourceAllocation") {
		t.Errorf("%v", set)
	}
	_, _, err = Parse([]string{"Telepathy=true,NodeSwap=false", "GangScheduling", "GangScheduling=perhaps"})
	for _, part := range []string{`"Telepathy": no feature gate of Kubernetes 1.36`, "NodeSwap=false: is locked to true",
		`"GangScheduling": want`, `"GangScheduling=perhaps": want`} {
		if err == nil || !strings.Contains(err.Error(), part) {
			t.Errorf("not said: %s\n%v", part, err)
		}
	}
	if set, idle, err := Parse(nil); len(set) != 0 || idle != nil || err != nil {
		t.Errorf("nothing: %v, %v, %v", set, idle, err)
	}
}

func FuzzParse(f *testing.F) {
	cost.Attack(f, []byte("GangScheduling=true,NodeSwap=true"))
	f.Fuzz(func(t *testing.T, data []byte) {
		defer cost.Spend(t, len(data))()
		set, _, err := Parse([]string{string(data)})
		for name := range set {
			if _, known := All()[name]; err == nil && !known {
				t.Errorf("accepted %q", name)
			}
		}
	})
}
