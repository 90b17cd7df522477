package schedulerconfig

import (
	"fmt"
	"maps"
	"slices"

	schedulerv1 "k8s.io/kube-scheduler/config/v1"

	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler"
)

// role is how a plugin is supported.
type role struct {
	filters, scores, preempts bool
	// binds says that the plugin also acts before the pod is bound.
	binds bool
	// always is the reason why it cannot be disabled; empty: it can.
	always string
	// refused is the reason why it cannot be enabled; empty: it can.
	refused string
	// idle says that it is enabled by default, and has no effect here, enabled or disabled.
	idle bool
}

const (
	gangs  = "gang scheduling is not supported"
	claims = "dynamic resource allocation is not supported: pods with resource claims are refused; remove it, " +
		"or run kube-scheduler for them"
)

// known are kube-scheduler 1.36's in-tree plugins. Our own rule about NUMA nodes has the name of the out-of-tree plugin
// for them.
var known = map[string]role{
	"SchedulingGates":                 {always: "a gated pod is never placed"},
	"PrioritySort":                    {always: "pods are ordered by priority, then by time"},
	"DefaultBinder":                   {always: "nothing else binds"},
	"NodeName":                        {idle: true},
	"NodeUnschedulable":               {filters: true},
	"TaintToleration":                 {filters: true, scores: true},
	"NodeAffinity":                    {filters: true, scores: true},
	"NodePorts":                       {filters: true},
	"NodeResourcesFit":                {filters: true, scores: true},
	"VolumeRestrictions":              {filters: true},
	"NodeVolumeLimits":                {filters: true},
	"VolumeBinding":                   {filters: true, binds: true},
	"VolumeZone":                      {filters: true},
	"PodTopologySpread":               {filters: true, scores: true},
	"InterPodAffinity":                {filters: true, scores: true},
	"DynamicResources":                {refused: claims},
	"DefaultPreemption":               {preempts: true},
	"NodeResourcesBalancedAllocation": {scores: true},
	"ImageLocality":                   {scores: true},
	"NodeDeclaredFeatures":            {filters: true},
	"NodeResourceTopologyMatch":       {filters: true},
	"GangScheduling":                  {refused: gangs},
	"TopologyPlacementGenerator":      {refused: gangs},
	"PodGroupPodsCount":               {refused: gangs},
}

