package plane

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/plimsoll-dev/plimsoll/bench/record"
)

// This file removes what upstream's kubelet leaves on its machine outside of --root-dir.

// legacyLogs is where the kubelet puts a symbolic link to each container's log.
const legacyLogs = "/var/log/containers"

// RemoveLogLinks removes the kubelet's links into a directory, which the kubelet would remove later.
func RemoveLogLinks(below string) error {
	entries, err := os.ReadDir(legacyLogs)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, e := range entries {
		path := filepath.Join(legacyLogs, e.Name())
		if target, err := os.Readlink(path); err == nil && strings.HasPrefix(target, below+"/") {
			if err := os.Remove(path); err != nil {
				return err
			}
		}
	}
	if err := os.Remove(legacyLogs); err != nil && !errors.Is(err, fs.ErrExist) { // it may contain links of others
		return err
	}
	return nil
}

// kubeletDir is where the kubelet serves device plugins, whatever its --root-dir.
const kubeletDir = "/var/lib/kubelet"

// NoteKubeletDir returns a function that removes what a kubelet has created in kubeletDir since: a socket in two
// otherwise empty directories. It removes nothing if the directory existed before.
func NoteKubeletDir() (restore func() error) {
	if _, err := os.Stat(kubeletDir); !errors.Is(err, fs.ErrNotExist) {
		return func() error { return nil }
	}
	return func() error {
		plugins := filepath.Join(kubeletDir, "device-plugins")
		for _, path := range []string{filepath.Join(plugins, "kubelet.sock"), plugins, kubeletDir} {
			if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
		}
		return nil
	}
}

// sysctls are what the kubelet sets on its machine (protectKernelDefaults: false).
var sysctls = []string{"vm/overcommit_memory", "vm/panic_on_oom", "kernel/panic", "kernel/panic_on_oops",
	"kernel/keys/root_maxkeys", "kernel/keys/root_maxbytes"}

// KeepSysctls reads them and returns a function that restores them.
func KeepSysctls() (restore func(), err error) {
	kept := map[string][]byte{}
	for _, name := range sysctls {
		text, err := os.ReadFile(filepath.Join("/proc/sys", name))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("keep sysctl: %w", err)
		}
		kept[name] = text
	}
	return func() {
		for name, text := range kept {
			path := filepath.Join("/proc/sys", name)
			if now, err := os.ReadFile(path); err == nil && bytes.Equal(now, text) {
				continue
			}
			if err := os.WriteFile(path, text, 0o644); err != nil {
				record.Progress("put sysctl %s back to %s: %v", name, bytes.TrimSpace(text), err)
			}
		}
	}, nil
}
