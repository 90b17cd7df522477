// Package shutdown decides which pods of a node end when, and how long each has, while its machine shuts down.
//
// # Model
//
// The machine waits for the node for a bounded time, the budget. It is divided into periods, by priority:
//
//	period      pods with a priority of        budget
//	0           less than 2000000000           20 s
//	2000000000  2000000000 and above           10 s
//
// A Shutdown goes through the periods from the lowest priority up. A period begins with the order to end its pods. It
// ends when all of them have ended, at the latest when its budget is used up. The last one also waits, for a moment,
// until the ends are reported.
//
//	Begin ──► period ──► period ──► reports ──► done: the machine may go
//	             └──────────┴──────────┴──► cancelled: no other pod is ended
//
// # Invariants
//
//   - Done comes no later than the sum of the budgets after Begin, whatever pods do.
//   - No pod of a period is ended before those of the period before have, or have used up their budget.
//   - A pod has its own grace period, or what its period has if that is less. The last part of a budget is for what
//     follows a kill: the runtime's answer, volumes, the report.
//   - A period without pods takes no time. What a period leaves of its budget nobody gets: the machine goes sooner.
//
// It ends no pod and knows no clock: the caller tells how far the pods have come, and asks again at Wake.
package shutdown

import (
	"cmp"
	"slices"
	"time"

	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

const (
	// SystemCritical is the priority from which on pods are critical (upstream's
	// scheduling.SystemCriticalPriority).
	SystemCritical = 2_000_000_000

	// tailPart is the part of a budget after a pod's last moment, tailMax how long that is at most. Chosen: containerd
	// answers after a kill and volumes go within a second. Raised, pods that use all of their time have less; lowered,
	// more of them end without a report.
	tailPart = 10
	tailMax  = 2 * time.Second

	// sidecarTime is how long each sidecar may take after the pod's last moment (core/podlife's sidecarGraceMin). Where
	// there is room, that moment is earlier by it, but never in the first half of the period.
	sidecarTime = 2 * time.Second

	// reportMax is how long the ends of the last pods are waited for to be reported. Chosen: an API server that is there
	// answers within a second, and one that ran on this machine may be gone.
	reportMax = 3 * time.Second
)

// A Period is a budget for the pods from a priority on, up to the next period's.
type Period struct {
	Priority int32
	Budget   time.Duration
}

// Periods returns the periods in order. all and critical are the whole budget and what critical pods have of it; they
// count if no period is given.
func Periods(all, critical time.Duration, given []Period) []Period {
	if len(given) == 0 {
		if all <= 0 || critical > all {
			return nil
		}
		return []Period{{0, all - critical}, {SystemCritical, critical}}
	}
	periods := slices.Clone(given)
	slices.SortStableFunc(periods, func(a, b Period) int { return cmp.Compare(a.Priority, b.Priority) })
	return periods
}

// Total is the sum of the budgets: how long the machine must wait.
func Total(periods []Period) (total time.Duration) {
	for _, p := range periods {
		total += p.Budget
	}
	return total
}

// Pod is a pod that ends with its machine.
type Pod struct {
	ID       string
	Priority int32
	Grace    time.Duration // its own termination grace period
	Sidecars int           // containers that end after the others
}

// Stage is how far a pod's end has come.
type Stage int

// The stages, in order.
const (
	Runs     Stage = iota // something of it runs, or has its volumes
	Ended                 // nothing of it runs
	Reported              // that it ended is known to the API server
)

// Shutdown is one shutdown. The zero Shutdown is over.
type Shutdown struct {
	phases []phase // those with pods
	at     int     // the one in progress; len(phases): all are over
	ends   unit.Instant
	until  unit.Instant // the end of the phase in progress, or of the wait for reports
	opened bool         // the phase in progress, or the wait, has begun
	over   bool
}

type phase struct {
	period Period
	pods   []Pod
}

// Stop is the order to end a pod.
type Stop struct {
	ID    string
	Grace time.Duration // from now on
}

// A Note says what a step decided, for the log.
type Note struct {
	Priority int32 // of the period
	What     What
	Pods     int           // in the period; of Overran: those that have not ended
	Budget   time.Duration // of the period
}

// What a Note says.
type What string

// What happens in a shutdown.
const (
	Opens    What = "period begins"
	AllEnded What = "all pods of the period have ended"
	Overran  What = "the period's budget is over"
	Unsaid   What = "the wait for reports is over"
)

// Decision is what is to be done.
type Decision struct {
	Stops []Stop
	Notes []Note
	Done  bool         // the machine may go
	Wake  unit.Instant // when Step must be called again at the latest, unless Done
}

// Begin begins a shutdown with these pods. A pod with a priority below the first period's counts to that.
func Begin(now unit.Instant, periods []Period, pods []Pod) *Shutdown {
	s := &Shutdown{ends: now.Add(Total(periods))}
	for i, p := range periods {
		var mine []Pod
		for _, pod := range pods {
			if at := placeOf(periods, pod.Priority); at == i {
				mine = append(mine, pod)
			}
		}
		if len(mine) == 0 {
			continue
		}
		slices.SortFunc(mine, func(a, b Pod) int { return cmp.Compare(a.ID, b.ID) })
		s.phases = append(s.phases, phase{period: p, pods: mine})
	}
	return s
}

// placeOf returns the last period that begins at or below a priority, else the first.
func placeOf(periods []Period, priority int32) (place int) {
	for i, p := range periods {
		if p.Priority <= priority {
			place = i
		}
	}
	return place
}

// Step says what to do next. stages are how far the pods have come; one that is missing has nothing here any more.
func (s *Shutdown) Step(now unit.Instant, stages map[string]Stage) Decision {
	var d Decision
	for !s.over && s.at < len(s.phases) {
		p := s.phases[s.at]
		if !s.opened {
			s.open(now, p, stages, &d)
		}
		left := p.behind(stages, Ended)
		if left > 0 && now < s.until {
			d.Wake = s.until
			return d
		}
		s.close(p, left, &d)
	}
	return s.await(now, stages, d)
}

// open begins a phase: its pods are to end.
func (s *Shutdown) open(now unit.Instant, p phase, stages map[string]Stage, d *Decision) {
	s.opened = true
	s.until = now.Add(p.period.Budget).Earlier(s.ends)
	d.Notes = append(d.Notes, p.note(Opens, len(p.pods)))
	for _, pod := range p.pods {
		if stageOf(stages, pod.ID) == Runs {
			d.Stops = append(d.Stops, Stop{ID: pod.ID, Grace: graceIn(max(s.until.Sub(now), 0), pod)})
		}
	}
}

func (s *Shutdown) close(p phase, left int, d *Decision) {
	what := AllEnded
	if left > 0 {
		what = Overran
	}
	d.Notes = append(d.Notes, p.note(what, left))
	s.at++
	s.opened = false
}

// await waits for the reports of what has ended.
func (s *Shutdown) await(now unit.Instant, stages map[string]Stage, d Decision) Decision {
	if s.over {
		d.Done = true
		return d
	}
	if !s.opened {
		s.opened = true
		s.until = now.Add(reportMax).Earlier(s.ends)
	}
	unsaid := 0
	for _, p := range s.phases {
		unsaid += p.behind(stages, Reported)
	}
	if unsaid > 0 && now < s.until {
		d.Wake = s.until
		return d
	}
	if unsaid > 0 {
		d.Notes = append(d.Notes, Note{What: Unsaid, Pods: unsaid})
	}
	s.over = true
	d.Done = true
	return d
}

func (p phase) note(what What, pods int) Note {
	return Note{Priority: p.period.Priority, What: what, Pods: pods, Budget: p.period.Budget}
}

// behind returns how many pods of a phase have not come to a stage.
func (p phase) behind(stages map[string]Stage, to Stage) (n int) {
	for _, pod := range p.pods {
		if stageOf(stages, pod.ID) < to {
			n++
		}
	}
	return n
}

func stageOf(stages map[string]Stage, id string) Stage {
	if stage, known := stages[id]; known {
		return stage
	}
	return Reported
}

// graceIn is how long a pod has in a phase that lasts as long as left.
func graceIn(left time.Duration, pod Pod) time.Duration {
	most := left - min(left/tailPart, tailMax)
	most = max(most-time.Duration(pod.Sidecars)*sidecarTime, min(most, left/2))
	return max(min(pod.Grace, most), 0)
}
