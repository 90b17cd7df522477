package console

import (
	"encoding/json"
	"testing"

	"github.com/plimsoll-dev/plimsoll/internal/kube/topology"
)

// topologyOf returns the object with this content.
func topologyOf(t *testing.T, content map[string]any) *topology.Object {
	t.Helper()
	text, err := json.Marshal(content)
	if err != nil {
		t.Fatal(err)
	}
	o := &topology.Object{}
	if err := json.Unmarshal(text, o); err != nil {
		t.Fatal(err)
	}
	return o
}
