package schedulerconfig

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	schedulerv1 "k8s.io/kube-scheduler/config/v1"
	utiljson "sigs.k8s.io/json"

	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler"
	"github.com/plimsoll-dev/plimsoll/internal/kube/configfile"
	"github.com/plimsoll-dev/plimsoll/internal/kube/translate"
)

// compileArgs checks the arguments of plugins and sets them in the profile.
func compileArgs(path string, list []schedulerv1.PluginConfig, out *scheduler.Profile, p *problems,
	warn func(path, text string)) {
	seen := map[string]bool{}
	for i := range list {
		at := fmt.Sprintf("%s[%d]", path, i)
		name := list[i].Name
		if seen[name] {
			p.add(at, "%.200q: is listed twice: each plugin has arguments once", name)
			continue
		}
		seen[name] = true
		at += ".args"
		raw := list[i].Args.Raw
		switch name {
		case "DefaultPreemption":
			var a schedulerv1.DefaultPreemptionArgs
			if decodeArgs(at, name, raw, &a, p) {
				if n := valueOr(a.MinCandidateNodesPercentage, 10); n < 0 || n > 100 {
					p.add(at+".minCandidateNodesPercentage", "%d: want 0 to 100", n)
				}
				if n := valueOr(a.MinCandidateNodesAbsolute, 100); n < 0 {
					p.add(at+".minCandidateNodesAbsolute", "%d: want 0 or more", n)
				}
				warn(at, "has no effect: every node is considered for preemption")
			}
		case "InterPodAffinity":
			var a schedulerv1.InterPodAffinityArgs
			if decodeArgs(at, name, raw, &a, p) {
				out.HardAffinityWeight, out.IgnoreExistingPreferred = int64(valueOr(a.HardPodAffinityWeight,
					1)), a.IgnorePreferredTermsOfExistingPods
				if out.HardAffinityWeight < 0 || out.HardAffinityWeight > 100 {
					p.add(at+".hardPodAffinityWeight", "%d: want 0 to 100", out.HardAffinityWeight)
				}
			}
		case "NodeAffinity":
			var a schedulerv1.NodeAffinityArgs
			if decodeArgs(at, name, raw, &a, p) && a.AddedAffinity != nil {
				var broken []string
				out.AddedAffinity, out.AddedPreferred, broken = translate.SchedulerNodeAffinity(a.AddedAffinity)
				for _, text := range broken {
					p.add(at+".addedAffinity", "%s", text)
				}
			}
		case "NodeResourcesFit":
			var a schedulerv1.NodeResourcesFitArgs
			if decodeArgs(at, name, raw, &a, p) {
				compileFit(at, &a, out, p)
			}
		case "NodeResourcesBalancedAllocation":
			var a schedulerv1.NodeResourcesBalancedAllocationArgs
			if decodeArgs(at, name, raw, &a, p) && len(a.Resources) > 0 {
				compileBalanced(at, &a, out, p)
			}
		case "PodTopologySpread":
			var a schedulerv1.PodTopologySpreadArgs
			if decodeArgs(at, name, raw, &a, p) {
				compileSpread(at, &a, out, p)
			}
		case "VolumeBinding":
			var a schedulerv1.VolumeBindingArgs
			if decodeArgs(at, name, raw, &a, p) {
				compileVolumeBinding(at, &a, out, p)
			}
		case "DynamicResources":
			p.add(fmt.Sprintf("%s[%d].name", path, i), "%s: %s", name, claims)
		default:
			p.add(fmt.Sprintf("%s[%d].name", path, i), "%.200q: no plugin of that name takes arguments here", name)
		}
	}
}

