// Package schedulerconfig reads a KubeSchedulerConfiguration (kubescheduler.config.k8s.io/v1), the configuration file
// of kube-scheduler. It decodes strictly, applies upstream's defaults, reports all problems at once, and warns about
// each setting that has no effect here.
//
// # Model
//
// Load decodes the file, checks it, and compiles each profile to a scheduler.Profile: filters, weights of scores, and
// the arguments of plugins. Plugins are the in-tree plugins of kube-scheduler 1.36. multiPoint is applied to the
// default set first, then filter, score and postFilter, as upstream does. The other extension points may only repeat
// what these say, because a plugin is one rule here, not several callbacks.
//
// # What it does not do
//
// Out-of-tree plugins, dynamic resource allocation and gang scheduling are refused if the file enables them.
// parallelism has no effect. percentageOfNodesToScore has no effect without Config.Compat: every node is considered.
// The package reads no flags.
package schedulerconfig

import (
	"fmt"
	"time"

	componentv1alpha1 "k8s.io/component-base/config/v1alpha1"
	schedulerv1 "k8s.io/kube-scheduler/config/v1"

	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler"
	"github.com/plimsoll-dev/plimsoll/internal/kube/configfile"
)

// Config is a configuration file with defaults.
type Config struct {
	// Profiles by the schedulerName of the pods that they place. There is at least one.
	Profiles []scheduler.Profile
	// BackoffFirst and BackoffMax are the limits of the back-off after a failed attempt, which doubles.
	BackoffFirst, BackoffMax time.Duration
	// LeaderElection is nil if the file does not have it.
	LeaderElection *componentv1alpha1.LeaderElectionConfiguration
	// Extenders, in the order in which they are asked.
	Extenders []Extender
	// Kubeconfig is clientConnection.kubeconfig, if any.
	Kubeconfig string

	file *schedulerv1.KubeSchedulerConfiguration // with defaults
}

const (
	apiVersion = "kubescheduler.config.k8s.io/v1"
	kind       = "KubeSchedulerConfiguration"
)

// Load reads the file at path. With an empty path, everything is default.
func Load(path string) (*Config, []string, error) {
	if path == "" {
		return Parse(nil)
	}
	data, err := configfile.Read(path)
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
	file, has := configfile.Decode[schedulerv1.KubeSchedulerConfiguration](data, apiVersion, kind,
		(*configfile.Problems)(&p))
	if file == nil {
		return nil, nil, p.err()
	}
	// Everything that could be decoded is checked even after decoding errors, to report all problems at once.
	c, warnings := compile(file, has, &p)
	if len(p) > 0 {
		return nil, nil, p.err()
	}
	fill(file, c)
	c.file = file
	return c, warnings, nil
}

// problems are all problems of a file.
type problems []string

func (p *problems) add(path, format string, args ...any) {
	(*configfile.Problems)(p).Add(path, fmt.Sprintf(format, args...))
}

// err returns all problems in one error.
func (p problems) err() error { return configfile.Problems(p).Err() }
