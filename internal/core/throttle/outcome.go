package throttle

import (
	"fmt"
	"time"
)

// Kind is the purpose of a write.
type Kind int

// The kinds, the most important first.
const (
	Mark      Kind = iota // conditions and taints of nodes: no more pods are sent to a lost node
	Readiness             // readiness of pods on lost nodes: takes them out of Services
	Evict                 // eviction of pods
	Bind                  // a pod's node
	Status                // the status of a pod that runs, or why it waits
	Overdue               // Events that have waited too long (see EventKind)
	Warning               // Events of type Warning
	Event                 // other Events
	kindCount
)

// kinds holds the name of each kind, and its share of the writes that start and of the limit while a more important
// kind is active. The shares are chosen so that marks keep two thirds of a busy server when all other kinds wait too,
// and binds nine tenths when only less important kinds wait. Events cost the server as much as a bind, so they may take
// a few hundredths from a burst of binds or marks. Overdue Events go out one for each other write. That is enough for a
// component that makes one Event per write, and more Events than that do not become overdue.
var kinds = [kindCount]struct {
	name  string
	share float64
}{
	Mark:      {"mark", 1},
	Readiness: {"readiness", 1. / 8},
	Evict:     {"evict", 1. / 8},
	Bind:      {"bind", 3. / 4},
	Status:    {"status", 1. / 16},
	Overdue:   {"overdue", 1},
	Warning:   {"warning", 1. / 32},
	Event:     {"event", 1. / 64},
}

// Kinds returns all kinds, the most important first.
func Kinds() []Kind {
	all := make([]Kind, kindCount)
	for k := range all {
		all[k] = Kind(k)
	}
	return all
}

func (k Kind) String() string {
	if k < 0 || k >= kindCount {
		return fmt.Sprintf("kind %d", int(k))
	}
	return kinds[k].name
}

const (
	// WarningOverdueAfter and EventOverdueAfter are how long Events wait during a burst before they become overdue.
	// Chosen: a user who looks up why a pod is not placed waits one second. A burst of some thousand pods, which takes
	// 10 s at a server that handles 800 binds a second, is not slowed down by its Events.
	WarningOverdueAfter = time.Second
	EventOverdueAfter   = 10 * time.Second
)

// BusyMax is how long a node's Events, other than Warnings, and statuses that only show progress, wait while pods wait
// for others to start. Chosen: on two CPUs, which start about seven pods a second, the Events and progress of 110 pods
// (upstream's default maxPods) that come at once wait until the last has started. Lowered, the API server takes CPU
// time from the starts; raised, users of a larger burst see for longer that nothing is known of a pod.
const BusyMax = 30 * time.Second

// EventKind returns the kind of an Event at first, and its kind after it has waited for so long. It is for components
// that make one Event for each write: their Events wait during a burst, and keep up with a load that does not end.
func EventKind(warning bool) (first Kind, then Kind, after time.Duration) {
	if warning {
		return Warning, Overdue, WarningOverdueAfter
	}
	return Event, Overdue, EventOverdueAfter
}

// Class is a kind of request: method and resource. Requests of one class take about the same time.
type Class string

// An Answer is how a write ended.
type Answer int

// The answers.
const (
	Answered  Answer = iota // the server answered, also with an error that the caller caused: the time counts
	Refused                 // the server is overloaded (429)
	Failed                  // 5xx, no answer in time, no connection
	Withdrawn               // the caller gave up: this says nothing about the server
)

var answers = [...]string{Answered: "answered", Refused: "refused", Failed: "failed", Withdrawn: "withdrawn"}

func (a Answer) String() string {
	if a < 0 || int(a) >= len(answers) {
		return fmt.Sprintf("answer %d", int(a))
	}
	return answers[a]
}

// Outcome is the result of a write.
type Outcome struct {
	Kind       Kind
	Class      Class
	Took       time.Duration // from its start to its answer
	Answer     Answer
	RetryAfter time.Duration // from the server's refusal; zero: it sent none
}