// decodeArgs decodes raw, strictly, into a.
func decodeArgs(path, name string, raw []byte, a any, p *problems) bool {
	if len(raw) == 0 {
		return true
	}
	var head struct{ APIVersion, Kind string }
	if err := json.Unmarshal(raw, &head); err != nil {
		p.add(path, "want a mapping of fields")
		return false
	}
	if want := name + "Args"; head.Kind != "" && head.Kind != want {
		p.add(path+".kind", "%.200q: want %s", head.Kind, want)
	}
	if head.APIVersion != "" && head.APIVersion != apiVersion {
		p.add(path+".apiVersion", "%.200q: want %s", head.APIVersion, apiVersion)
	}
	strict, err := utiljson.UnmarshalStrict(raw, a)
	if err != nil {
		p.add(path, "%s", configfile.Plain(err, kind))
		return false
	}
	for _, err := range strict {
		p.add(path, "%s", configfile.Plain(err, kind))
	}
	return true
}

func compileVolumeBinding(path string, a *schedulerv1.VolumeBindingArgs, out *scheduler.Profile, p *problems) {
	seconds := valueOr(a.BindTimeoutSeconds, bindTimeoutDefault)
	if seconds < 0 || seconds > bindTimeoutMax {
		p.add(path+".bindTimeoutSeconds", "%d: want 0 to %d", seconds, bindTimeoutMax)
	}
	out.VolumeTimeout = max(time.Duration(seconds)*time.Second, 1) // a Profile's zero means the default
	if a.Shape != nil {
		p.add(path+".shape", "must be absent: scoring by storage capacity is an alpha of 1.36 and not supported")
	}
}

func compileFit(path string, a *schedulerv1.NodeResourcesFitArgs, out *scheduler.Profile, p *problems) {
	for i, name := range a.IgnoredResources {
		if bad := validation.IsQualifiedName(name); len(bad) > 0 {
			p.add(fmt.Sprintf("%s.ignoredResources[%d]", path, i), "%.200q: %s", name, strings.Join(bad, "; "))
		}
	}
	for i, name := range a.IgnoredResourceGroups {
		if bad := validation.IsQualifiedName(name); len(bad) > 0 || strings.Contains(name, "/") {
			p.add(fmt.Sprintf("%s.ignoredResourceGroups[%d]", path, i),
				"%.200q: want the part of a resource's name before the slash", name)
		}
	}
	out.IgnoredResources, out.IgnoredGroups = a.IgnoredResources, a.IgnoredResourceGroups
	s := a.ScoringStrategy
	if s == nil {
		return
	}
	path += ".scoringStrategy"
	if s.Type != "" {
		out.Strategy.Type = string(s.Type)
	}
	types := []string{scheduler.LeastAllocated, scheduler.MostAllocated, scheduler.RequestedToCapacityRatio}
	if !slices.Contains(types, out.Strategy.Type) {
		p.add(path+".type", "%.200q: want one of %v", out.Strategy.Type, types)
	}
	if len(s.Resources) > 0 {
		out.Strategy.Resources = nil
	}
	for i, r := range s.Resources {
		if r.Weight == 0 {
			r.Weight = 1
		}
		if r.Weight < 1 || r.Weight > 100 {
			p.add(fmt.Sprintf("%s.resources[%d].weight", path, i), "%d: want 1 to 100", r.Weight)
		}
		if r.Name == "" {
			p.add(fmt.Sprintf("%s.resources[%d].name", path, i), "required: the name of a resource")
		}
		out.Strategy.Resources = append(out.Strategy.Resources, scheduler.WeightedResource{Resource: r.Name,
			Weight: r.Weight})
	}
	ratio := out.Strategy.Type == scheduler.RequestedToCapacityRatio
	switch {
	case ratio && s.RequestedToCapacityRatio == nil:
		p.add(path+".requestedToCapacityRatio", "required with type %s", scheduler.RequestedToCapacityRatio)
	case ratio:
		out.Strategy.Shape = compileShape(path+".requestedToCapacityRatio.shape", s.RequestedToCapacityRatio.Shape, p)
	case s.RequestedToCapacityRatio != nil:
		p.add(path+".requestedToCapacityRatio", "has no meaning with type %s: remove it", out.Strategy.Type)
	}
}

