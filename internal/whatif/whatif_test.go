package whatif

import (
	"testing"

	"github.com/cockroachdb/datadriven"

	"github.com/plimsoll-dev/plimsoll/internal/kube/kubeletconfig"
	"github.com/plimsoll-dev/plimsoll/internal/kube/machinefile"
)

// TestQuestions runs testdata. "machine" and "config" set the file that the questions after them rest on, "allocatable" asks;
// with the argument json or yaml it prints that format.
func TestQuestions(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		var machine machinefile.File
		var config string
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			switch d.Cmd {
			case "machine":
				var err error
				if machine, err = machinefile.Decode([]byte("apiVersion: plimsoll.dev/v1alpha1\nkind: Machine\n" + d.Input)); err != nil {
					d.Fatalf(t, "%v", err)
				}
				return ""
			case "config":
				config = d.Input
				return ""
			case "allocatable":
				c, _, err := kubeletconfig.Parse([]byte("apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n"+config), "/")
				if err != nil {
					return "error: " + err.Error() + "\n"
				}
				a, err := DrawAllocatable(c, machine.Machine)
				return show(t, d, a, err)
			}
			d.Fatalf(t, "unknown command %s", d.Cmd)
			return ""
		})
	})
}

func show(t *testing.T, d *datadriven.TestData, a *Allocatable, err error) string {
	t.Helper()
	var text []byte
	var writing error
	switch {
	case a == nil:
	case d.HasArg("json"):
		text, writing = JSON(a)
	case d.HasArg("yaml"):
		text, writing = YAML(a)
	default:
		text = a.Table()
	}
	if writing != nil {
		d.Fatalf(t, "%v", writing)
	}
	if err != nil {
		return string(text) + "error: " + err.Error() + "\n"
	}
	return string(text)
}
