package procfs

import (
	"fmt"
	"strconv"
	"strings"
)

// Sysctl reads a kernel parameter that is a whole number, by the name that sysctl(8) has for it (vm.overcommit_memory).
func (fs FS) Sysctl(name string) (int64, error) {
	text, err := fs.text("sys/" + strings.ReplaceAll(name, ".", "/"))
	if err != nil {
		return 0, fmt.Errorf("read kernel parameter %s: %w", name, err)
	}
	value, err := strconv.ParseInt(strings.TrimSpace(text), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("read kernel parameter %s: %q: not a whole number", name, text)
	}
	return value, nil
}
