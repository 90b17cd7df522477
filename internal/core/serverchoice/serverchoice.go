// Package serverchoice decides which of its cluster's API servers a node uses.
//
// # Model
//
// A cluster has one or several API servers, each with a URL. A node uses one of them at a time. A Choice is told, each
// time that something was asked, which servers answered. It says which server to use from then on, and whom to ask
// when. The server in use is asked alone while it answers. Once it has been silent for a while, all are asked, and the
// node goes to the next that answers, in the circular order of URLs.
//
// # Invariants
//
//   - A server that answers is not left: a node does not go back when its first server returns. Each change costs the
//     node's programs a new connection and new lists.
//   - A server is left only for one that answers.
//   - A node whose cluster has one server asks nobody.
//
// # What it does not do
//
// It asks nobody itself, and does not spread nodes over servers.
package serverchoice

import (
	"slices"
	"time"

	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

const (
	// silenceMax is how long the server in use may be silent before others are asked. Chosen: longer than the restart of
	// a kube-apiserver takes on a busy machine (some 6 s), and with what follows well below the 40 s after which a
	// silent node counts as lost.
	silenceMax = 10 * time.Second
	// askPeriod is how often the server in use is asked while it answers (chosen).
	askPeriod = 5 * time.Second
	// retryPeriod is how often servers are asked while the one in use does not answer (chosen).
	retryPeriod = 2 * time.Second
)

// Seen is what was learned since the last step.
type Seen struct {
	Known    []string        // URLs of the cluster's servers; none: nothing was learned about that
	Answered map[string]bool // of those that were asked: whether they answered
}

// Decision says what to do next.
type Decision struct {
	Use    string        // the server to use
	Moved  bool          // it is another one than before
	Silent time.Duration // how long the server in use has been silent
	Ask    []string      // whom to ask when Wake has come; none: nobody
	Wake   unit.Instant  // when to step again
}

// Choice is the choice of one node.
type Choice struct {
	use   string
	known []string     // sorted; use is among them
	since unit.Instant // of the silence of the server in use; zero: it answers
}

// New returns the choice of a node that uses a server and knows of others.
func New(use string, known []string) *Choice {
	c := &Choice{use: use}
	c.learn(known)
	return c
}

func (c *Choice) learn(known []string) {
	if !slices.Contains(known, c.use) {
		known = append(slices.Clone(known), c.use)
	}
	c.known = slices.Compact(slices.Sorted(slices.Values(known)))
}

// Known returns the servers that the node knows, sorted.
func (c *Choice) Known() []string { return slices.Clone(c.known) }

// Step takes in what was seen and says what to do next.
func (c *Choice) Step(now unit.Instant, seen Seen) Decision {
	if len(seen.Known) > 0 {
		c.learn(seen.Known)
	}
	answered, asked := seen.Answered[c.use]
	switch {
	case asked && answered:
		c.since = 0
	case asked && c.since == 0:
		c.since = now
	}
	d := Decision{}
	if c.since != 0 {
		d.Silent = now.Sub(c.since)
		if next := c.next(seen.Answered); d.Silent >= silenceMax && next != "" {
			c.use = next
			c.since = 0
			d.Moved = true
		}
	}
	d.Use = c.use
	d.Wake = now.Add(askPeriod)
	switch {
	case len(c.known) < 2:
	case c.since == 0:
		d.Ask = []string{c.use}
	case d.Silent >= silenceMax:
		d.Ask = c.Known()
		d.Wake = now.Add(retryPeriod)
	default:
		d.Ask = []string{c.use}
		d.Wake = now.Add(retryPeriod)
	}
	return d
}

// AtOnce goes to a server that answers without waiting, at a node's start.
func (c *Choice) AtOnce(answered map[string]bool) string {
	if next := c.next(answered); !answered[c.use] && next != "" {
		c.use = next
		c.since = 0
	}
	return c.use
}

// next returns the next server after the one in use that answered; empty: none did.
func (c *Choice) next(answered map[string]bool) string {
	at := slices.Index(c.known, c.use)
	for i := 1; i < len(c.known); i++ {
		if server := c.known[(at+i)%len(c.known)]; answered[server] {
			return server
		}
	}
	return ""
}
