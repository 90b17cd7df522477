// Package schedulerconfig reads a KubeSchedulerConfiguration (kubescheduler.config.k8s.io/v1), the file that kube-scheduler
// reads, unchanged: strictly, with upstream's defaults, all problems at once, and a warning for each setting that has no
// effect here.
//
// # Model
//
// Load decodes the file field by field, checks it, and compiles each profile to a placement.Profile: which filters judge,
// how scores weigh, and the arguments of plugins. Plugins are the in-tree ones of kube-scheduler 1.36. multiPoint is
// applied to the default set first, then filter, score and postFilter, as upstream does; the other extension points may
// only repeat what these say, since a rule here is one thing, not five callbacks.
//
// # What it does not do
//
// Extenders, out-of-tree plugins, dynamic resource allocation and gang scheduling are refused where they are asked for.
// percentageOfNodesToScore and parallelism change nothing: every node is considered. It reads no flags.
package schedulerconfig

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	componentv1alpha1 "k8s.io/component-base/config/v1alpha1"
	schedulerv1 "k8s.io/kube-scheduler/config/v1"
	utiljson "sigs.k8s.io/json"
	"sigs.k8s.io/yaml"

	"github.com/plimsoll-dev/plimsoll/internal/core/placement"
)

// Config is what a file says, with defaults.
type Config struct {
	// Profiles by the schedulerName of the pods that they place. At least one.
	Profiles []placement.Profile
	// BackoffFirst and BackoffMax bound the pause after a failed attempt, which doubles.
	BackoffFirst, BackoffMax time.Duration
	// LeaderElection is nil where the file does not speak of it.
	LeaderElection *componentv1alpha1.LeaderElectionConfiguration
	// Kubeconfig is clientConnection.kubeconfig, if any.
	Kubeconfig string
}

const (
	apiVersion = "kubescheduler.config.k8s.io/v1"
	kind       = "KubeSchedulerConfiguration"

	// sizeMax bounds the file. Real ones have some KiB; a path to something else should not be read whole.
	sizeMax = 1 << 20
)

// Load reads the file at path. An empty path is an empty file: all defaults.
func Load(path string) (*Config, []string, error) {
	if path == "" {
		return Parse(nil)
	}
	info, err := os.Stat(path)
	if err != nil {
		return nil, nil, fmt.Errorf("read scheduler configuration: %w", err)
	}
	if !info.Mode().IsRegular() || info.Size() > sizeMax {
		return nil, nil, fmt.Errorf("read scheduler configuration: %s: want a regular file of at most %d bytes, found %s of %d", path, sizeMax, info.Mode().Type(), info.Size())
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, nil, fmt.Errorf("read scheduler configuration: %w", err)
	}
	c, warnings, err := Parse(data)
	if err != nil {
		return nil, nil, fmt.Errorf("read scheduler configuration: %s: %w", path, err)
	}
	return c, warnings, nil
}

// Parse reads a configuration from YAML or JSON.
func Parse(data []byte) (*Config, []string, error) {
	var p problems
	file, has, ok := decode(data, &p)
	if !ok {
		return nil, nil, p.err()
	}
	// What could be decoded is checked even when something could not, to report everything at once.
	c, warnings := compile(file, has, &p)
	if len(p) > 0 {
		return nil, nil, p.err()
	}
	return c, warnings, nil
}

// decode reads the document field by field, so that one bad field does not hide the next. has tells which there are. ok is
// false if there is no configuration at all.
func decode(data []byte, p *problems) (c *schedulerv1.KubeSchedulerConfiguration, has map[string]bool, ok bool) {
	c, has = &schedulerv1.KubeSchedulerConfiguration{}, map[string]bool{}
	if len(strings.TrimSpace(string(data))) == 0 {
		return c, has, true
	}
	doc, err := yaml.YAMLToJSONStrict(data)
	if err != nil {
		p.add("", "%s", err)
		return nil, nil, false
	}
	fields := map[string]json.RawMessage{}
	if err := json.Unmarshal(doc, &fields); err != nil {
		p.add("", "want a mapping of fields, found something else")
		return nil, nil, false
	}
	for name, want := range map[string]string{"apiVersion": apiVersion, "kind": kind} {
		if got := strings.Trim(string(fields[name]), `"`); got != want {
			p.add(name, "%.200q: want %s", got, want)
		}
		delete(fields, name)
	}
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		has[name] = true
		one, err := json.Marshal(map[string]json.RawMessage{name: fields[name]})
		if err == nil {
			// A field that does not decode stays as if it were absent, not half filled.
			_, err = utiljson.UnmarshalStrict(one, &schedulerv1.KubeSchedulerConfiguration{})
		}
		if err != nil {
			p.add(name, "%s", plain(err))
			continue
		}
		strict, err := utiljson.UnmarshalStrict(one, c)
		for _, err := range append(strict, err) {
			if err != nil {
				p.add("", "%s", plain(err))
			}
		}
	}
	return c, has, true
}

// plain removes Go's words from a decoder's error.
func plain(err error) string {
	return strings.ReplaceAll(strings.TrimPrefix(err.Error(), "json: "), "Go struct field KubeSchedulerConfiguration.", "field ")
}

// problems collects what is wrong with a file.
type problems []string

func (p *problems) add(path, format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	if path != "" {
		text = path + ": " + text
	}
	*p = append(*p, text)
}

// err returns all problems in one error, in an order that does not change from run to run.
func (p problems) err() error {
	slices.Sort(p)
	if len(p) == 1 {
		return fmt.Errorf("%s", p[0])
	}
	return fmt.Errorf("%d problems:\n  - %s", len(p), strings.Join(p, "\n  - "))
}
