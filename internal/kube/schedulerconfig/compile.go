package schedulerconfig

import (
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	schedulerv1 "k8s.io/kube-scheduler/config/v1"

	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler"
)

// Upstream's defaults of podInitialBackoffSeconds and podMaxBackoffSeconds, in seconds.
const (
	backoffFirstDefault = 1
	backoffMaxDefault   = 10
	// bindTimeoutDefault is upstream's default of VolumeBindingArgs.bindTimeoutSeconds, in seconds. bindTimeoutMax is a
	// week. Chosen: a volume that takes longer will not be bound.
	bindTimeoutDefault = 600
	bindTimeoutMax     = 7 * 24 * 60 * 60
	// backoffLongest limits both fields, in seconds: a day. With a longer pause, a pod would in effect never be tried
	// again.
	backoffLongest = 24 * 60 * 60
)

// compile checks the file and converts it to a Config.
func compile(file *schedulerv1.KubeSchedulerConfiguration, has map[string]bool, p *problems) (*Config, []string) {
	c := &Config{Kubeconfig: file.ClientConnection.Kubeconfig}
	var warnings []string
	warn := func(path, text string) { warnings = append(warnings, path+": "+text) }

	first, most := valueOr(file.PodInitialBackoffSeconds, backoffFirstDefault), valueOr(file.PodMaxBackoffSeconds,
		backoffMaxDefault)
	if first <= 0 || first > backoffLongest {
		p.add("podInitialBackoffSeconds", "%d: want 1 to %d", first, backoffLongest)
	}
	if most < first || most > backoffLongest {
		p.add("podMaxBackoffSeconds", "%d: want podInitialBackoffSeconds (%d) to %d", most, first, backoffLongest)
	}
	c.BackoffFirst, c.BackoffMax = time.Duration(first)*time.Second, time.Duration(most)*time.Second

	if n := valueOr(file.Parallelism, parallelismDefault); n <= 0 {
		p.add("parallelism", "%d: want a number above 0", n)
	} else if has["parallelism"] {
		warn("parallelism", "has no effect: a decision computes only what has changed, in one goroutine")
	}
	checkPercentage(percentageField, file.PercentageOfNodesToScore, p, warn)
	if has["leaderElection"] {
		c.LeaderElection = &file.LeaderElection
		if lock := file.LeaderElection.ResourceLock; lock != "" && lock != "leases" {
			p.add("leaderElection.resourceLock", "%.200q: want leases", lock)
		}
	}
	if cc := file.ClientConnection; cc.QPS != 0 || cc.Burst != 0 || cc.ContentType != "" || cc.AcceptContentTypes != "" {
		warn("clientConnection",
			"only kubeconfig has an effect: requests are bounded by --binds-in-flight and by the server, and are protobuf")
	}
	if has["delayCacheUntilActive"] {
		warn("delayCacheUntilActive", "has no effect: only the process that leads keeps a cache")
	}
	compileProfiles(file, c, p, warn)
	compileExtenders(file.Extenders, c, p)
	return c, warnings
}

func compileProfiles(file *schedulerv1.KubeSchedulerConfiguration, c *Config, p *problems,
	warn func(path, text string)) {
	profiles := file.Profiles
	if len(profiles) == 0 {
		profiles = []schedulerv1.KubeSchedulerProfile{{}}
	}
	named := map[string]int{}
	for i := range profiles {
		path := fmt.Sprintf("profiles[%d]", i)
		name := valueOr(profiles[i].SchedulerName, corev1.DefaultSchedulerName)
		if profiles[i].SchedulerName == nil && len(profiles) > 1 || name == "" {
			p.add(path+".schedulerName",
				"required where there are several profiles: the spec.schedulerName of the pods to place")
		}
		if other, twice := named[name]; twice {
			p.add(path+".schedulerName", "%q: profiles[%d] has that name already", name, other)
		}
		named[name] = i
		checkPercentage(path+"."+percentageField, profiles[i].PercentageOfNodesToScore, p, warn)
		out := scheduler.DefaultProfile()
		out.Sample.Percent = int(valueOr(profiles[i].PercentageOfNodesToScore, valueOr(file.PercentageOfNodesToScore, 0)))
		out.Name = name
		compilePlugins(path+".plugins", profiles[i].Plugins, &out, p)
		compileArgs(path+".pluginConfig", profiles[i].PluginConfig, &out, p, warn)
		c.Profiles = append(c.Profiles, out)
	}
}

const percentageField = "percentageOfNodesToScore"

// Compat makes every profile sample nodes as upstream does, by percentageOfNodesToScore, and returns the warnings that
// remain. A file alone never causes that, because percentageOfNodesToScore is set by default.
func (c *Config) Compat(warnings []string) []string {
	for i := range c.Profiles {
		c.Profiles[i].Sample.On = true
	}
	return slices.DeleteFunc(warnings, func(w string) bool { return strings.Contains(w, percentageField+": ") })
}

func checkPercentage(path string, percent *int32, p *problems, warn func(path, text string)) {
	switch {
	case percent == nil:
	case *percent < 0 || *percent > 100:
		p.add(path, "%d: want 0 to 100", *percent)
	case *percent != 100:
		warn(path, "has no effect: every node is scored")
	}
}

// valueOr returns what p points to, or the default if p is nil.
func valueOr[T any](p *T, otherwise T) T {
	if p == nil {
		return otherwise
	}
	return *p
}
