package whatif

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	corev1 "k8s.io/api/core/v1"
	kubeletconfigv1beta1 "k8s.io/kubelet/config/v1beta1"
	"sigs.k8s.io/yaml"

	"github.com/plimsoll-dev/plimsoll/internal/core/eviction"
	"github.com/plimsoll-dev/plimsoll/internal/kube/kubeletconfig"
	"github.com/plimsoll-dev/plimsoll/internal/kube/machinefile"
	"github.com/plimsoll-dev/plimsoll/internal/kube/manifests"
	"github.com/plimsoll-dev/plimsoll/internal/kube/schedulerconfig"
)

// TestQuestions runs testdata. "machine" and "config" set the files for the questions after them. The questions are
// "allocatable", "admit" (with pods' manifests), "evict" (with a Summary and pods' manifests) and "place" (with
// manifests of a whole cluster); with the argument json or yaml they print that format.
func TestQuestions(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		var machine machinefile.File
		var config string
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			switch d.Cmd {
			case "machine":
				var err error
				if machine, err = machinefile.Decode([]byte("apiVersion: plimsoll.dev/v1alpha1\nkind: Machine\n" +
					d.Input)); err != nil {
					d.Fatalf(t, "%v", err)
				}
				return ""
			case "config":
				config = d.Input
				return ""
			case "place":
				return placeText(t, d)
			}
			c, _, err := kubeletconfig.Parse([]byte("apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n"+
				config), "/")
			if err != nil {
				return "error: " + err.Error() + "\n"
			}
			switch d.Cmd {
			case "allocatable":
				a, err := DrawAllocatable(c, machine.Machine)
				if a == nil {
					return show(t, d, nil, err)
				}
				return show(t, d, a, err)
			case "admit":
				a, err := Admit(c, machine.Machine, machine.Name, podsOf(t, d))
				if err != nil {
					return show(t, d, nil, err)
				}
				return show(t, d, a, nil)
			}
			if d.Cmd == "evict" {
				return evictText(t, d, c)
			}
			d.Fatalf(t, "unknown command %s", d.Cmd)
			return ""
		})
	})
}

// evictText asks what a node evicts; the first document is its Summary, the others are manifests. Arguments: for=D,
// available.
func evictText(t *testing.T, d *datadriven.TestData, c *kubeletconfigv1beta1.KubeletConfiguration) string {
	t.Helper()
	summary, documents, _ := strings.Cut(d.Input, "\n---\n")
	u := Usage{For: -1}
	if d.HasArg("for") {
		var text string
		d.ScanArgs(t, "for", &text)
		var err error
		if u.For, err = time.ParseDuration(text); err != nil {
			d.Fatalf(t, "%v", err)
		}
	}
	if d.HasArg("available") {
		u.Memory = eviction.SignalAvailable
	}
	asJSON, err := yaml.YAMLToJSON([]byte(summary))
	if err != nil {
		d.Fatalf(t, "%v", err)
	}
	if u.Summary, err = ParseSummary(asJSON); err != nil {
		return "error: " + err.Error() + "\n"
	}
	objects, err := manifests.Parse([]byte(documents))
	if err != nil {
		return "error: " + err.Error() + "\n"
	}
	out, err := Evict(c, u, objects)
	if err != nil {
		return show(t, d, nil, err)
	}
	return show(t, d, out, nil)
}

// placeText asks where pods are placed; a first document of kind KubeSchedulerConfiguration is the configuration.
func placeText(t *testing.T, d *datadriven.TestData) string {
	t.Helper()
	var config, documents string
	for doc := range strings.SplitSeq(d.Input, "\n---\n") {
		if strings.Contains(doc, "kind: KubeSchedulerConfiguration") {
			config = doc
		} else {
			documents += doc + "\n---\n"
		}
	}
	c, warnings, err := schedulerconfig.Parse([]byte(config))
	if err != nil {
		return "error: " + err.Error() + "\n"
	}
	objects, err := manifests.Parse([]byte(documents))
	if err != nil {
		return "error: " + err.Error() + "\n"
	}
	p, more, err := Place(c, objects)
	if err != nil {
		return show(t, d, nil, err)
	}
	var out strings.Builder
	for _, w := range append(warnings, more...) {
		fmt.Fprintln(&out, "warning:", w)
	}
	return out.String() + show(t, d, p, nil)
}

// podsOf reads pods; a line "NAME cpu=2 memory=1Gi [RESOURCE=N]" is a Guaranteed pod of one container.
func podsOf(t *testing.T, d *datadriven.TestData) []*corev1.Pod {
	t.Helper()
	var text strings.Builder
	for line := range strings.Lines(d.Input) {
		f := strings.Fields(line)
		if len(f) < 2 || strings.Contains(f[0], ":") || strings.HasPrefix(line, " ") || strings.HasPrefix(f[0], "-") {
			text.WriteString(line)
			continue
		}
		limits := strings.ReplaceAll(strings.Join(f[1:], ", "), "=", ": ")
		fmt.Fprintf(&text,
			"---\napiVersion: v1\nkind: Pod\nmetadata: {name: %s}\n"+
				"spec: {containers: [{name: app, image: x, resources: {limits: {%s}}}]}\n", f[0], limits)
	}
	objects, err := manifests.Parse([]byte(text.String()))
	if err != nil {
		d.Fatalf(t, "%v", err)
	}
	var pods []*corev1.Pod
	for _, o := range objects {
		pods = append(pods, o.(*corev1.Pod))
	}
	return pods
}

func show(t *testing.T, d *datadriven.TestData, a interface{ Table() []byte }, err error) string {
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
