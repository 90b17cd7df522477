package pods

import (
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/plimsoll-dev/plimsoll/internal/agent/podentry"
	"github.com/plimsoll-dev/plimsoll/internal/core/shutdown"
)

// Standing is Present after the admission that is under way, if there is one: whoever rejects all pods from now on, and
// then asks this, knows every pod that was admitted.
func (r *Runner) Standing() []podentry.Present {
	r.admission.Lock()
	defer r.admission.Unlock()
	return r.Present()
}

// Terminate orders a pod's end, as Evict does, but its files stay as those of a pod that ended by itself do, and its
// worker acts at once.
func (r *Runner) Terminate(uid types.UID, v Eviction) {
	e := r.entryOf(uid)
	if e == nil {
		return
	}
	now, _ := r.now()
	e.EndWithin(now, max(time.Until(v.KillAt), 0), v.order())
	r.resync(e)
}

// EndOf returns how far a pod's end has come.
func (r *Runner) EndOf(uid types.UID) shutdown.Stage {
	e := r.entryOf(uid)
	switch {
	case e == nil:
		return shutdown.Reported
	case !e.Over():
		return shutdown.Runs
	case !e.Report().UpToDate():
		return shutdown.Ended
	}
	return shutdown.Reported
}
