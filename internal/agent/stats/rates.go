package stats

import "time"

// rateWindow is the shortest time over which a rate is taken; questions that follow faster get the last one again, so
// that two clients do not see noise of each other's making. Chosen: a CPU second is then seen to a percent at the
// 10 ms resolution of /proc/<pid>/stat.
const rateWindow = time.Second

// rates remembers the last counter of each group and process that was read.
type rates map[string]rate

type rate struct {
	at    time.Time
	used  time.Duration
	cores uint64 // nanocores between this observation and the one before
	known bool   // there was one before
}

// observe records that key had used so much CPU time at a moment, and returns the nanocores since the moment before.
func (r rates) observe(key string, at time.Time, used time.Duration) (nanoCores uint64, known bool) {
	last, ok := r[key]
	if ok && at.Sub(last.at) < rateWindow && used >= last.used {
		return last.cores, last.known
	}
	now := rate{at: at, used: used}
	if ok && used >= last.used { // else the counter started again
		now.cores = uint64(float64(used-last.used) / at.Sub(last.at).Seconds())
		now.known = true
	}
	r[key] = now
	return now.cores, now.known
}

// forget drops what was not seen in the last pass.
func (r rates) forget(seen map[string]bool) {
	for key := range r {
		if !seen[key] {
			delete(r, key)
		}
	}
}
