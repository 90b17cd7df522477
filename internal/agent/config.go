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
	"github.com/plimsoll-dev/plimsoll/internal/kube/kubeletconfig"
)

func crashBackoffMax(c *kubeletconfigv1beta1.KubeletConfiguration) time.Duration {
	if m := c.CrashLoopBackOff.MaxContainerRestartPeriod; m != nil {
		return m.Duration
	}
	return 0
}

// imageEndpoint returns the CRI socket of the image service; empty if the container runtime serves it itself.
func imageEndpoint(o Options) string {
	images := o.Config.ImageServiceEndpoint
	if strings.TrimPrefix(images, "unix://") == strings.TrimPrefix(o.Endpoint, "unix://") {
		return ""
	}
	return images
}

// unusedImages translates the image GC policy.
func unusedImages(c *kubeletconfigv1beta1.KubeletConfiguration) imagegc.Config {
	return imagegc.Config{
		High:   int64(*c.ImageGCHighThresholdPercent),
		Low:    int64(*c.ImageGCLowThresholdPercent),
		AgeMin: c.ImageMinimumGCAge.Duration,
		AgeMax: c.ImageMaximumGCAge.Duration,
	}
}

// podOptions returns the options of the pod workers that come from the configuration.
func podOptions(c *kubeletconfigv1beta1.KubeletConfiguration) pods.Options {
	return pods.Options{
		LogDir:          c.PodLogsDir,
		StaticDir:       c.StaticPodPath,
		SeccompAll:      isTrue(c.SeccompDefault),
		BackoffMax:      crashBackoffMax(c),
		WorkTimeout:     c.RuntimeRequestTimeout.Duration,
		TrustBundles:    kubeletconfig.ReadsTrustBundles(c),
		PodCertificates: kubeletconfig.RequestsPodCertificates(c),
	}
}

// nodeOptions returns the options of the Node's reports that come from the configuration.
func nodeOptions(c *kubeletconfigv1beta1.KubeletConfiguration) node.Options {
	return node.Options{
		Heartbeat: heartbeat.Config{
			LeaseDuration: time.Duration(c.NodeLeaseDurationSeconds) * time.Second,
			UpdateEvery:   c.NodeStatusUpdateFrequency.Duration,
			ReportEvery:   c.NodeStatusReportFrequency.Duration,
		},
		Register:        c.RegisterNode == nil || *c.RegisterNode,
		Taints:          c.RegisterWithTaints,
		ProviderID:      c.ProviderID,
		MaxImages:       int(*c.NodeStatusMaxImages),
		Port:            c.Port,
		TrustBundles:    kubeletconfig.ReadsTrustBundles(c),
		PodCertificates: kubeletconfig.RequestsPodCertificates(c),
	}
}

// rotation returns the log rotation's settings.
func rotation(c *kubeletconfigv1beta1.KubeletConfiguration) *podlog.Rotator {
	return &podlog.Rotator{
		Root:     c.PodLogsDir,
		MaxBytes: rotateAt(c),
		MaxFiles: int(*c.ContainerLogMaxFiles),
		Workers:  int(*c.ContainerLogMaxWorkers),
		Interval: c.ContainerLogMonitorInterval.Duration,
	}
}

// rotateAt returns the size at which a log is rotated, in bytes.
func rotateAt(c *kubeletconfigv1beta1.KubeletConfiguration) int64 {
	size, err := resource.ParseQuantity(c.ContainerLogMaxSize)
	if err != nil {
		return -1 // cannot happen: the configuration was validated
	}
	return size.Value()
}
