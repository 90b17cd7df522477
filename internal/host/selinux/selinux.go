// Package selinux says which label the files of a container have, where the kernel has SELinux.
//
// A container process has options of the API: user, role, type, level. What is missing, and the type of the files,
// comes from the system's policy (/etc/selinux). The library that container runtimes and the kubelet use reads it, so
// the label is the one that the runtime would give to the files.
//
// The package sets no labels.
package selinux

import (
	"fmt"

	"github.com/opencontainers/selinux/go-selinux"
	"github.com/opencontainers/selinux/go-selinux/label"
)

// Enabled reports whether the kernel has SELinux, and a policy is loaded.
func Enabled() bool { return selinux.GetEnabled() }

// FileLabel returns the label of files for processes with these options. An empty option is the policy's. Without a
// level, it would be another label each time.
func FileLabel(user, role, kind, level string) (string, error) {
	var options []string
	for _, o := range []struct{ name, value string }{
		{"user", user}, {"role", role}, {"type", kind}, {"level", level},
	} {
		if o.value != "" {
			options = append(options, o.name+":"+o.value)
		}
	}
	process, file, err := label.InitLabels(options)
	if err != nil {
		return "", fmt.Errorf("label of files: %w", err)
	}
	selinux.ReleaseLabel(process) // the library reserves it for a container that it would start
	return file, nil
}
