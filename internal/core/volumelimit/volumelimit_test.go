package volumelimit

import (
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

func TestBoundsOfOnePod(t *testing.T) {
	for _, m := range []Medium{Memory, Disk} {
		most := PodMax(m)
		if why := Pod(m, most); why != "" {
			t.Errorf("medium %d: %s", m, why)
		}
		for _, more := range []Use{{Bytes: 1}, {Inodes: 1}} {
			if why := Pod(m, most.Plus(more)); !strings.Contains(why, "the limit for one pod is "+most.String()) {
				t.Errorf("medium %d: %q", m, why)
			}
		}
	}
	if Objects(ObjectsMax) != "" || !strings.Contains(Objects(ObjectsMax+1), "257") {
		t.Error("objects are not bounded")
	}
	if got, want := File(4097), (Use{8192, 2}); got != want {
		t.Errorf("%v, want %v", got, want)
	}
	if got, want := File(0), (Use{0, 2}); got != want {
		t.Errorf("%v, want %v", got, want)
	}
}

// TestEverybodyGetsItsShare lets pods take everything that they are allowed to, in any order, until the node has its
// maximum of pods. Then every pod that has less than its share can still get its share.
func TestEverybodyGetsItsShare(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 0))
	for range 500 {
		pods := 1 + rnd.IntN(120)
		total := Use{unit.Bytes(1 + rnd.Int64N(1<<32)), 1 + rnd.Int64N(1<<20)}
		fs := FS{Total: total, Free: total}
		has := make([]Use, pods)
		take := func(i int, wants Use) bool {
			if Shared(fs, pods, has[i], wants) != "" {
				return false
			}
			fs.Free = fs.Free.Minus(wants.Minus(has[i]))
			has[i] = wants
			return true
		}
		for range 300 {
			i := rnd.IntN(pods)
			take(i, has[i].Plus(Use{unit.Bytes(rnd.Int64N(int64(total.Bytes)/8 + 2)), rnd.Int64N(total.Inodes/8 + 2)}))
		}
		share := fs.share(pods)
		for i := range has {
			wants := Use{max(has[i].Bytes, share.Bytes), max(has[i].Inodes, share.Inodes)}
			if !has[i].within(share) {
				continue
			}
			if !take(i, wants) {
				t.Fatalf("pod %d of %d has %v and is refused its share %v: %v of %v are free", i, pods, has[i], share, fs.Free,
					total)
			}
		}
		var sum Use
		for _, h := range has {
			sum = sum.Plus(h)
		}
		if !sum.within(total) {
			t.Fatalf("%d pods have %v of %v", pods, sum, total)
		}
	}
}
