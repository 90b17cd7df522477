package stats

import (
	"context"
	"log/slog"
	"os"
	"strings"
	"time"
)

const (
	// walkLife is how long the size of a volume is used again at most before it is walked anew; upstream walks every
	// minute whether asked or not (volumeStatsAggPeriod).
	walkLife = time.Minute
	// walkLifeMin is how long it is used at least. Chosen: below the ten seconds between two readings that look for
	// pods over their limits of local storage, which then see what is there now; above the period of nobody who asks
	// for summaries.
	walkLifeMin = 5 * time.Second
	// walkLifePerEntry is how long it is used for each entry that the walk looked at, so that few files are counted in
	// each reading. Chosen: no volume costs more, for its being small, than one of 6,000 entries costs once a minute,
	// 100 stat calls in a second, 0.0002 cores.
	walkLifePerEntry = 10 * time.Millisecond
	// walkEntriesMax is about how many directory entries one reading looks at, and directories it opens. Chosen: 0.2 s
	// of stat calls. More makes a reading longer, less makes large volumes take more readings. (Upstream's unbounded
	// walks took 70 CPUs: k/k #61793.)
	walkEntriesMax = 100_000
	// recountEntriesMax is the same for a reading that counts anew, on which somebody waits: 4 s of stat calls.
	recountEntriesMax = 2_000_000
	// walkShareMin is what a volume gets of a reading at least, however many there are before it.
	walkShareMin = 1000
)

// walks counts what directories hold, a part in each reading where one is not enough, and remembers it.
//
// Rejected: to count by difference. That a directory has not changed says nothing of the sizes of its files, and
// watching each of them (inotify, fanotify) costs kernel memory for every inode and loses events under load; what
// counts by difference and is right is the kernel's own project quota, which is used where there is one.
type walks struct {
	most  int // entries in a reading
	known map[string]*walk
}

type walk struct {
	first         time.Time // when it was asked for first
	asked         time.Time
	at            time.Time // when the count was finished of which the rest is; zero: none was
	bytes, inodes uint64
	entries       int    // that were looked at for that
	next          *count // under way; nil: none
}

// life is how long the last count is used. A volume that is new is counted again once it has been there twice as long:
// what is written at once when a pod starts is seen soon, at the cost of three walks more in the first minute.
func (k *walk) life() time.Duration {
	costs := time.Duration(k.entries) * walkLifePerEntry
	return min(walkLife, max(walkLifeMin, min(costs, k.at.Sub(k.first))))
}

// size returns what lies below dir, as last counted to the end, and goes on counting where that is older than its life;
// anew counts now, however old that is. walked counts the entries of this reading. What is called as one of without in
// dir itself is left out.
func (w walks) size(ctx context.Context, dir string, at time.Time, walked *int, anew bool, without ...string) (bytes, inodes uint64, ok bool) {
	key := strings.Join(append([]string{dir}, without...), "\x00") // with others left out it is another sum
	k := w.known[key]
	if k == nil {
		k = &walk{first: at}
		w.known[key] = k
	}
	k.asked = at
	most := w.most
	if anew {
		most = recountEntriesMax
		if k.next != nil && !k.next.anew {
			k.next = nil
		}
	}
	if anew || k.next != nil || k.at.IsZero() || at.Sub(k.at) >= k.life() {
		before, until := *walked, *walked+max(walkShareMin, (most-*walked)/2)
		done, err := k.goOn(ctx, dir, without, walked, until)
		if err != nil {
			slog.Debug("size of volume left out", "dir", dir, "err", err)
			delete(w.known, key)
			return 0, 0, false
		}
		k.next.anew = k.next.anew || anew
		k.next.entries += *walked - before
		if done {
			k.at, k.bytes, k.inodes, k.entries, k.next = at, k.next.bytes, k.next.inodes, k.next.entries, nil
		}
	}
	return k.bytes, k.inodes, !k.at.IsZero()
}

// goOn counts until walked reaches until, and reports whether the count is finished.
func (k *walk) goOn(ctx context.Context, dir string, without []string, walked *int, until int) (done bool, err error) {
	top, err := os.Open(dir)
	if err != nil {
		return false, err
	}
	defer top.Close()
	if k.next == nil {
		if k.next, err = newCount(top, without); err != nil {
			return false, err
		}
		*walked++
	}
	return k.next.goOn(ctx, int(top.Fd()), walked, until), nil
}

// forget drops what nobody has asked for lately: those of pods that are gone are among them.
func (w walks) forget(now time.Time) {
	for dir, k := range w.known {
		if now.Sub(k.asked) >= walkLife {
			delete(w.known, dir)
		}
	}
}
