package agent

import (
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
	kubeletconfigv1beta1 "k8s.io/kubelet/config/v1beta1"

	"github.com/plimsoll-dev/plimsoll/internal/agent/podlog"
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
