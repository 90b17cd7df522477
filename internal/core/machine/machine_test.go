package machine

import (
	"strings"
	"testing"

	"github.com/plimsoll-dev/plimsoll/internal/core/idset"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

func TestCheckReportsEverything(t *testing.T) {
	good := Machine{CPUs: idset.Of(0), Memory: unit.GiB, NodeFS: Filesystem{Capacity: unit.GiB}, HugePages: map[unit.Bytes]int64{2 * unit.MiB: 0}}
	if err := good.Check(); err != nil {
		t.Error(err)
	}
	err := Machine{HugePages: map[unit.Bytes]int64{3 * unit.MiB: -1}, Swap: -1}.Check()
	for _, want := range []string{"cpus: none", "memory: 0", "hugepages: 3Mi", "hugepages 3Mi: -1", "swap: -1", "nodefs: 0"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("want %q in: %v", want, err)
		}
	}
}
