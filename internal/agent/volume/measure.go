package volume

import (
	"cmp"
	"context"
	"io"
	"os"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"github.com/plimsoll-dev/plimsoll/internal/agent/poddir"
	"github.com/plimsoll-dev/plimsoll/internal/agent/volumestats"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
	core "github.com/plimsoll-dev/plimsoll/internal/core/volumestats"
)

// Plugins are named in metrics as in the kubelet. Where the name of a plugin differs from the name of its kind of
// volume in the API, it is here.
const (
	pluginPrefix   = "kubernetes.io/"
	pluginHostPath = "host-path"
	pluginLocal    = "local-volume"
	pluginNFS      = "nfs"
	pluginCSI      = "csi:" // and the driver's name
)

// pluginOf returns the name of the plugin of a volume: kubernetes.io/secret. What is behind a claim is known once it
// was found.
func pluginOf(s *podState, v *corev1.Volume) string {
	if _, ok := usesClaim(s.pod, v); ok {
		if c, found := s.claims[v.Name]; found {
			return pluginPrefix + c.plugin
		}
		return pluginPrefix + "persistent-claim"
	}
	k, _ := kindOf(v)
	switch {
	case v.HostPath != nil:
		return pluginPrefix + pluginHostPath
	case v.CSI != nil:
		return pluginPrefix + pluginCSI + v.CSI.Driver
	case k.dir == poddir.CSI: // migrated: the driver is known once it was asked
		return pluginPrefix + cmp.Or(s.claims[v.Name].plugin, nameOfKind(v))
	case k.dir == "":
		return pluginPrefix + nameOfKind(v)
	}
	return strings.Replace(k.dir, "~", "/", 1) // kubernetes.io~secret, as in paths
}

// measure measures an operation on a volume that began then, until now.
func (k *Manager) measure(plugin, operation string, begun time.Time, err error) {
	if k.Took != nil {
		k.Took(plugin, operation, time.Since(begun), err)
	}
}

var (
	totalVolumes = prometheus.NewDesc("volume_manager_total_volumes",
		"Volumes of the node's pods, by plugin; state is desired_state_of_world or actual_state_of_world (set up)",
		[]string{"plugin_name", "state"}, nil)
)

// Describe implements prometheus.Collector.
func (k *Manager) Describe(out chan<- *prometheus.Desc) { out <- totalVolumes }

// Collect implements prometheus.Collector. A pod that is being worked on is left out: its volumes may take long.
func (k *Manager) Collect(out chan<- prometheus.Metric) {
	type count struct{ plugin, state string }
	counts := map[count]int{}
	k.mu.Lock()
	states := make([]*podState, 0, len(k.byPod))
	for _, s := range k.byPod {
		states = append(states, s)
	}
	k.mu.Unlock()
	for _, s := range states {
		if !s.mu.TryLock() {
			continue
		}
		if s.pod != nil && !s.gone {
			for i := range s.pod.Spec.Volumes {
				v := &s.pod.Spec.Volumes[i]
				plugin := pluginOf(s, v)
				counts[count{plugin, "desired_state_of_world"}]++
				if s.ready[v.Name] {
					counts[count{plugin, "actual_state_of_world"}]++
				}
			}
		}
		s.mu.Unlock()
	}
	for c, n := range counts {
		out <- prometheus.MustNewConstMetric(totalVolumes, prometheus.GaugeValue, float64(n), c.plugin, c.state)
	}
}

// askAbout has it asked in the background how full a volume is that was set up, if it is not measured with the pod's
// own files (agent/stats).
func (k *Manager) askAbout(s *podState, v *corev1.Volume) {
	c := s.claims[v.Name]
	if k.Usage == nil || c.usage.ask == nil {
		return
	}
	claim, _ := usesClaim(s.pod, v)
	k.Usage.Have(volumestats.Volume{
		Pod:    s.pod,
		Name:   v.Name,
		Claim:  claim,
		Source: c.usage.source,
		Kind:   c.usage.kind,
		Ask:    c.usage.ask,
	})
}

// usageAt asks the kernel how full a volume is, about its file system as a whole, also where it is shared with others
// (as the kubelet does), or about its device. The path may lead to a server that is away, on which only this volume
// waits.
func usageAt(path string, block bool) usage {
	ask := func(context.Context) (core.Usage, error) { return fileSystemUsage(path) }
	if block {
		ask = func(context.Context) (core.Usage, error) { return deviceUsage(path) }
	}
	return usage{source: "path " + path, kind: volumestats.StatFS, ask: ask}
}

func fileSystemUsage(path string) (core.Usage, error) {
	var s unix.Statfs_t
	if err := unix.Statfs(path, &s); err != nil {
		return core.Usage{}, &os.PathError{Op: "statfs", Path: path, Err: err}
	}
	size := unit.Bytes(s.Frsize)
	return core.Usage{
		Capacity:   unit.Bytes(s.Blocks) * size,
		Available:  unit.Bytes(s.Bavail) * size,
		Used:       unit.Bytes(s.Blocks-s.Bfree) * size,
		Inodes:     int64(s.Files),
		InodesFree: int64(s.Ffree),
		InodesUsed: int64(s.Files - s.Ffree),
	}, nil
}

// deviceUsage returns the size of a device, which is all that the kernel knows.
func deviceUsage(path string) (core.Usage, error) {
	device, err := os.Open(path)
	if err != nil {
		return core.Usage{}, err
	}
	defer device.Close()
	size, err := device.Seek(0, io.SeekEnd)
	return core.Usage{Capacity: unit.Bytes(size)}, err
}