// shapeScoreMax is the highest score of a shape's point in the file. The scheduler's own scale ends at 100.
const shapeScoreMax = 10

func compileShape(path string, shape []schedulerv1.UtilizationShapePoint, p *problems) (out []scheduler.ShapePoint) {
	if len(shape) == 0 {
		p.add(path, "required: at least one point")
	}
	for i, s := range shape {
		at := fmt.Sprintf("%s[%d]", path, i)
		if s.Utilization < 0 || s.Utilization > 100 {
			p.add(at+".utilization", "%d: want 0 to 100", s.Utilization)
		}
		if i > 0 && s.Utilization <= shape[i-1].Utilization {
			p.add(at+".utilization", "%d: want more than the point before it (%d)", s.Utilization, shape[i-1].Utilization)
		}
		if s.Score < 0 || s.Score > shapeScoreMax {
			p.add(at+".score", "%d: want 0 to %d", s.Score, shapeScoreMax)
		}
		out = append(out, scheduler.ShapePoint{Utilization: int64(s.Utilization),
			Score: int64(s.Score) * (100 / shapeScoreMax)})
	}
	return out
}

func compileBalanced(path string, a *schedulerv1.NodeResourcesBalancedAllocationArgs, out *scheduler.Profile,
	p *problems) {
	out.Balanced = nil
	for i, r := range a.Resources {
		at := fmt.Sprintf("%s.resources[%d]", path, i)
		if r.Weight != 0 && r.Weight != 1 {
			p.add(at+".weight", "%d: want 1: a balance has no weights", r.Weight)
		}
		if r.Name == "" || slices.Contains(out.Balanced, r.Name) {
			p.add(at+".name", "%.200q: want the name of a resource, each once", r.Name)
		}
		out.Balanced = append(out.Balanced, r.Name)
	}
}

func compileSpread(path string, a *schedulerv1.PodTopologySpreadArgs, out *scheduler.Profile, p *problems) {
	switch a.DefaultingType {
	case "", schedulerv1.SystemDefaulting:
		if len(a.DefaultConstraints) > 0 {
			p.add(path+".defaultingType", "%q: want %s where there are defaultConstraints", a.DefaultingType,
				schedulerv1.ListDefaulting)
		}
		return
	case schedulerv1.ListDefaulting:
	default:
		p.add(path+".defaultingType", "%.200q: want %s or %s", a.DefaultingType, schedulerv1.SystemDefaulting,
			schedulerv1.ListDefaulting)
		return
	}
	seen := map[string]bool{}
	for i := range a.DefaultConstraints {
		c, at := &a.DefaultConstraints[i], fmt.Sprintf("%s.defaultConstraints[%d]", path, i)
		if c.MaxSkew <= 0 {
			p.add(at+".maxSkew", "%d: want 1 or more", c.MaxSkew)
		}
		if bad := validation.IsQualifiedName(c.TopologyKey); len(bad) > 0 {
			p.add(at+".topologyKey", "%.200q: %s", c.TopologyKey, strings.Join(bad, "; "))
		}
		if c.WhenUnsatisfiable != corev1.DoNotSchedule && c.WhenUnsatisfiable != corev1.ScheduleAnyway {
			p.add(at+".whenUnsatisfiable", "%.200q: want %s or %s", c.WhenUnsatisfiable, corev1.DoNotSchedule,
				corev1.ScheduleAnyway)
		}
		if c.LabelSelector != nil {
			p.add(at+".labelSelector", "must be absent: the selector is that of the pod's own Services and controller")
		}
		if key := c.TopologyKey + " " + string(c.WhenUnsatisfiable); seen[key] {
			p.add(at, "%s: is listed twice", key)
		} else {
			seen[key] = true
		}
	}
	out.SystemDefaults = false
	out.DefaultSpread = translate.SchedulerDefaultSpread(a.DefaultConstraints)
}
