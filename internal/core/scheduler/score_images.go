package scheduler

import (
	"cmp"
	"slices"

	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler/rows"
)

// image is one name of an image, as nodes report it.
type image struct {
	name  string
	size  int64     // bytes, as reported by the first node that has it
	nodes int64     // how many have it
	refs  int       // how many demands use it
	on    rows.Mask // rows that have it; nil until a demand needs it, and when no demand uses the image
}

// The score of an image rises from 0 at imageMin to scoreMax at imageMax bytes per container. These are upstream's
// minThreshold and maxContainerThreshold. Most images of public registries are in between.
const (
	imageMin = 23 << 20
	imageMax = 1000 << 20
)

// imageScorer prefers nodes that already have the pod's images.
type imageScorer struct{}

func (imageScorer) about() scoring {
	return scoring{plugin: "ImageLocality", weight: 1, reads: podFields{"Images", "Containers"}}
}

func (imageScorer) applies(d *demand) bool { return len(d.images) > 0 }

// raw scores how much of the pod's images the node has. An image counts with its size times the share of nodes that
// have it, so that a single node with the image does not attract all pods.
func (imageScorer) raw(c *state, d *demand, r row) int64 {
	sum := int64(0)
	for _, i := range d.images {
		if c.hasImage(r, i) {
			sum += int64(float64(i.size) * (float64(i.nodes) / float64(c.seenCount)))
		}
	}
	most := int64(imageMax) * int64(d.containers)
	sum = max(min(sum, most), imageMin)
	return scoreMax * (sum - imageMin) / (most - imageMin)
}

func (c *state) hasImage(r row, i *image) bool {
	if i.nodes == 0 {
		return false
	}
	byName := func(x *image, name string) int { return cmp.Compare(x.name, name) }
	_, has := slices.BinarySearchFunc(c.nodeImages[r], i.name, byName)
	return has
}

// key appends a bit for each of the pod's images: whether the row has it.
func (imageScorer) key(c *state, d *demand, r row, key []int32) []int32 {
	const bits = 31
	for n, i := range d.images {
		if n%bits == 0 {
			key = append(key, 0)
		}
		if c.hasImage(r, i) {
			key[len(key)-1] |= 1 << (n % bits)
		}
	}
	return key
}

// imageAt returns the image with a name, with one more reference. dropImage drops the reference.
func (c *state) imageAt(name string) *image {
	i := c.images[name]
	if i == nil {
		i = &image{name: name}
		c.images[name] = i
	}
	i.refs++
	return i
}

func (c *state) dropImage(i *image) {
	if i.refs--; i.refs > 0 {
		return
	}
	if i.on = nil; i.nodes == 0 {
		delete(c.images, i.name)
	}
}

// setImages replaces the images of row r.
func (c *state) setImages(r row, list []Image) (changed bool) {
	if len(list)+len(c.nodeImages[r]) == 0 {
		return false
	}
	fresh := map[string]int64{}
	for i := range list {
		for _, name := range list[i].Names {
			if _, twice := fresh[name]; !twice {
				fresh[name] = list[i].Size
			}
		}
	}
	same := len(fresh) == len(c.nodeImages[r])
	for _, i := range c.nodeImages[r] {
		_, still := fresh[i.name]
		same = same && still
	}
	if same {
		return false
	}
	for _, i := range c.nodeImages[r] {
		i.nodes--
		i.on.Clear(r)
		if i.refs++; i.refs > 1 {
			i.refs--
			continue
		}
		c.dropImage(i)
	}
	c.nodeImages[r] = nil
	for name, size := range fresh {
		i := c.imageAt(name)
		i.refs--
		if i.nodes++; i.nodes == 1 {
			i.size = size
		}
		if i.on != nil {
			i.on = i.on.With(r)
		}
		c.nodeImages[r] = append(c.nodeImages[r], i)
	}
	slices.SortFunc(c.nodeImages[r], func(a, b *image) int { return cmp.Compare(a.name, b.name) })
	return true
}

// normalize does nothing: the raw value is the score already.
func (imageScorer) normalize([]int64) {}

func (imageScorer) split(c *state, d *demand, m rows.Mask, g *grouping) {
	for _, i := range d.images {
		if i.nodes > 0 {
			g.moveAll(m, c.rowsWithImage(i))
		}
	}
}

// rowsWithImage returns the rows that have an image that a demand uses.
func (c *state) rowsWithImage(i *image) rows.Mask {
	if i.on == nil {
		i.on = make(rows.Mask, (len(c.name)+63)/64)
		for r := range c.name {
			if c.hasImage(row(r), i) {
				i.on.Set(row(r))
			}
		}
	}
	return i.on
}