// usable returns the names of plugins that may be enabled, sorted.
func usable() (names []string) {
	for name, r := range known {
		if r.refused == "" {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// weightMax limits the weight of one plugin. Chosen: sums of scores then fit into 32 bits, and a plugin with a million
// times the weight of another already decides alone.
const weightMax = 1_000_000

// point is an extension point of the file.
type point struct {
	name string
	set  func(*schedulerv1.Plugins) *schedulerv1.PluginSet
}

// points are all extension points except multiPoint; those that decide come first.
var points = []point{
	{"filter", func(p *schedulerv1.Plugins) *schedulerv1.PluginSet { return &p.Filter }},
	{"score", func(p *schedulerv1.Plugins) *schedulerv1.PluginSet { return &p.Score }},
	{"postFilter", func(p *schedulerv1.Plugins) *schedulerv1.PluginSet { return &p.PostFilter }},
	{"preEnqueue", func(p *schedulerv1.Plugins) *schedulerv1.PluginSet { return &p.PreEnqueue }},
	{"queueSort", func(p *schedulerv1.Plugins) *schedulerv1.PluginSet { return &p.QueueSort }},
	{"preFilter", func(p *schedulerv1.Plugins) *schedulerv1.PluginSet { return &p.PreFilter }},
	{"preScore", func(p *schedulerv1.Plugins) *schedulerv1.PluginSet { return &p.PreScore }},
	{"reserve", func(p *schedulerv1.Plugins) *schedulerv1.PluginSet { return &p.Reserve }},
	{"permit", func(p *schedulerv1.Plugins) *schedulerv1.PluginSet { return &p.Permit }},
	{"preBind", func(p *schedulerv1.Plugins) *schedulerv1.PluginSet { return &p.PreBind }},
	{"bind", func(p *schedulerv1.Plugins) *schedulerv1.PluginSet { return &p.Bind }},
	{"postBind", func(p *schedulerv1.Plugins) *schedulerv1.PluginSet { return &p.PostBind }},
	{"placementGenerate", func(p *schedulerv1.Plugins) *schedulerv1.PluginSet { return &p.PlacementGenerate }},
	{"placementScore", func(p *schedulerv1.Plugins) *schedulerv1.PluginSet { return &p.PlacementScore }},
}

// compilePlugins applies the plugin sets of a profile to out, which has the defaults.
func compilePlugins(path string, file *schedulerv1.Plugins, out *scheduler.Profile, p *problems) {
	if file == nil {
		return
	}
	checkSet(path+".multiPoint", &file.MultiPoint, p)
	for _, at := range points {
		checkSet(path+"."+at.name, at.set(file), p)
	}
	on := map[string]int64{} // enabled by default and multiPoint, with weights
	for name, r := range known {
		if r.refused == "" {
			on[name] = out.Weights[name]
		}
	}
	apply(&file.MultiPoint, on, func(name string) bool { return true })
	out.Skip, out.Weights = map[string]bool{}, map[string]int64{}
	filter := maps.Clone(on)
	score := maps.Clone(on)
	postFilter := maps.Clone(on)
	apply(&file.Filter, filter, func(name string) bool { return known[name].filters })
	apply(&file.Score, score, func(name string) bool { return known[name].scores })
	apply(&file.PostFilter, postFilter, func(name string) bool { return known[name].preempts })
	for name, r := range known {
		if _, stays := filter[name]; r.filters && !stays {
			out.Skip[name] = true
		}
		if weight, stays := score[name]; r.scores && stays {
			out.Weights[name] = weight
		}
	}
	_, stays := postFilter["DefaultPreemption"]
	out.NoPreemption = !stays
	checkRepetition(path, file, out, p)
}

// apply disables, then enables plugins. A score plugin that is enabled without a weight gets weight 1, not its default.
func apply(set *schedulerv1.PluginSet, on map[string]int64, matters func(name string) bool) {
	for _, d := range set.Disabled {
		if d.Name == "*" {
			maps.DeleteFunc(on, func(name string, _ int64) bool { return known[name].always == "" && matters(name) })
			continue
		}
		delete(on, d.Name)
	}
	for _, e := range set.Enabled {
		if weight := int64(valueOr(e.Weight, 0)); weight != 0 {
			on[e.Name] = weight
		} else if known[e.Name].scores {
			on[e.Name] = 1 // upstream's weight if none is given
		} else {
			on[e.Name] = 0
		}
	}
}

// checkSet checks the names and weights of one set.
func checkSet(path string, set *schedulerv1.PluginSet, p *problems) {
	seen := map[string]bool{}
	for i, e := range set.Enabled {
		at := fmt.Sprintf("%s.enabled[%d]", path, i)
		r, ok := known[e.Name]
		switch {
		case !ok:
			p.add(at, "%.200q: unknown plugin: out-of-tree plugins are not supported; want one of %v", e.Name, usable())
		case r.refused != "":
			p.add(at, "%s: %s", e.Name, r.refused)
		case seen[e.Name]:
			p.add(at, "%s: is listed twice", e.Name)
		}
		if w := valueOr(e.Weight, 0); w < 0 || w > weightMax {
			p.add(at+".weight", "%d: want 1 to %d; 0 counts as 1", w, weightMax)
		}
		seen[e.Name] = true
	}
	for i, d := range set.Disabled {
		at := fmt.Sprintf("%s.disabled[%d]", path, i)
		r, ok := known[d.Name]
		switch {
		case d.Name == "*":
		case !ok:
			p.add(at, "%.200q: unknown plugin; want one of %v, or \"*\"", d.Name, usable())
		case r.always != "" && !seen[d.Name]:
			p.add(at, "%s: cannot be disabled: %s", d.Name, r.always)
		}
	}
}

// checkRepetition refuses a file that disables one callback of a plugin and leaves its others enabled.
func checkRepetition(path string, file *schedulerv1.Plugins, out *scheduler.Profile, p *problems) {
	for _, at := range []struct {
		name  string
		set   *schedulerv1.PluginSet
		rules func(name string) bool
		main  string
	}{
		{"preFilter", &file.PreFilter, func(name string) bool { return known[name].filters && !out.Skip[name] }, "filter"},
		{"preScore", &file.PreScore, func(name string) bool { return out.Weights[name] > 0 }, "score"},
		{"reserve", &file.Reserve, func(name string) bool { return known[name].binds && !out.Skip[name] }, "filter"},
		{"preBind", &file.PreBind, func(name string) bool { return known[name].binds && !out.Skip[name] }, "filter"},
	} {
		for i, d := range at.set.Disabled {
			names := []string{d.Name}
			if d.Name == "*" {
				names = slices.Sorted(maps.Keys(known))
			}
			for _, name := range names {
				again := slices.ContainsFunc(at.set.Enabled, func(e schedulerv1.Plugin) bool { return e.Name == name })
				if at.rules(name) && !again {
					p.add(fmt.Sprintf("%s.%s.disabled[%d]", path, at.name, i),
						"%s: the plugin's %s cannot work without it: disable both, or neither", name, at.main)
				}
			}
		}
	}
}
