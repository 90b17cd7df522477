package stats

import (
	"context"
	"log/slog"
	"os"
	"strings"
	"time"
)

const (
	// walkLife is the longest time for which a measured size is used before the volume is walked again. The kubelet
	// walks every minute in any case (volumeStatsAggPeriod).
	walkLife = time.Minute
	// walkLifeMin is the shortest such time. Chosen: less than the ten seconds between two readings that check limits
	// of local storage, which then get present sizes. No client asks for summaries more often than that.
	walkLifeMin = 5 * time.Second
	// walkLifePerEntry is how long a size is used for each entry of its walk, so that a volume of few files is walked
	// in each reading. Chosen: a small volume never costs more than a volume of 6,000 entries that is walked once a
	// minute: 100 stat calls per second, 0.0002 cores.
	walkLifePerEntry = 10 * time.Millisecond
	// walkEntriesMax is approximately how many directory entries one reading reads, including the directories that it
	// opens. Chosen: 0.2 s of stat calls. More makes a reading longer; fewer makes large volumes take more readings.
	// (The kubelet's unbounded walks took 70 CPUs: k/k #61793.)
	walkEntriesMax = 100_000
	// recountEntriesMax is the same for a Recount, for which eviction waits: 4 s of stat calls.
	recountEntriesMax = 2_000_000
	// walkShareMin is the least share of a volume in a reading, however many volumes come before it.
	walkShareMin = 1000
)

// walks measures directories, in parts over several readings if necessary, and stores the results.
//
// Rejected: to count by difference. An unchanged directory says nothing about the sizes of its files. Watching
// each file (inotify, fanotify) costs kernel memory for every inode and loses events under load. The kernel's own
// project quota does count by difference correctly, and is used where there is one.
type walks struct {
	most  int // entries in a reading
	known map[string]*walk
}

type walk struct {
	first         time.Time // when it was first requested
	asked         time.Time
	at            time.Time // when the last complete count ended; zero: none did
	bytes, inodes uint64
	entries       int    // that were read for that count
	next          *count // the count in progress; nil: none
}

// life returns how long the last count is used. A new volume is counted again when its age has doubled: files that are
// written when a pod starts are counted soon, at the cost of three more walks in the first minute.
func (k *walk) life() time.Duration {
	costs := time.Duration(k.entries) * walkLifePerEntry
	return min(walkLife, max(walkLifeMin, min(costs, k.at.Sub(k.first))))
}

// size returns the size of what is below dir by the last complete count, and continues counting if that is older than
// its life. anew counts now, whatever its age. walked is the number of entries of this reading. Names in without are
// left out if they are in dir itself.
func (w walks) size(ctx context.Context, dir string, at time.Time, walked *int, anew bool,
	without ...string) (bytes, inodes uint64, ok bool) {
	key := strings.Join(append([]string{dir}, without...), "\x00") // with other names left out it is another sum
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
		done, err := k.resume(ctx, dir, without, walked, until)
		if err != nil {
			slog.Debug("size of volume left out", "dir", dir, "err", err)
			delete(w.known, key)
			return 0, 0, false
		}
		k.next.anew = k.next.anew || anew
		k.next.entries += *walked - before
		if done {
			k.at = at
			k.bytes = k.next.bytes
			k.inodes = k.next.inodes
			k.entries = k.next.entries
			k.next = nil
		}
	}
	return k.bytes, k.inodes, !k.at.IsZero()
}

// resume counts until walked reaches until, and returns whether the count is complete.
func (k *walk) resume(ctx context.Context, dir string, without []string, walked *int,
	until int) (done bool, err error) {
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
	return k.next.resume(ctx, int(top.Fd()), walked, until), nil
}

// dropUnused drops what was not requested lately, such as volumes of pods that were removed.
func (w walks) dropUnused(now time.Time) {
	for dir, k := range w.known {
		if now.Sub(k.asked) >= walkLife {
			delete(w.known, dir)
		}
	}
}
