package kubeletconfig

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	kubeletconfigv1beta1 "k8s.io/kubelet/config/v1beta1"
)

// kernelDefaults are the kernel parameters of a node, as the kubelet sets them (cm.setupKernelTunables).
var kernelDefaults = map[string]int64{
	"vm.overcommit_memory":      1,          // the kernel promises memory that it may not have
	"vm.panic_on_oom":           0,          // it kills processes, and does not panic
	"kernel.panic":              10,         // after a panic it boots, after so many seconds
	"kernel.panic_on_oops":      1,          // it panics at an error of its own
	"kernel.keys.root_maxkeys":  1_000_000,  // each container has a keyring
	"kernel.keys.root_maxbytes": 25_000_000, // 25 bytes for each of them
}

// CheckKernel compares this machine's kernel parameters with those of a node. With protectKernelDefaults another value
// is an error. Otherwise the kubelet would set it; here it is a note.
func CheckKernel(
	c *kubeletconfigv1beta1.KubeletConfiguration, read func(name string) (int64, error),
) (notes []string, err error) {
	var p problems
	var unread error
	for _, name := range slices.Sorted(maps.Keys(kernelDefaults)) {
		want := kernelDefaults[name]
		switch is, err := read(name); {
		case err != nil:
			unread = errors.Join(unread, err)
		case is != want && c.ProtectKernelDefaults:
			p.add("protectKernelDefaults", true, fmt.Sprintf("%s is %d, want %d: sysctl -w %s=%d, and a file in /etc/sysctl.d",
				name, is, want, name, want))
		case is != want:
			notes = append(notes, fmt.Sprintf("%s is %d, the kubelet would set it to %d", name, is, want))
		}
	}
	if !c.ProtectKernelDefaults {
		return notes, nil
	}
	if len(p) > 0 {
		err = fmt.Errorf("check kubelet configuration against this machine's kernel: %w", p.err())
	}
	return nil, errors.Join(err, unread)
}
