// Package imagegc decides which images a node removes, and when: those that nothing uses, the least recently used first, by
// how full their file system is and by age.
//
// # Model
//
// A Collector is told of all images each time somebody looked (Observe): which are there, and which a container uses, running
// or not. It remembers since when it has known each, and when it saw it used last. An image is *removable* when nothing
// uses it, the runtime has not pinned it, and it has been known for the least age: one that was just pulled is about to be used.
//
//	use of the disk >= high mark --> remove, least recently used first, until use <= low mark
//	not used for the greatest age --> remove
//
// The order is one thing, how far to go another: the caller removes one image, asks the disk what that brought, and stops when
// it has enough. Sizes of images say little about that, since images share layers.
//
// # Invariants
//
//   - No image in use, pinned or too young is in an order. Equal pasts go by id, so the same history gives the same order.
//   - The marks, ages and the order are the kubelet's (v1.36.3) but for one thing: an image that was never seen in use ages from
//     when it was first seen. Upstream removes it on the day imageMaximumGCAge after its own start, however young.
//
// # What it does not do
//
// It removes nothing and knows no runtime (internal/agent/imagegc). Dead containers are core/podlife's; what happens under
// pressure, and when, is core/eviction's.
package imagegc

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

// Config are the settings of image garbage collection. Marks are per cent of the file system in use.
type Config struct {
	High, Low int64         // imageGCHighThresholdPercent, imageGCLowThresholdPercent; a High of 100 never collects by use
	AgeMin    time.Duration // imageMinimumGCAge
	AgeMax    time.Duration // imageMaximumGCAge; 0: images do not age
}

// Image is an image as it was seen.
type Image struct {
	ID     string
	Size   unit.Bytes
	Pinned bool // the runtime wants to keep it
	Used   bool // by a container, running or not
}

// Collector remembers images. It is not safe for concurrent use.
type Collector struct {
	config Config
	began  unit.Instant
	known  map[string]past
}

type past struct {
	Image
	seen, used unit.Instant // first seen; last seen in use, zero: never
}

// New returns a Collector that begins at now: nothing is too old before AgeMax has passed since.
func New(c Config, now unit.Instant) *Collector {
	return &Collector{config: c, began: now, known: map[string]past{}}
}

// Observe folds in all images that are there at now.
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

// Old returns the removable images that nothing has used for longer than the greatest age.
func (c *Collector) Old(now unit.Instant) []Image {
	if c.config.AgeMax <= 0 || now.Sub(c.began) <= c.config.AgeMax {
		return nil
	}
	return slices.DeleteFunc(c.Removable(now), func(i Image) bool {
		p := c.known[i.ID]
		return now.Sub(max(p.used, p.seen)) <= c.config.AgeMax
	})
}

// Disk is the file system of images.
type Disk struct {
	Capacity, Available unit.Bytes
}

// Goal returns how much must be available when collecting by use may stop, and whether it is to begin at all. A file system
// without a size is an error.
func (c *Collector) Goal(d Disk) (unit.Bytes, bool, error) {
	if d.Capacity <= 0 {
		return 0, false, fmt.Errorf("collect images: file system of images: capacity %v: cannot tell how full it is", d.Capacity)
	}
	available := int64(min(max(0, d.Available), d.Capacity))
	used := 100 - percent(available, int64(d.Capacity))
	return unit.Bytes(share(int64(d.Capacity), 100-c.config.Low)), used >= c.config.High, nil
}

// percent returns n of whole in whole per cent, rounded down, without overflow.
func percent(n, whole int64) int64 {
	if whole < 1<<50 {
		return n * 100 / whole
	}
	return n / (whole / 100)
}

// share returns so many per cent of n, without overflow.
func share(n, percent int64) int64 { return n/100*percent + n%100*percent/100 }

// ShortMessage is the node's event FreeDiskSpaceFailed, in upstream's words.
func ShortMessage(d Disk, freed unit.Bytes) string {
	used := 100 - percent(int64(min(max(0, d.Available), d.Capacity)), int64(max(1, d.Capacity)))
	return fmt.Sprintf("Insufficient free disk space on the node's image filesystem (%d%% of %s used). Failed to free sufficient space by "+
		"deleting unused images (freed %d bytes). Investigate disk usage, as it could be used by active images, logs, volumes, or other data.",
		used, humane(d.Capacity), int64(freed))
}

// humane prints a size as upstream's events do: 1.5 GiB.
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
