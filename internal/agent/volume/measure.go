package volume

import (
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
)

// Plugins are named in metrics as in the kubelet. Where the name of a plugin differs from the name of its kind of
// volume in the API, it is here.
const (
	pluginPrefix   = "kubernetes.io/"
	pluginHostPath = "host-path"
	pluginLocal    = "local-volume"
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

	ofClaim       = []string{"namespace", "persistentvolumeclaim"}
	claimCapacity = prometheus.NewDesc("kubelet_volume_stats_capacity_bytes",
		"Size of the volume's file system in bytes", ofClaim, nil)
	claimAvailable = prometheus.NewDesc("kubelet_volume_stats_available_bytes",
		"Available bytes of the volume's file system", ofClaim, nil)
	claimUsed = prometheus.NewDesc("kubelet_volume_stats_used_bytes", "Bytes in use of the volume's file system",
		ofClaim, nil)
	claimInodes = prometheus.NewDesc("kubelet_volume_stats_inodes", "Inodes of the volume's file system", ofClaim,
		nil)
	claimInodesFree = prometheus.NewDesc("kubelet_volume_stats_inodes_free", "Free inodes of the volume's file system",
		ofClaim, nil)
	claimInodesUsed = prometheus.NewDesc("kubelet_volume_stats_inodes_used", "Inodes in use of the volume's file system",
		ofClaim, nil)
	volumeDescriptors = []*prometheus.Desc{
		totalVolumes, claimCapacity, claimAvailable, claimUsed, claimInodes, claimInodesFree, claimInodesUsed,
	}
)

// Describe implements prometheus.Collector.
func (k *Manager) Describe(out chan<- *prometheus.Desc) {
	for _, d := range volumeDescriptors {
		out <- d
	}
}

// claimKey identifies a claim.
type claimKey struct{ namespace, name string }

// Collect implements prometheus.Collector. A pod that is being worked on is left out: its volumes may take long. The
// file system of a claim is read by statfs(2), also where it is shared with others, as the kubelet reads local volumes.
func (k *Manager) Collect(out chan<- prometheus.Metric) {
	type count struct{ plugin, state string }
	counts := map[count]int{}
	claims := map[claimKey]string{} // to the path; pods may share a claim
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
				if !s.ready[v.Name] {
					continue
				}
				counts[count{plugin, "actual_state_of_world"}]++
				if name, ok := usesClaim(s.pod, v); ok && s.claims[v.Name].path != "" && !s.claims[v.Name].block {
					claims[claimKey{s.pod.Namespace, name}] = s.claims[v.Name].path
				}
			}
		}
		s.mu.Unlock()
	}
	for c, n := range counts {
		out <- prometheus.MustNewConstMetric(totalVolumes, prometheus.GaugeValue, float64(n), c.plugin, c.state)
	}
	for claim, path := range claims {
		collectClaim(out, claim, path)
	}
}

func collectClaim(out chan<- prometheus.Metric, claim claimKey, path string) {
	var s unix.Statfs_t
	if unix.Statfs(path, &s) != nil {
		return
	}
	size := float64(s.Frsize)
	for d, v := range map[*prometheus.Desc]float64{
		claimCapacity:   float64(s.Blocks) * size,
		claimAvailable:  float64(s.Bavail) * size,
		claimUsed:       float64(s.Blocks-s.Bfree) * size,
		claimInodes:     float64(s.Files),
		claimInodesFree: float64(s.Ffree),
		claimInodesUsed: float64(s.Files - s.Ffree),
	} {
		out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, claim.namespace, claim.name)
	}
}
