// Package sysfs reads a machine's /sys: CPUs and their topology, NUMA nodes, huge pages, PCI devices, the firmware's
// ID. It reads all files below an injected root, and decides nothing.
//
// # Model
//
// Formats are those of the kernel's Documentation/ABI: CPUs as lists ("0-3,8"), sizes in kB, distances as one number
// per online node in the order of their IDs. IDs may have gaps, so nothing is found by counting. What a kernel does not
// report is absent in the result, and machine.Complete completes it: an old kernel has no die_cpus_list, a guest no
// caches, some machines no NUMA nodes. What it reports wrongly (a CPU that is not among its own siblings, a missing
// distance) is an error that names the file and the value.
//
// # Limits of the package
//
// It does not put a machine together (internal/host/machineinfo does), and it writes nothing.
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

// Default is its usual location.
const Default FS = "/sys"

func (fs FS) path(names ...string) string {
	return filepath.Join(append([]string{string(fs)}, names...)...)
}

// text returns a file's content without surrounding white space, and whether the file exists.
func (fs FS) text(names ...string) (string, bool, error) {
	data, err := os.ReadFile(fs.path(names...))
	if errors.Is(err, os.ErrNotExist) {
		return "", false, nil
	}
	return strings.TrimSpace(string(data)), err == nil, err
}

// list returns the content of a file in the kernel's list format, and whether the file exists.
func (fs FS) list(names ...string) (idset.Set, bool, error) {
	text, ok, err := fs.text(names...)
	if err != nil || !ok {
		return idset.Set{}, false, err
	}
	s, err := idset.Parse(text)
	if err != nil {
		return idset.Set{}, false, fmt.Errorf("%s: %w", fs.path(names...), err)
	}
	return s, true, nil
}

// number returns the decimal number in a file, and whether the file exists.
func (fs FS) number(names ...string) (int64, bool, error) {
	text, ok, err := fs.text(names...)
	if err != nil || !ok {
		return 0, false, err
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return 0, false, fmt.Errorf("%s: %.80q: want a number", fs.path(names...), text)
	}
	return n, true, nil
}

// HugePages returns how many pages of each size are reserved. A kernel without huge pages has no sizes.
func (fs FS) HugePages() (map[unit.Bytes]int64, error) {
	pages, err := fs.hugePages("kernel/mm/hugepages")
	if err != nil {
		return nil, fmt.Errorf("read huge pages: %w", err)
	}
	return pages, nil
}

// hugePages reads a directory with one subdirectory like hugepages-2048kB per page size.
func (fs FS) hugePages(dir string) (map[unit.Bytes]int64, error) {
	entries, err := os.ReadDir(fs.path(dir))
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	} else if err != nil {
		return nil, err
	}
	pages := map[unit.Bytes]int64{}
	for _, e := range entries {
		size, ok := parseHugePageDir(e.Name())
		if !ok {
			continue
		}
		n, ok, err := fs.number(dir, e.Name(), "nr_hugepages")
		if err != nil {
			return nil, err
		}
		if !ok || n < 0 || n > math.MaxInt64/int64(size) {
			return nil, fmt.Errorf("%s: %d: want a count", fs.path(dir, e.Name(), "nr_hugepages"), n)
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

// SystemUUID returns the firmware's ID of the machine, in lower case; empty if the firmware has none, or if only root
// may read it.
func (fs FS) SystemUUID() string {
	for _, name := range []string{"class/dmi/id/product_uuid", "firmware/devicetree/base/vm,uuid", "hypervisor/uuid"} {
		data, err := os.ReadFile(fs.path(name))
		if text := strings.ToLower(strings.Trim(string(data), " \n\x00")); err == nil && text != "" {
			return text
		}
	}
	return ""
}
