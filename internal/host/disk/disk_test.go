package disk

import (
	"errors"
	"os"
	"testing"
)

func TestOf(t *testing.T) {
	dir := t.TempDir()
	u, err := Of(dir)
	if err != nil || u.Capacity <= 0 || u.Available < 0 || u.Available > u.Capacity || u.Used > u.Capacity {
		t.Errorf("%+v, %v", u, err)
	}
	proc, err := Of("/proc")
	if err != nil || proc.Device == u.Device {
		t.Errorf("/proc is on the device of %s: %v, %v", dir, proc.Device, err)
	}
	if _, err := Of(dir + "/gone"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("missing: %v", err)
	}
}
