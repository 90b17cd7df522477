package agent

import (
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
	kubeletconfigv1beta1 "k8s.io/kubelet/config/v1beta1"

	"github.com/plimsoll-dev/plimsoll/internal/agent/node"
	"github.com/plimsoll-dev/plimsoll/internal/agent/podlog"
	"github.com/plimsoll-dev/plimsoll/internal/agent/pods"
	"github.com/plimsoll-dev/plimsoll/internal/core/heartbeat"
	"github.com/plimsoll-dev/plimsoll/internal/core/imagegc"
)

func maxPulls(c *kubeletconfigv1beta1.KubeletConfiguration) int {
	if c.MaxParallelImagePulls == nil {
		return 0
	}
	return int(*c.MaxParallelImagePulls)
}

func crashBackoffMax(c *kubeletconfigv1beta1.KubeletConfiguration) time.Duration {
	if m := c.CrashLoopBackOff.MaxContainerRestartPeriod; m != nil {
		return m.Duration
	}
	return 0
}

// imageEndpoint is where images are looked after, if not by the runtime itself; empty: by the runtime.
func imageEndpoint(o Options) string {
	if images := o.Config.ImageServiceEndpoint; strings.TrimPrefix(images, "unix://") != strings.TrimPrefix(o.Endpoint, "unix://") {
		return images
	}
	return ""
}

// unusedImages is when images are removed.
func unusedImages(c *kubeletconfigv1beta1.KubeletConfiguration) imagegc.Config {
	return imagegc.Config{
		High: int64(*c.ImageGCHighThresholdPercent), Low: int64(*c.ImageGCLowThresholdPercent),
		AgeMin: c.ImageMinimumGCAge.Duration, AgeMax: c.ImageMaximumGCAge.Duration,
	}
}

// podOptions is how pods are run, as far as the configuration says it.
func podOptions(c *kubeletconfigv1beta1.KubeletConfiguration) pods.Options {
	return pods.Options{
		LogDir: c.PodLogsDir, StaticDir: c.StaticPodPath, SeccompAll: truth(c.SeccompDefault),
		SerialPulls: c.SerializeImagePulls == nil || *c.SerializeImagePulls, MaxPulls: maxPulls(c),
		BackoffMax: crashBackoffMax(c), WorkTimeout: c.RuntimeRequestTimeout.Duration,
	}
}

// nodeOptions is how the node is spoken for, as far as the configuration says it.
func nodeOptions(c *kubeletconfigv1beta1.KubeletConfiguration) node.Options {
	return node.Options{
		Rhythm: heartbeat.Config{
			LeaseDuration: time.Duration(c.NodeLeaseDurationSeconds) * time.Second,
			UpdateEvery:   c.NodeStatusUpdateFrequency.Duration,
			ReportEvery:   c.NodeStatusReportFrequency.Duration,
		},
		Register: c.RegisterNode == nil || *c.RegisterNode, Taints: c.RegisterWithTaints, ProviderID: c.ProviderID,
		MaxImages: int(*c.NodeStatusMaxImages), Port: c.Port,
	}
}

// rotation is how logs are rotated.
func rotation(c *kubeletconfigv1beta1.KubeletConfiguration) *podlog.Rotator {
	return &podlog.Rotator{
		Root:     c.PodLogsDir,
		MaxBytes: rotateAt(c),
		MaxFiles: int(*c.ContainerLogMaxFiles),
		Workers:  int(*c.ContainerLogMaxWorkers),
		Interval: c.ContainerLogMonitorInterval.Duration,
	}
}

// rotateAt is the size at which a log is rotated.
func rotateAt(c *kubeletconfigv1beta1.KubeletConfiguration) int64 {
	size, err := resource.ParseQuantity(c.ContainerLogMaxSize)
	if err != nil {
		return -1 // refused when the configuration was read
	}
	return size.Value()
}
