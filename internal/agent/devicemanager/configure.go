package devicemanager

import (
	"context"
	"log/slog"
	"maps"
	"slices"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/plimsoll-dev/plimsoll/internal/core/numa"
)

// Configure adds to the configuration of a container that is about to be created what its assigned devices need, and
// the annotation by which a later agent recovers them. Plugins with PreStartRequired are called. An environment
// variable, mount or annotation of the pod itself takes precedence over a plugin's; of two plugins the one takes
// precedence whose resource name sorts first.
//
// If the needs are not known, the plugins are asked: an agent died between the admission and the container's first
// start.
func (k *Manager) Configure(ctx context.Context, uid, container string, assigned []numa.Devices,
	config *runtimeapi.ContainerConfig) error {
	if len(assigned) == 0 {
		return nil
	}
	allocations := k.Allocations(uid, container)
	if !sameDevices(allocations, assigned) {
		var err error
		if allocations, err = k.needs(ctx, assigned); err != nil {
			return err
		}
		k.store(uid, container, allocations)
	}
	for _, h := range allocations {
		if err := k.PreStart(ctx, h.Resource, h.IDs); err != nil {
			return err
		}
	}
	text, err := write(allocations)
	if err != nil {
		return err
	}
	addNeeds(config, allocations)
	config.Annotations[Annotation] = text
	return nil
}

// sameDevices reports whether allocations and assigned are the same devices.
func sameDevices(allocations []Allocation, assigned []numa.Devices) bool {
	if len(allocations) != len(assigned) {
		return false
	}
	for _, d := range assigned {
		if !slices.ContainsFunc(allocations, func(h Allocation) bool {
			return h.Resource == d.Resource && slices.Equal(h.IDs,
				d.IDs)
		}) {
			return false
		}
	}
	return true
}

// addNeeds merges the needs of several resources. It puts mounts and variables before the pod's own, so that the pod's
// take precedence.
func addNeeds(config *runtimeapi.ContainerConfig, allocations []Allocation) {
	var envs []*runtimeapi.KeyValue
	var mounts []*runtimeapi.Mount
	env := merging("environment variable")
	path := merging("mount")
	node := merging("device node")
	note := merging("annotation")
	cdi := merging("CDI device")
	for _, h := range allocations {
		for _, key := range slices.Sorted(maps.Keys(h.Needs.GetEnvs())) {
			if value := h.Needs.Envs[key]; env.add(h.Resource, key, value) {
				envs = append(envs, &runtimeapi.KeyValue{Key: key, Value: []byte(value)})
			}
		}
		for _, m := range h.Needs.GetMounts() {
			if path.add(h.Resource, m.ContainerPath, m.HostPath) {
				mounts = append(mounts, &runtimeapi.Mount{ContainerPath: m.ContainerPath, HostPath: m.HostPath,
					Readonly: m.ReadOnly})
			}
		}
		for _, d := range h.Needs.GetDevices() {
			if node.add(h.Resource, d.ContainerPath, d.HostPath) {
				config.Devices = append(config.Devices, &runtimeapi.Device{ContainerPath: d.ContainerPath, HostPath: d.HostPath,
					Permissions: d.Permissions})
			}
		}
		for _, key := range slices.Sorted(maps.Keys(h.Needs.GetAnnotations())) {
			if _, ours := config.Annotations[key]; !ours && note.add(h.Resource, key, h.Needs.Annotations[key]) {
				config.Annotations[key] = h.Needs.Annotations[key]
			}
		}
		for _, d := range h.Needs.GetCdiDevices() {
			if cdi.add(h.Resource, d.Name, "") {
				config.CDIDevices = append(config.CDIDevices, &runtimeapi.CDIDevice{Name: d.Name})
			}
		}
	}
	config.Envs = append(envs, config.Envs...)
	config.Mounts = append(mounts, config.Mounts...)
}

// merge collects the settings of one kind that plugins give to a container.
type merge struct {
	what string
	seen map[string]string
}

func merging(what string) merge { return merge{what, map[string]string{}} }

// add reports whether a setting is new. If it exists with another value, it stays as it is.
func (m merge) add(resource, key, value string) bool {
	old, exists := m.seen[key]
	if exists && old != value {
		slog.Warn("device plugins disagree; the value of the first one is used", "what", m.what, "name", key, "first", old,
			"resource", resource, "says", value)
	}
	if !exists {
		m.seen[key] = value
	}
	return !exists
}
