package kubeletconfig

import (
	"errors"
	"maps"
	"strings"
	"testing"

	kubeletconfigv1beta1 "k8s.io/kubelet/config/v1beta1"
)

// TestCheckKernel: with protectKernelDefaults each parameter with another value is an error that says what to set; else
// it is noted.
func TestCheckKernel(t *testing.T) {
	values := maps.Clone(kernelDefaults)
	read := func(name string) (int64, error) {
		if value, ok := values[name]; ok {
			return value, nil
		}
		return 0, errors.New("no " + name)
	}
	plain := &kubeletconfigv1beta1.KubeletConfiguration{}
	strict := &kubeletconfigv1beta1.KubeletConfiguration{ProtectKernelDefaults: true}
	for _, c := range []*kubeletconfigv1beta1.KubeletConfiguration{plain, strict} {
		if notes, err := CheckKernel(c, read); err != nil || len(notes) > 0 {
			t.Errorf("as the kubelet has it: %q, %v", notes, err)
		}
	}
	values["vm.overcommit_memory"] = 0
	delete(values, "kernel.panic")
	notes, err := CheckKernel(plain, read)
	if err != nil || len(notes) != 1 || notes[0] != "vm.overcommit_memory is 0, the kubelet would set it to 1" {
		t.Errorf("plain: %q, %v", notes, err)
	}
	_, err = CheckKernel(strict, read)
	for _, want := range []string{
		"protectKernelDefaults: true: vm.overcommit_memory is 0, want 1: sysctl -w vm.overcommit_memory=1", "no kernel.panic",
	} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: does not say %q", err, want)
		}
	}
}

// TestOpenFiles: maxOpenFiles is read, and has the kubelet's default.
func TestOpenFiles(t *testing.T) {
	for text, want := range map[string]int64{"": 1_000_000, "maxOpenFiles: 4096\n": 4096} {
		c, warnings, err := Parse([]byte(head+text), "/")
		if err != nil || len(warnings) > 0 || c.MaxOpenFiles != want {
			t.Errorf("%q: %d, %v, %v", text, c.MaxOpenFiles, warnings, err)
		}
	}
}
