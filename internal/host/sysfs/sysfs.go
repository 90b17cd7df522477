// Package sysfs reads the facts of /sys that the agent needs: which CPUs are online, huge pages, the firmware's id. It
// reads files below an injected root and decides nothing. NUMA nodes and devices join it with their own issue.
package sysfs

import (
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/plimsoll-dev/plimsoll/internal/core/idset"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

// FS is a mounted /sys.
type FS string

// Default is where Linux has it.
const Default FS = "/sys"

func (fs FS) path(names ...string) string {
	return filepath.Join(append([]string{string(fs)}, names...)...)
}

// OnlineCPUs returns the logical CPUs that the kernel runs on (Documentation/ABI/stable/sysfs-devices-system-cpu).
func (fs FS) OnlineCPUs() (idset.Set, error) {
	file := fs.path("devices/system/cpu/online")
	data, err := os.ReadFile(file)
	if err != nil {
		return idset.Set{}, fmt.Errorf("read CPUs: %w", err)
	}
	cpus, err := idset.Parse(string(data))
	if err != nil {
		return idset.Set{}, fmt.Errorf("read CPUs: %s: %w", file, err)
	}
	if cpus.IsEmpty() {
		return idset.Set{}, fmt.Errorf("read CPUs: %s: empty", file)
	}
	return cpus, nil
}

// HugePages returns how many pages of each size are set aside. A kernel without huge pages has no sizes.
func (fs FS) HugePages() (map[unit.Bytes]int64, error) {
	dir := fs.path("kernel/mm/hugepages")
	entries, err := os.ReadDir(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	} else if err != nil {
		return nil, fmt.Errorf("read huge pages: %w", err)
	}
	pages := map[unit.Bytes]int64{}
	for _, e := range entries {
		size, ok := parseHugePageDir(e.Name())
		if !ok {
			continue
		}
		file := filepath.Join(dir, e.Name(), "nr_hugepages")
		data, err := os.ReadFile(file)
		if err != nil {
			return nil, fmt.Errorf("read huge pages: %w", err)
		}
		text := strings.TrimSpace(string(data))
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil || n < 0 || n > math.MaxInt64/int64(size) {
			return nil, fmt.Errorf("read huge pages: %s: %.80q: want a count", file, text)
		}
		pages[size] = n
	}
	return pages, nil
}

// parseHugePageDir reads the name of a page size's directory, like hugepages-2048kB.
func parseHugePageDir(name string) (unit.Bytes, bool) {
	digits, isPrefix := strings.CutPrefix(name, "hugepages-")
	digits, isSuffix := strings.CutSuffix(digits, "kB")
	n, err := strconv.ParseUint(digits, 10, 32)
	if !isPrefix || !isSuffix || err != nil || n == 0 {
		return 0, false
	}
	return unit.Bytes(n) * unit.KiB, true
}

// SystemUUID returns the firmware's id of the machine, in lower case; empty when the firmware tells none, or tells it to
// root only.
func (fs FS) SystemUUID() string {
	for _, name := range []string{"class/dmi/id/product_uuid", "firmware/devicetree/base/vm,uuid", "hypervisor/uuid"} {
		data, err := os.ReadFile(fs.path(name))
		if text := strings.ToLower(strings.Trim(string(data), " \n\x00")); err == nil && text != "" {
			return text
		}
	}
	return ""
}
