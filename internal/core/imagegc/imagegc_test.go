package imagegc

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

// TestScenarios plays testdata/*.txt in virtual time. "config" with high, low, min-age, max-age begins a node. "images"
// lists the images that exist: one name per line, with used or pinned; "pass=D" lets time pass first. "disk" with
// capacity and available (GiB) asks what should be done.
func TestScenarios(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		var c *Collector
		now := unit.Instant(0).Add(time.Hour)
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			arg := func(key string) time.Duration {
				if !d.HasArg(key) {
					return 0
				}
				var text string
				d.ScanArgs(t, key, &text)
				v, err := time.ParseDuration(text)
				if err != nil {
					d.Fatalf(t, "%v", err)
				}
				return v
			}
			var high, low, capacity, available int
			now = now.Add(arg("pass"))
			switch d.Cmd {
			case "config":
				d.ScanArgs(t, "high", &high)
				d.ScanArgs(t, "low", &low)
				c = New(Config{High: int64(high), Low: int64(low), AgeMin: arg("min-age"), AgeMax: arg("max-age")}, now)
				return ""
			case "images":
				var seen []Image
				for line := range strings.Lines(d.Input) {
					f := strings.Fields(line)
					seen = append(seen, Image{ID: f[0], Used: slices.Contains(f, "used"), Pinned: slices.Contains(f, "pinned")})
				}
				c.Observe(now, seen)
				return fmt.Sprintf("removable %v, old %v\n", ids(c.Removable(now)), ids(c.Old(now)))
			case "disk":
				d.ScanArgs(t, "capacity", &capacity)
				d.ScanArgs(t, "available", &available)
				disk := Disk{unit.Bytes(capacity) * unit.GiB, unit.Bytes(available) * unit.GiB}
				goal, begin, err := c.Goal(disk)
				if err != nil {
					return "error: " + err.Error() + "\n"
				}
				return fmt.Sprintf("collect %v, until %v is available\n", begin, goal)
			}
			d.Fatalf(t, "unknown command %s", d.Cmd)
			return ""
		})
	})
}

func ids(images []Image) []string {
	var out []string
	for _, i := range images {
		out = append(out, i.ID)
	}
	return out
}

// TestNothingInUse checks on random histories: no image that is used, pinned or too young is removable; the order is
// that of last use; and the order of the images in Observe does not matter.
func TestNothingInUse(t *testing.T) {
	for seed := range uint64(500) {
		random := rand.New(rand.NewPCG(seed, 1))
		config := Config{
			High:   85,
			Low:    80,
			AgeMin: time.Duration(random.IntN(300)) * time.Second,
			AgeMax: time.Duration(random.IntN(3)) * time.Hour,
		}
		now := unit.Instant(0).Add(time.Hour)
		a, b := New(config, now), New(config, now)
		first, last := map[string]unit.Instant{}, map[string]unit.Instant{}
		for range 30 {
			now = now.Add(time.Duration(random.IntN(1200)) * time.Second)
			var images []Image
			for i := range 10 {
				id := strconv.Itoa(i)
				if random.IntN(4) == 0 {
					delete(first, id)
					delete(last, id)
					continue
				}
				image := Image{ID: id, Used: random.IntN(3) == 0, Pinned: random.IntN(9) == 0}
				if first[id] == 0 {
					first[id] = now
				}
				if image.Used {
					last[id] = now
				}
				images = append(images, image)
			}
			a.Observe(now, images)
			slices.Reverse(images)
			b.Observe(now, images)
			order := a.Removable(now)
			if !slices.Equal(ids(order), ids(b.Removable(now))) || !slices.Equal(ids(a.Old(now)), ids(b.Old(now))) {
				t.Fatalf("seed %d: the order of looking matters", seed)
			}
			for i, image := range order {
				if image.Used || image.Pinned || now.Sub(first[image.ID]) < config.AgeMin {
					t.Fatalf("seed %d: %+v is removable", seed, image)
				}
				if i > 0 && last[order[i-1].ID] > last[image.ID] {
					t.Fatalf("seed %d: order %v", seed, ids(order))
				}
			}
		}
	}
}

// FuzzGoal: no size of a file system overflows.
func FuzzGoal(f *testing.F) {
	f.Add(int64(100<<30), int64(10<<30), int64(85), int64(80))
	f.Add(int64(1<<62), int64(1<<62), int64(0), int64(100))
	f.Fuzz(func(t *testing.T, capacity, available, high, low int64) {
		c := New(Config{High: (high%101 + 101) % 101, Low: (low%101 + 101) % 101}, 1)
		goal, _, err := c.Goal(Disk{unit.Bytes(capacity), unit.Bytes(available)})
		if err == nil && (goal < 0 || goal > unit.Bytes(capacity)) {
			t.Fatalf("goal %v of %v", goal, capacity)
		}
		_ = ShortMessage(Disk{unit.Bytes(capacity), unit.Bytes(available)}, 1)
	})
}
