// Package imagegc removes images that no container uses: every few minutes, by the configured thresholds and ages, and
// when eviction needs space. core/imagegc decides which images may be removed, and in which order.
//
// # Model
//
// A scan lists images and containers and passes them to the core's Collector. A sweep removes images one by one in the
// Collector's order, and measures the disk after each, until there is enough space. How much space an image frees is
// not known before, since images share layers. Scans and sweeps never run at the same time.
//
// Images that containers mount as volumes are in use too; an annotation of the container names them. The sandbox image
// is in use although no container names it. containerd 1.6 does not pin it, so the runtime is asked which image it is.
//
// # Limits of the package
//
// It removes no containers, and it does not know how full a disk may get: core/eviction does.
package imagegc

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"google.golang.org/grpc"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/record"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/plimsoll-dev/plimsoll/internal/agent/criconfig"
	"github.com/plimsoll-dev/plimsoll/internal/clock"
	"github.com/plimsoll-dev/plimsoll/internal/core/eviction"
	coreimagegc "github.com/plimsoll-dev/plimsoll/internal/core/imagegc"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
	"github.com/plimsoll-dev/plimsoll/internal/host/disk"
)

const (
	// every is the time between two collections (ImageGCPeriod at v1.36.3). A shorter time finds nothing more often; a
	// longer one lets the disk fill further.
	every = 5 * time.Minute
	// scanEvery is the time between two scans (kubelet: 5 min). Chosen: an image's age counts from the first scan that
	// found it, and an image that no scan has found when the disk is full must not be removed, so that pods are evicted
	// instead. Each scan costs two calls to the runtime.
	scanEvery = time.Minute
	// callWithin bounds each call to the runtime. Removing an image of some GiB takes seconds.
	callWithin = 2 * time.Minute

	reasonFailed = "FreeDiskSpaceFailed" // of the Event about the Node; the kubelet's name
)

// Runtime knows which images containers use; *cri.Client implements it.
type Runtime interface {
	ListContainers(context.Context, *runtimeapi.ListContainersRequest,
		...grpc.CallOption) (*runtimeapi.ListContainersResponse, error)
	Status(context.Context, *runtimeapi.StatusRequest, ...grpc.CallOption) (*runtimeapi.StatusResponse, error)
}

// Images lists and removes images: the runtime's image service.
type Images interface {
	ListImages(context.Context, *runtimeapi.ListImagesRequest, ...grpc.CallOption) (*runtimeapi.ListImagesResponse, error)
	RemoveImage(context.Context, *runtimeapi.RemoveImageRequest,
		...grpc.CallOption) (*runtimeapi.RemoveImageResponse, error)
}

// Options are what a Collector needs. Recorder and Removed may be nil.
type Options struct {
	Runtime  Runtime
	Images   Images
	Config   coreimagegc.Config
	Dir      string   // where the runtime stores images; empty: not known, and nothing is collected by disk usage
	Keep     []string // names of images that stay, because they could not be pulled again
	Node     *corev1.ObjectReference
	Recorder record.EventRecorder
	// Seen is called with the ids of all images, and the time before they were listed. Optional.
	Seen    func(ids []string, since time.Time)
	Removed func(reason string)                  // called after each removal, for the metric; reason is space or age
	Disk    func(dir string) (disk.Usage, error) // nil: disk.Of
}

// Collector removes images. It is safe for concurrent use.
type Collector struct {
	o     Options
	clock *clock.Clock
	token chan struct{} // holds one token; the goroutine that took it scans and sweeps
	// which images were seen, and when; used only with token
	tracker *coreimagegc.Collector
	sandbox string // the sandbox image as the runtime names it; empty until the runtime has answered
}

// New returns a Collector that has not scanned yet.
func New(o Options) *Collector {
	if o.Disk == nil {
		o.Disk = disk.Of
	}
	if o.Removed == nil {
		o.Removed = func(string) {}
	}
	c := &Collector{o: o, clock: clock.New(), token: make(chan struct{}, 1)}
	c.tracker = coreimagegc.New(o.Config, c.clock.Now())
	c.token <- struct{}{}
	return c
}

// Run scans at once, so that ages count from then, and collects every few minutes until ctx ends.
func (c *Collector) Run(ctx context.Context) error {
	if err := c.take(ctx, func() error { return c.scan(ctx) }); err != nil && ctx.Err() == nil {
		slog.Warn("images not listed", "err", err)
	}
	collect := time.NewTicker(every)
	defer collect.Stop()
	scan := time.NewTicker(scanEvery)
	defer scan.Stop()
	for {
		var err error
		select {
		case <-ctx.Done():
			return nil
		case <-collect.C:
			err = c.Collect(ctx)
		case <-scan.C:
			err = c.take(ctx, func() error { return c.scan(ctx) })
		}
		if err != nil && ctx.Err() == nil {
			slog.Warn("images not listed or not collected", "err", err)
		}
	}
}

// take runs do while no other scan or sweep runs.
func (c *Collector) take(ctx context.Context, do func() error) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-c.token:
		defer func() { c.token <- struct{}{} }()
		return do()
	}
}

// Collect removes images that are too old. If the disk is fuller than the high threshold, it also removes unused
// images, down to the low threshold.
func (c *Collector) Collect(ctx context.Context) error {
	return c.take(ctx, func() error {
		if err := c.scan(ctx); err != nil {
			return err
		}
		var problems []error
		for _, image := range c.tracker.Old(c.clock.Now()) {
			problems = append(problems, c.remove(ctx, image, "age"))
		}
		return errors.Join(append(problems, c.collectByUse(ctx))...)
	})
}

