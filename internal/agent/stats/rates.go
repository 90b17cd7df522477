package stats

import "time"

// rateWindow is the shortest time over which a rate is computed. A request sooner gets the last rate again, so that two
// clients do not disturb each other's rates. Chosen: at the 10 ms resolution of /proc/<pid>/stat, a CPU second is then
// measured to a percent.
const rateWindow = time.Second

// rates has the last counter of each cgroup and process that was read.
type rates map[string]rate

type rate struct {
	at    time.Time
	used  time.Duration
	cores uint64 // nanocores between this observation and the one before
	known bool   // there was one before
}

// observe records the CPU time that key had used at a moment, and returns the nanocores since the moment before.
func (r rates) observe(key string, at time.Time, used time.Duration) (nanoCores uint64, known bool) {
	last, ok := r[key]
	if ok && at.Sub(last.at) < rateWindow && used >= last.used {
		return last.cores, last.known
	}
	now := rate{at: at, used: used}
	if ok && used >= last.used { // otherwise the counter started again
		now.cores = uint64(float64(used-last.used) / at.Sub(last.at).Seconds())
		now.known = true
	}
	r[key] = now
	return now.cores, now.known
}

// dropUnseen drops what was not seen in the last pass.
func (r rates) dropUnseen(seen map[string]bool) {
	for key := range r {
		if !seen[key] {
			delete(r, key)
		}
	}
}
