package stats

import (
	"os"

	"github.com/prometheus/client_golang/prometheus"
)

// logSize adds up the log files of a container on the disk, including rotated ones, in bytes and inodes.
func logSize(c Container) (bytes, inodes uint64, err error) {
	entries, err := os.ReadDir(c.LogDir)
	if err != nil {
		return 0, 0, err
	}
	for _, e := range entries {
		if info, err := e.Info(); err == nil {
			bytes += diskBytes(info)
			inodes++
		}
	}
	return bytes, inodes, nil
}

var logBytes = prometheus.NewDesc("kubelet_container_log_filesystem_used_bytes",
	"Bytes of a running container's logs on the disk, rotated ones included", []string{"uid", "namespace", "pod",
		"container"}, nil)

// LogSizes is a prometheus.Collector of the sizes of the logs of pods' running containers, under the kubelet's name.
type LogSizes func() []Pod

// Describe implements prometheus.Collector.
func (LogSizes) Describe(out chan<- *prometheus.Desc) { out <- logBytes }

// Collect implements prometheus.Collector. It costs one listing of a directory for each container.
func (pods LogSizes) Collect(out chan<- prometheus.Metric) {
	for _, pod := range pods() {
		for _, c := range pod.Containers {
			bytes, _, err := logSize(c)
			if err != nil {
				continue // it has none
			}
			out <- prometheus.MustNewConstMetric(logBytes, prometheus.GaugeValue, float64(bytes),
				pod.Ref.UID, pod.Ref.Namespace, pod.Ref.Name, c.Name)
		}
	}
}