func (c *Collector) collectByUse(ctx context.Context) error {
	if c.o.Dir == "" {
		return nil
	}
	before, err := c.o.Disk(c.o.Dir)
	if err != nil {
		return fmt.Errorf("collect images: %w", err)
	}
	goal, begin, err := c.tracker.Goal(coreimagegc.Disk{Capacity: before.Capacity, Available: before.Available})
	if err != nil || !begin {
		return err
	}
	enough, err := c.sweep(ctx, func(u disk.Usage) bool { return u.Available >= goal })
	if enough || err != nil {
		return err
	}
	after, err := c.o.Disk(c.o.Dir)
	if err != nil {
		return fmt.Errorf("collect images: %w", err)
	}
	message := coreimagegc.ShortMessage(coreimagegc.Disk{Capacity: before.Capacity, Available: before.Available},
		max(0, after.Available-before.Available))
	if c.o.Recorder != nil && c.o.Node != nil {
		c.o.Recorder.Event(c.o.Node, corev1.EventTypeWarning, reasonFailed, message)
	}
	return errors.New(message)
}

// Reclaim removes unused images until eviction has the space that it asks for, or none is left.
func (c *Collector) Reclaim(ctx context.Context, r eviction.Reclaim) error {
	return c.take(ctx, func() error {
		if err := c.scan(ctx); err != nil {
			return err
		}
		_, err := c.sweep(ctx, func(u disk.Usage) bool {
			if eviction.InBytes(r.Signal) {
				return int64(u.Available) >= r.Until
			}
			return u.InodesFree >= r.Until
		})
		return err
	})
}

// sweep removes images until enough returns true, and reports whether it did. An image that cannot be removed does not
// stop it.
func (c *Collector) sweep(ctx context.Context, enough func(disk.Usage) bool) (bool, error) {
	var problems []error
	for _, image := range c.tracker.Removable(c.clock.Now()) {
		u, err := c.o.Disk(c.o.Dir)
		if err != nil {
			return false, fmt.Errorf("collect images: %w", err)
		}
		if enough(u) {
			return true, errors.Join(problems...)
		}
		if err := ctx.Err(); err != nil {
			return false, fmt.Errorf("collect images: %w", err)
		}
		problems = append(problems, c.remove(ctx, image, "space"))
	}
	u, err := c.o.Disk(c.o.Dir)
	return err == nil && enough(u), errors.Join(append(problems, err)...)
}

func (c *Collector) remove(ctx context.Context, image coreimagegc.Image, reason string) error {
	ctx, cancel := context.WithTimeout(ctx, callWithin)
	defer cancel()
	began := time.Now()
	_, err := c.o.Images.RemoveImage(ctx, &runtimeapi.RemoveImageRequest{Image: &runtimeapi.ImageSpec{Image: image.ID}})
	if err != nil {
		return fmt.Errorf("remove image %s: %w", image.ID, err)
	}
	slog.Info("removed image", "image", image.ID, "size", image.Size, "for", reason,
		"took", time.Since(began).Round(time.Millisecond))
	c.o.Removed(reason)
	return nil
}

// scan passes to tracker which images exist, and which of them are used.
func (c *Collector) scan(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, callWithin)
	defer cancel()
	if c.sandbox == "" {
		c.sandbox = c.SandboxImage(ctx)
	}
	// Containers are listed after images: a container that is created in between is seen with its image, which existed
	// before.
	began := time.Now()
	list, err := c.o.Images.ListImages(ctx, &runtimeapi.ListImagesRequest{})
	if err != nil {
		return fmt.Errorf("list images: %w", err)
	}
	containers, err := c.o.Runtime.ListContainers(ctx, &runtimeapi.ListContainersRequest{})
	if err != nil {
		return fmt.Errorf("list containers: %w", err)
	}
	used := map[string]bool{c.sandbox: true}
	for _, name := range c.o.Keep {
		used[name] = true
	}
	for _, one := range containers.Containers {
		for _, name := range []string{one.ImageRef, one.ImageId, one.GetImage().GetImage()} {
			used[name] = true
		}
		for id := range strings.SplitSeq(one.Annotations[criconfig.AnnotationMountedImages], ",") {
			used[id] = true
		}
	}
	delete(used, "")
	var seen []coreimagegc.Image
	for _, image := range list.Images {
		one := coreimagegc.Image{ID: image.Id, Size: unit.Bytes(image.Size), Pinned: image.Pinned, Used: used[image.Id]}
		for _, names := range [][]string{image.RepoTags, image.RepoDigests} {
			for _, name := range names {
				one.Used = one.Used || used[name]
			}
		}
		seen = append(seen, one)
	}
	if c.o.Seen != nil {
		var ids []string
		for _, image := range list.Images {
			ids = append(ids, image.Id)
		}
		c.o.Seen(ids, began)
	}
	c.tracker.Observe(c.clock.Now(), seen)
	return nil
}

// SandboxImage asks the runtime for the sandbox image; empty if it does not answer that.
func (c *Collector) SandboxImage(ctx context.Context) string {
	status, err := c.o.Runtime.Status(ctx, &runtimeapi.StatusRequest{Verbose: true})
	if err != nil {
		slog.Warn("image of sandboxes not known", "err", err)
		return ""
	}
	return parseSandboxImage(status.Info["config"])
}

// parseSandboxImage reads containerd's configuration from its status: {"sandboxImage": "..."}. containerd 2 pins the
// image.
func parseSandboxImage(text string) string {
	var config struct {
		SandboxImage string `json:"sandboxImage"`
	}
	if json.Unmarshal([]byte(text), &config) != nil {
		return ""
	}
	return config.SandboxImage
}
