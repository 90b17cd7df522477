package sim

import (
	"fmt"
	"strings"
	"time"

	"github.com/plimsoll-dev/plimsoll/internal/core/fault"
)

// Event is a fault of nodes, or one of the events below, which concern the API server and the controller.
type Event struct {
	At   time.Duration
	What string // "fault", or one of the constants below
	fault.Order
}

// Values of Event.What. faultOrdered stands for a fault of nodes.
const (
	apiDown           = "api down"
	apiUp             = "api up"
	controllerRestart = "controller restart"
	faultOrdered      = "fault"
)

// ParseScript reads orders of core/fault, one per line, and also:
//
//	at DURATION api down|up
//	at DURATION controller restart
//
// All problems are in one error.
func ParseScript(text string) ([]Event, error) {
	var events []Event
	err := fault.EachLine(text, func(line string) (time.Duration, error) {
		e, err := parseEvent(line)
		if err == nil {
			events = append(events, e)
		}
		return e.At, err
	})
	return events, err
}

func parseEvent(line string) (Event, error) {
	words := strings.Fields(line)
	if len(words) == 4 && words[0] == "at" {
		switch what := words[2] + " " + words[3]; what {
		case apiDown, apiUp, controllerRestart:
			at, err := time.ParseDuration(words[1])
			if err != nil || at < 0 || at > forMax {
				return Event{}, fmt.Errorf("read event %q: at: %q: want a duration like 30s, 5m or 1h30m, at most a year", line,
					words[1])
			}
			return Event{At: at, What: what}, nil
		}
	}
	o, err := fault.Parse(line)
	if err != nil {
		return Event{}, fmt.Errorf("%w; or at DURATION api down|up, controller restart", err)
	}
	return Event{At: o.At, What: faultOrdered, Order: o}, nil
}

// String returns e in the form that ParseScript reads.
func (e Event) String() string {
	if e.What == faultOrdered {
		return e.Order.String()
	}
	return fmt.Sprintf("at %v %s", e.At, e.What)
}

// checkScript returns an error for names that no node or zone has.
func (o *Options) checkScript() (errs []error) {
	if o.Nodes < 1 || o.Nodes > NodesMax || o.Zones < 1 {
		return nil
	}
	var all []fault.Candidate
	for _, e := range o.Script {
		if e.What != faultOrdered || e.Select.Zone == "" && len(e.Select.Nodes) == 0 {
			continue
		}
		if all == nil {
			for i := range o.Nodes {
				all = append(all, fault.Candidate{Name: nodeName(i), Zone: zoneName(i % o.Zones)})
			}
		}
		if _, err := e.Pick(o.Seed, all); err != nil {
			errs = append(errs, fmt.Errorf("--faults: %w", err))
		}
	}
	return errs
}

// Day is a bad day of a large cluster, for the project's own performance bar: 50,000 nodes in ten zones.
const Day = `
at 1h     silence count=100                    # machines die, and stay dead
at 2h     partition zone=zone-1 for=45m        # a zone is cut off
at 4h     flap up=3m down=70s count=50 for=1h  # bad cables
at 6h     silence percent=60 zone=zone-2 for=30m
at 8h     silence zone=zone-3                  # a zone loses power,
at 10h    return zone=zone-3                   # for two hours
at 11h    api down
at 11h5m  api up                               # nobody could renew
at 12h    controller restart
at 13h    notready count=500 for=20m
at 14h    partition for=10m                    # every node: it is we who are cut off
at 16h    silence zone=zone-4
at 16h1m  controller restart                   # in the middle of it
at 17h    return zone=zone-4
at 18h    slow delay=4s percent=20 for=1h
at 20h    silence zone=zone-5
at 20h    silence zone=zone-6
at 21h    return
`
