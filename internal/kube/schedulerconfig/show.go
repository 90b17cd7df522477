package schedulerconfig

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"

	componentv1alpha1 "k8s.io/component-base/config/v1alpha1"
	schedulerv1 "k8s.io/kube-scheduler/config/v1"
	"sigs.k8s.io/yaml"
)

// parallelismDefault is upstream's default.
const parallelismDefault = 16

// fill sets upstream's defaults where the file has no value, so that the file shows the configuration in effect.
func fill(file *schedulerv1.KubeSchedulerConfiguration, c *Config) {
	file.APIVersion, file.Kind = apiVersion, kind
	orDefault(&file.Parallelism, parallelismDefault)
	orDefault(&file.PodInitialBackoffSeconds, backoffFirstDefault)
	orDefault(&file.PodMaxBackoffSeconds, backoffMaxDefault)
	orDefault(&file.PercentageOfNodesToScore, 0)
	orDefault(&file.EnableProfiling, true)
	orDefault(&file.EnableContentionProfiling, false) // upstream: true; it slows down every lock operation
	if len(file.Profiles) == 0 {
		file.Profiles = make([]schedulerv1.KubeSchedulerProfile, 1)
	}
	for i := range c.Profiles {
		file.Profiles[i].SchedulerName = &c.Profiles[i].Name
	}
}

func orDefault[T any](p **T, otherwise T) {
	if *p == nil {
		*p = &otherwise
	}
}

// Disable removes a rule from every profile.
func (c *Config) Disable(name string) {
	for i := range c.Profiles {
		p := &c.Profiles[i]
		if p.Skip == nil {
			p.Skip = map[string]bool{}
		}
		p.Skip[name] = true
	}
}

// SetElection sets the leader election in effect, which flags may have changed.
func (c *Config) SetElection(e componentv1alpha1.LeaderElectionConfiguration) {
	c.file.LeaderElection = e
}

// Profiling returns pointers to the settings for profiling and contention profiling, for flags that change them.
func (c *Config) Profiling() (profiling, contention *bool) {
	return c.file.EnableProfiling, c.file.EnableContentionProfiling
}

// ServeHTTP serves /configz as kube-scheduler does.
func (c *Config) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	text, err := json.Marshal(map[string]any{"componentconfig": c.file})
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(text)
}

// WriteTo writes the configuration in effect to a file that Load can read.
func (c *Config) WriteTo(path string) error {
	text, err := yaml.Marshal(c.file)
	if err == nil {
		err = os.WriteFile(path, text, 0o600)
	}
	if err != nil {
		return fmt.Errorf("write scheduler configuration: %s: %w", path, err)
	}
	return nil
}
