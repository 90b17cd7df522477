package agent

import (
	"cmp"
	"context"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/plimsoll-dev/plimsoll/internal/agent/cadvisor"
	"github.com/plimsoll-dev/plimsoll/internal/agent/imagegc"
	"github.com/plimsoll-dev/plimsoll/internal/agent/server"
	"github.com/plimsoll-dev/plimsoll/internal/agent/stats"
	"github.com/plimsoll-dev/plimsoll/internal/image"
)

// prepareDisks prepares the reader of usage (which includes disks) and image GC.
func (a *Agent) prepareDisks(ctx context.Context) error {
	inner := func(group, id string) string { return a.groups.counted(group, a.runtimeName, id) }
	podsGroup := a.groups.layout.Node()
	if a.groups.unmanaged {
		podsGroup = ""
	}
	pods := server.StatsPods(servedPods{a.pods}, a.groups.group, inner, a.o.RootDir)
	a.stats = stats.New(stats.Options{
		NodeName:      a.o.NodeName,
		Pods:          pods,
		Cgroups:       a.groups.tree,
		PodsGroup:     podsGroup,
		Runtime:       a.runtime,
		Images:        a.runtime.Images,
		RuntimeSocket: strings.TrimPrefix(a.runtime.Endpoint, "unix://"),
		RootDir:       a.o.RootDir,
		Measured:      a.volumeMeasured,
		Volumes:       a.volumeStats.Of,
		Demand:        a.volumeStats.Demand,
	})
	a.metrics.Registry.MustRegister(stats.LogSizes(pods))
	images := a.imageDir(ctx)
	a.cgroups = cadvisor.New(cadvisor.Options{
		Tree:         a.groups.tree,
		Pods:         pods,
		Groups:       a.groups.aboveThePods(),
		SandboxImage: sync.OnceValue(func() string { return a.sandboxImage(ctx) }),
		Machine:      a.machine,
		Dirs:         slices.DeleteFunc([]string{"/", a.o.RootDir, images}, func(dir string) bool { return dir == "" }),
	})
	a.images = imagegc.New(imagegc.Options{
		Runtime:  a.runtime,
		Images:   a.runtime.Images,
		Dir:      images,
		Recorder: a.recorder,
		Keep:     []string{image.Pause, image.Workload, image.Demo}, // imported from archives: no registry has them
		Config:   unusedImages(a.o.Config),
		Node:     &corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: a.o.NodeName, UID: types.UID(a.o.NodeName)},
		Seen: func(ids []string, since time.Time) {
			if err := a.pulled.Prune(ids, since); err != nil {
				slog.Warn("records of images that are gone not removed", "err", err)
			}
		},
		Removed: func(reason string) { a.metrics.ImagesCollected.WithLabelValues(reason).Inc() },
	})
	return nil
}

// volumeMeasured records that it was measured, or asked, how full a volume is.
func (a *Agent) volumeMeasured(source string, took time.Duration) {
	a.metrics.VolumeMeasurement.WithLabelValues(source).Observe(took.Seconds())
}

// sandboxImage returns the image of sandboxes as the runtime names it. If that is not known, it returns the image of
// our own runtime instance: recording rules need a name that is not empty.
func (a *Agent) sandboxImage(ctx context.Context) string {
	ctx, cancel := context.WithTimeout(ctx, callMax)
	defer cancel()
	return cmp.Or(a.images.SandboxImage(ctx), image.Pause)
}
