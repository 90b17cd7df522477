package kubeletconfig

import (
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
	kubeletconfigv1beta1 "k8s.io/kubelet/config/v1beta1"

	"github.com/plimsoll-dev/plimsoll/internal/core/allocatable"
	"github.com/plimsoll-dev/plimsoll/internal/core/eviction"
)

// Eviction translates the parts of a loaded configuration that concern eviction.
func Eviction(c *kubeletconfigv1beta1.KubeletConfiguration) (eviction.Config, error) {
	var p problems
	out := eviction.Config{
		Thresholds:   evictionThresholds(c, &p),
		Transition:   c.EvictionPressureTransitionPeriod.Duration,
		SoftGraceMax: time.Duration(c.EvictionMaxPodGracePeriod) * time.Second,
		ImagesLow:    int64(*c.ImageGCLowThresholdPercent),
		LocalStorage: *c.LocalStorageCapacityIsolation,
	}
	if len(p) > 0 {
		return eviction.Config{}, p.err()
	}
	return out, nil
}

// evictionThresholds reads the four fields about thresholds. It returns the hard thresholds, the soft thresholds, and,
// when enforceNodeAllocatable includes pods, the hard memory thresholds again for what all pods use together. Each
// group is sorted by signal.
func evictionThresholds(c *kubeletconfigv1beta1.KubeletConfiguration, p *problems) []eviction.Threshold {
	hard, soft := parseThresholds("evictionHard", c.EvictionHard, p), parseThresholds("evictionSoft", c.EvictionSoft, p)
	graces, reclaims := parseGracePeriods(c.EvictionSoftGracePeriod, p), parseReclaims(c.EvictionMinimumReclaim, p)
	var out []eviction.Threshold
	for _, signal := range slices.Sorted(maps.Keys(hard)) {
		t := hard[signal]
		t.Reclaim = reclaims[signal]
		out = append(out, t)
	}
	for _, signal := range slices.Sorted(maps.Keys(soft)) {
		t := soft[signal]
		t.Reclaim = reclaims[signal]
		if _, given := c.EvictionSoftGracePeriod[string(signal)]; !given {
			p.add("evictionSoft."+string(signal), c.EvictionSoft[string(signal)], "needs evictionSoftGracePeriod."+
				string(signal))
		}
		t.Grace = graces[signal]
		out = append(out, t)
	}
	if slices.Contains(c.EnforceNodeAllocatable, enforcePods) {
		for _, t := range out {
			if t.Signal == allocatable.MemoryAvailable && t.IsHard() {
				t.Signal = allocatable.AllocatableMemory
				out = append(out, t)
			}
		}
	}
	return out
}

// eachSignal calls each for the entries of a map, sorted by signal, and adds names that are not signals to p.
func eachSignal(path string, list map[string]string, p *problems,
	each func(signal allocatable.Signal, path, text string)) {
	for _, name := range slices.Sorted(maps.Keys(list)) {
		if !slices.Contains(allocatable.Signals(), allocatable.Signal(name)) {
			p.add(path+"."+name, list[name], "is not an eviction signal")
			continue
		}
		each(allocatable.Signal(name), path+"."+name, list[name])
	}
}

// parseThresholds reads evictionHard or evictionSoft. 0% and 100% mean that there is no threshold.
func parseThresholds(path string, list map[string]string, p *problems) map[allocatable.Signal]eviction.Threshold {
	out := map[allocatable.Signal]eviction.Threshold{}
	eachSignal(path, list, p, func(signal allocatable.Signal, path, text string) {
		if text == "0%" || text == "100%" {
			return
		}
		value, printed, err := parseValue(text)
		if err != "" || value == (allocatable.Threshold{}) && printed != "" {
			p.add(path, text, "want a quantity above zero like 100Mi, or a percentage from 0% to 100%")
			return
		}
		out[signal] = eviction.Threshold{Signal: signal, Value: value, Text: printed}
	})
	return out
}

// parseReclaims reads evictionMinimumReclaim. A quantity of zero means that there is none.
func parseReclaims(list map[string]string, p *problems) map[allocatable.Signal]allocatable.Threshold {
	out := map[allocatable.Signal]allocatable.Threshold{}
	eachSignal("evictionMinimumReclaim", list, p, func(signal allocatable.Signal, path, text string) {
		value, printed, err := parseValue(text)
		if err != "" || value.Share == 0 && printed == "" {
			p.add(path, text, "want a quantity like 100Mi, or a percentage above 0% up to 100%")
			return
		}
		out[signal] = value
	})
	return out
}

// parseGracePeriods reads evictionSoftGracePeriod.
func parseGracePeriods(list map[string]string, p *problems) map[allocatable.Signal]time.Duration {
	out := map[allocatable.Signal]time.Duration{}
	eachSignal("evictionSoftGracePeriod", list, p, func(signal allocatable.Signal, path, text string) {
		d, err := time.ParseDuration(text)
		if err != nil || d < 0 {
			p.add(path, text, "want a duration, like 90s")
			return
		}
		out[signal] = d
	})
	return out
}

// parseValue reads a quantity or a percentage. printed is the quantity as it is printed; it is empty for a percentage.
// problem says what is wrong; empty: nothing.
func parseValue(text string) (value allocatable.Threshold, printed, problem string) {
	if strings.HasSuffix(text, "%") {
		value, err := allocatable.ParseShare(text)
		if err != nil {
			return allocatable.Threshold{}, "", err.Error()
		}
		return value, "", ""
	}
	quantity, err := resource.ParseQuantity(text)
	switch {
	case err != nil:
		return allocatable.Threshold{}, "", err.Error()
	case quantity.Sign() < 0:
		return allocatable.Threshold{}, "", "is negative"
	case quantity.CmpInt64(math.MaxInt64) >= 0:
		return allocatable.Threshold{}, "", "is too large"
	}
	return allocatable.Threshold{Amount: quantity.Value()}, quantity.String(), ""
}

// values returns the values of thresholds alone.
func values(all map[allocatable.Signal]eviction.Threshold) map[allocatable.Signal]allocatable.Threshold {
	out := map[allocatable.Signal]allocatable.Threshold{}
	for signal, t := range all {
		out[signal] = t.Value
	}
	return out
}
