// Package kubeletconfig reads a KubeletConfiguration (kubelet.config.k8s.io/v1beta1), the file that the kubelet reads,
// unchanged. It decodes strictly, uses upstream's defaults, reports all problems at once, and warns of each field that
// is set and that Plimsoll does not honour yet.
//
// # Model
//
// Load decodes, checks, sets defaults and resolves relative paths, in this order, and returns the upstream type.
// fields.go has one entry for every field of that type: honoured, honoured for some values, or not honoured, with what
// happens instead. A test walks the type and fails for a field without an entry, so that no upgrade can add a field
// that is silently ignored. A change that makes Plimsoll honour a field also changes its entry.
//
// # What it does not do
//
// It reads nothing of the machine: whether a reservation fits or a cgroup exists is checked elsewhere. It knows no
// flags; kubeletflags translates them to Settings, which LoadFrom puts on top of the file and its drop-ins. Of the
// feature gates only those in gates.go switch something; the others have upstream's default.
package kubeletconfig

import (
	"fmt"
	"path/filepath"
	"reflect"

	kubeletconfigv1beta1 "k8s.io/kubelet/config/v1beta1"

	"github.com/plimsoll-dev/plimsoll/internal/kube/configfile"
)

const (
	apiVersion = "kubelet.config.k8s.io/v1beta1"
	kind       = "KubeletConfiguration"
)

// Load reads the file at path. An empty path means all defaults.
func Load(path string) (*kubeletconfigv1beta1.KubeletConfiguration, []string, error) {
	if path == "" {
		return Parse(nil, "")
	}
	data, err := configfile.Read(path)
	if err != nil {
		return nil, nil, fmt.Errorf("read kubelet configuration: %w", err)
	}
	dir, err := filepath.Abs(filepath.Dir(path))
	if err != nil {
		return nil, nil, fmt.Errorf("read kubelet configuration: %w", err)
	}
	c, warnings, err := Parse(data, dir)
	if err != nil {
		return nil, nil, fmt.Errorf("read kubelet configuration: %s: %w", path, err)
	}
	return c, warnings, nil
}

// Parse reads a configuration from YAML or JSON. Relative paths in it are relative to dir.
func Parse(data []byte, dir string) (*kubeletconfigv1beta1.KubeletConfiguration, []string, error) {
	var p problems
	c, _ := configfile.Decode[kubeletconfigv1beta1.KubeletConfiguration](data, apiVersion, kind,
		(*configfile.Problems)(&p))
	if c == nil {
		return nil, nil, p.err()
	}
	c.APIVersion, c.Kind = apiVersion, kind
	// What could be decoded is checked even if other parts could not, so that all problems are reported at once.
	asked := c.DeepCopy()
	defaults(c)
	thresholdDefaults(c)
	validate(c, &p)
	if len(p) > 0 {
		return nil, nil, p.err()
	}
	warnings := unhonoured(asked, c)
	resolvePaths(c, dir)
	return c, warnings, nil
}

// resolvePaths makes paths absolute, as the kubelet does.
func resolvePaths(c *kubeletconfigv1beta1.KubeletConfiguration, dir string) {
	for _, path := range paths(c) {
		if *path != "" && !filepath.IsAbs(*path) {
			*path = filepath.Join(dir, *path)
		}
	}
}

// paths returns the fields that are paths of files.
func paths(c *kubeletconfigv1beta1.KubeletConfiguration) []*string {
	all := []*string{
		&c.StaticPodPath, &c.Authentication.X509.ClientCAFile, &c.TLSCertFile, &c.TLSPrivateKeyFile,
		&c.VolumePluginDir, &c.PodLogsDir,
	}
	if c.ResolverConfig != nil {
		all = append(all, c.ResolverConfig)
	}
	return all
}

// problems collects what is wrong with a configuration.
type problems []string

// add adds the problem that the value at path breaks a rule.
func (p *problems) add(path string, value any, rule string) {
	text := rule
	if value != nil {
		if v := reflect.ValueOf(value); v.Kind() == reflect.String {
			text = fmt.Sprintf("%.200q: %s", value, rule)
		} else {
			text = fmt.Sprintf("%.200s: %s", fmt.Sprint(value), rule)
		}
	}
	(*configfile.Problems)(p).Add(path, text)
}

// err returns all problems in one error.
func (p problems) err() error { return configfile.Problems(p).Err() }
