package oracle

import (
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/pflag"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	logsapi "k8s.io/component-base/logs/api/v1"
	"k8s.io/kubernetes/cmd/kube-scheduler/app/options"

	"github.com/plimsoll-dev/plimsoll/internal/kube/featuregate"
)

// TestSchedulerFlags checks that each flag of kube-scheduler is one of `plimsoll scheduler`, and that those with an
// effect have upstream's default.
func TestSchedulerFlags(t *testing.T) {
	program := filepath.Join(t.TempDir(), "plimsoll")
	build := exec.Command("go", "build", "-o", program, "./cmd/plimsoll")
	build.Dir = ".."
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	help, err := exec.Command(program, "scheduler", "--help").Output()
	if err != nil {
		t.Fatal(err)
	}
	ours := map[string]string{} // the line of each flag
	flag := regexp.MustCompile(`^ +(?:-., )?--([a-z0-9-]+)`)
	for line := range strings.Lines(string(help)) {
		if m := flag.FindStringSubmatch(line); m != nil {
			ours[m[1]] = line
		}
	}
	differs := map[string]string{
		"contention-profiling": "costs time at every lock",
		"feature-gates":        "text",
		"v":                    "0 is upstream's, too",
	}
	others := []string{"", "false", "0", "[]", "0s"} // values that a help text leaves out
	for _, set := range options.NewOptions().Flags.FlagSets {
		set.VisitAll(func(f *pflag.Flag) {
			line, ok := ours[f.Name]
			if !ok {
				t.Errorf("--%s is missing", f.Name)
				return
			}
			if differs[f.Name] != "" || strings.Contains(line, "no effect: ") || slices.Contains(others, f.DefValue) {
				return
			}
			if want := "(default " + f.DefValue + ")"; !strings.Contains(strings.ReplaceAll(line, `"`, ""), want) {
				t.Errorf("--%s: want %s\n%s", f.Name, want, line)
			}
		})
	}
}

// The components' commands register the gates of the log when they are loaded. It is not possible after the first
// flags.
func init() { utilruntime.Must(logsapi.AddFeatureGates(utilfeature.DefaultMutableFeatureGate)) }

// TestFeatureGates checks that our table of feature gates is upstream's.
func TestFeatureGates(t *testing.T) {
	options.NewOptions() // registers them, but those of the log
	ours := featuregate.All()
	for name, spec := range utilfeature.DefaultMutableFeatureGate.GetAll() {
		maturity := string(spec.PreRelease)
		if maturity == "" {
			maturity = "GA"
		}
		want := featuregate.Gate{Name: string(name), On: spec.Default, Locked: spec.LockToDefault, Maturity: maturity}
		if ours[string(name)] != want {
			t.Errorf("%s: %+v, want %+v", name, ours[string(name)], want)
		}
		delete(ours, string(name))
	}
	for name := range ours {
		t.Errorf("%s: upstream has none", name)
	}
}
