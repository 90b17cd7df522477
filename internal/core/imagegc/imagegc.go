// Package imagegc decides which images a node removes, and when: unused images, the least recently used first,
// depending on how full their file system is and on their age.
//
// # Model
//
// The shell passes all images to a Collector each time it has listed them (Observe): which exist, and which are used by
// a container, running or not. The Collector remembers since when each image is known, and when it was last seen in
// use. An image is *removable* when nothing uses it, the runtime has not pinned it, and it has been known for at least
// the minimum age. The minimum age protects images that were just pulled and are about to be used.
//
//	use of the file system >= high mark --> remove, least recently used first, until use <= low mark
//	not used for the maximum age        --> remove
//
// The Collector gives the order. How many images are removed is decided by the caller: it removes one image, reads how
// much space is free, and stops when that is enough. Image sizes do not predict how much becomes free, because images
// share layers.
//
// # Invariants
//
//   - No image that is in use, pinned or too young is removable. Images with equal history are ordered by id, so the
//     same history gives the same order.
//   - The marks, ages and the order are the kubelet's (v1.36.3), with one exception: an image that was never seen in
//     use ages from when it was first seen. Upstream removes it as soon as the kubelet has run for imageMaximumGCAge,
//     however young the image is.
//
// # What it does not do
//
// It removes nothing and does not talk to the runtime (internal/agent/imagegc). core/podlife decides about dead
// containers. core/eviction decides what happens under disk pressure, and when.
package imagegc

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

// Config holds the settings of image garbage collection. Marks are per cent of the file system in use.
type Config struct {
	// ImageGCHighThresholdPercent, imageGCLowThresholdPercent; with a High of 100 images are never removed because of
	// use.
	High, Low int64
	AgeMin    time.Duration // imageMinimumGCAge
	AgeMax    time.Duration // imageMaximumGCAge; 0: images are not removed because of age
}

// Image is an image as last listed.
type Image struct {
	ID     string
	Size   unit.Bytes
	Pinned bool // the runtime asks to keep it
	Used   bool // by a container, running or not
}

// Collector remembers images. It is not safe for concurrent use. Only Observe changes it.
type Collector struct {
	config Config
	began  unit.Instant    // when New was called
	known  map[string]past // images of the last Observe, by id
}

type past struct {
	Image
	seen, used unit.Instant // seen: first seen; used: last seen in use, zero: never
}

// New returns a Collector that begins at now. No image is too old before AgeMax has passed since then.
func New(c Config, now unit.Instant) *Collector {
	return &Collector{config: c, began: now, known: map[string]past{}}
}

// Observe takes the complete list of images at now.
func (c *Collector) Observe(now unit.Instant, images []Image) {
	next := make(map[string]past, len(images))
	for _, image := range images {
		p, known := c.known[image.ID]
		if !known {
			p.seen = now
		}
		p.Image = image
		if image.Used {
			p.used = now
		}
		next[image.ID] = p
	}
	c.known = next
}

// Removable returns the images that may be removed at now, the least recently used first.
func (c *Collector) Removable(now unit.Instant) []Image {
	var found []past
	for _, p := range c.known {
		if !p.Used && !p.Pinned && now.Sub(p.seen) >= c.config.AgeMin {
			found = append(found, p)
		}
	}
	slices.SortFunc(found, func(a, b past) int {
		return cmp.Or(cmp.Compare(a.used, b.used), cmp.Compare(a.seen, b.seen), cmp.Compare(a.ID, b.ID))
	})
	out := make([]Image, len(found))
	for i, p := range found {
		out[i] = p.Image
	}
	return out
}

// Old returns the removable images that have not been used for longer than the maximum age.
func (c *Collector) Old(now unit.Instant) []Image {
	if c.config.AgeMax <= 0 || now.Sub(c.began) <= c.config.AgeMax {
		return nil
	}
	return slices.DeleteFunc(c.Removable(now), func(i Image) bool {
		p := c.known[i.ID]
		return now.Sub(max(p.used, p.seen)) <= c.config.AgeMax
	})
}

// Disk is the file system that holds the images.
type Disk struct {
	Capacity, Available unit.Bytes
}

// Goal returns how much space must be available so that collecting by use may stop, and whether use is high enough to
// start. A capacity that is not positive is an error.
func (c *Collector) Goal(d Disk) (unit.Bytes, bool, error) {
	if d.Capacity <= 0 {
		return 0, false, fmt.Errorf("collect images: file system of images: capacity %v: cannot tell how full it is",
			d.Capacity)
	}
	available := int64(min(max(0, d.Available), d.Capacity))
	used := 100 - percent(available, int64(d.Capacity))
	return unit.Bytes(share(int64(d.Capacity), 100-c.config.Low)), used >= c.config.High, nil
}

// percent returns n as a percentage of whole, rounded down, without overflow.
func percent(n, whole int64) int64 {
	if whole < 1<<50 {
		return n * 100 / whole
	}
	return n / (whole / 100)
}

// share returns that many per cent of n, without overflow.
func share(n, percent int64) int64 { return n/100*percent + n%100*percent/100 }

// ShortMessage is the text of the Node's Event FreeDiskSpaceFailed, in upstream's words.
func ShortMessage(d Disk, freed unit.Bytes) string {
	used := 100 - percent(int64(min(max(0, d.Available), d.Capacity)), int64(max(1, d.Capacity)))
	return fmt.Sprintf("Insufficient free disk space on the node's image filesystem (%d%% of %s used). "+
		"Failed to free sufficient space by deleting unused images (freed %d bytes). "+
		"Investigate disk usage, as it could be used by active images, logs, volumes, or other data.",
		used, humane(d.Capacity), int64(freed))
}

// humane formats a size as upstream's Events do: 1.5 GiB.
func humane(b unit.Bytes) string {
	const step = 1024
	if b < unit.KiB {
		return fmt.Sprintf("%d B", int64(b))
	}
	units := []string{"KiB", "MiB", "GiB", "TiB"}
	n, i := float64(b)/step, 0
	for n >= step && i < len(units)-1 {
		n, i = n/step, i+1
	}
	return fmt.Sprintf("%.1f %s", n, units[i])
}
