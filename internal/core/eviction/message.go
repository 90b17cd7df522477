package eviction

import (
	"fmt"
	"slices"
	"strings"

	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

// Keys of the annotations of an eviction Event, with upstream's names.
const (
	OffendingContainers      = "offending_containers"
	OffendingContainersUsage = "offending_containers_usage"
	OffendingPod             = "offending_pod"
	OffendingPodUsage        = "offending_pod_usage"
	StarvedResource          = "starved_resource"
)

// PressureMessage is the message in the status of a pod that a node under pressure rejects.
func PressureMessage(conditions []Condition) string {
	return fmt.Sprintf("The node had condition: %v. ", slices.Sorted(slices.Values(conditions)))
}

// AttemptMessage is the text of the Node's Event EvictionThresholdMet.
func AttemptMessage(r Resource) string { return "Attempting to reclaim " + string(r) }

// message returns why a pod is evicted for t, and the annotations of the Event, exactly as upstream: alerts parse them.
func (s *step) message(p Pod, t Threshold) (string, map[string]string) {
	resource, o := resourceOf(t.Signal), s.facts.Signals[t.Signal]
	quantity := t.Text
	if quantity == "" {
		quantity = unit.Bytes(t.amount(o)).String() // also for counts: upstream prints every percentage as bytes
	}
	var text strings.Builder
	fmt.Fprintf(&text, "The node was low on resource: %s. Threshold quantity: %s, available: %s. ", resource, quantity,
		printed(t.Signal, o.Available))
	annotations := map[string]string{}
	if p.Used == nil {
		return text.String(), annotations
	}
	if resource == Memory && p.LevelMemory.IsSet() {
		usage := p.Used.WorkingSet.String()
		text.WriteString(consumption("Pod", p.Name, usage, p.LevelMemory, resource))
		annotations[OffendingPod], annotations[OffendingPodUsage] = p.Name, usage
	}
	var names, usages []string
	for _, c := range p.Containers {
		usage, request, known := c.usage(resource)
		if !known || int64(usage) <= request.Value {
			continue
		}
		text.WriteString(consumption("Container", c.Name, usage.String(), request, resource))
		names, usages = append(names, c.Name), append(usages, usage.String())
	}
	annotations[OffendingContainers] = strings.Join(names, ",")
	annotations[OffendingContainersUsage] = strings.Join(usages, ",")
	annotations[StarvedResource] = string(resource)
	return text.String(), annotations
}

func consumption(kind, name, usage string, request Quantity, r Resource) string {
	return fmt.Sprintf("%s %s was using %s, request is %s, has larger consumption of %s. ", kind, name, usage, request, r)
}

// usage returns what messages compare: how much a container uses of a resource, and its request.
func (c Container) usage(r Resource) (used unit.Bytes, request Quantity, known bool) {
	switch {
	case c.Ephemeral:
	case r == Memory:
		return c.WorkingSet, c.MemoryRequest, true
	case r == Storage && c.Rootfs != nil && c.Logs != nil:
		return unit.Bytes(c.Rootfs.Bytes + c.Logs.Bytes), c.StorageRequest, true
	}
	return 0, Quantity{}, false
}
