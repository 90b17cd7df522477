package shadow

import (
	"cmp"
	"encoding/json"
	"fmt"
	"strings"
	"time"
	"unicode"

	coreshadow "github.com/plimsoll-dev/plimsoll/internal/core/shadow"
)

// A Line is what is printed about one comparison. Its keys are for programs: they stay.
type Line struct {
	Time    time.Time    `json:"time"`
	Kind    string       `json:"kind"`
	Finding bool         `json:"finding,omitempty"` // the decisions differ
	Pod     string       `json:"pod,omitempty"`
	Node    string       `json:"node,omitempty"`
	What    string       `json:"what,omitempty"`
	Why     string       `json:"why,omitempty"`
	Ours    string       `json:"ours,omitempty"`
	Theirs  string       `json:"theirs,omitempty"`
	Nodes   int          `json:"feasibleNodes,omitempty"`
	Best    *Score       `json:"best,omitempty"`
	Got     *Score       `json:"got,omitempty"`
	Differs []Difference `json:"differs,omitempty"`
	// Lead is how many seconds sooner our decision was. Of what only one side did: how long it was so.
	Lead *float64 `json:"leadSeconds,omitempty"`
	Text string   `json:"text"` // the same for people
}

// Score is a node and the weighted sum of its scores.
type Score struct {
	Node  string `json:"node"`
	Total int64  `json:"total"`
}

// Difference is what one plugin gives two nodes, times its weight.
type Difference struct {
	Plugin string `json:"plugin"`
	Best   int64  `json:"best"`
	Got    int64  `json:"got"`
}

// String returns l as one line of text.
func (l Line) String() string {
	mark := " "
	if l.Finding {
		mark = "!"
	}
	return fmt.Sprintf("%s %s %-10s %s", l.Time.UTC().Format("2006-01-02T15:04:05.000Z"), mark, l.Kind, oneLine(l.Text))
}

// JSON returns l as one line of JSON.
func (l Line) JSON() ([]byte, error) { return json.Marshal(l) }

// lineOf translates an Event.
func (w *watcher) lineOf(e *coreshadow.Event) Line {
	l := Line{
		Time:    w.clock.At(e.At),
		Kind:    string(e.Kind),
		Finding: e.Kind.Finding(),
		Pod:     e.Pod,
		Node:    e.Node,
		What:    e.What,
		Why:     e.Why,
		Ours:    e.Ours,
		Theirs:  e.Theirs,
		Nodes:   e.Nodes,
		Text:    text(e),
	}
	if e.Best.Node != "" {
		l.Best = &Score{e.Best.Node, e.Best.Total}
	}
	if e.Got.Node != "" {
		l.Got = &Score{e.Got.Node, e.Got.Total}
	}
	for _, d := range e.Differs {
		l.Differs = append(l.Differs, Difference(d))
	}
	if e.HasLead || e.Kind == coreshadow.OnlyOurs || e.Kind == coreshadow.OnlyTheirs {
		seconds := e.Lead.Seconds()
		l.Lead = &seconds
	}
	return l
}

// text says what an Event means.
func text(e *coreshadow.Event) string {
	if e.Node != "" {
		return nodeText(e)
	}
	switch e.Kind {
	case coreshadow.SameNode:
		return fmt.Sprintf("pod %s: both: %s%s%s", e.Pod, e.Theirs, ofNodes(e), leadText(e))
	case coreshadow.EqualNode:
		return fmt.Sprintf("pod %s: theirs %s, ours %s, with the same score%s%s", e.Pod, e.Theirs, cmp.Or(e.Ours, "none yet"),
			ofNodes(e), leadText(e))
	case coreshadow.LowerScore:
		return fmt.Sprintf("pod %s: theirs %s has score %d, and %s has %d%s%s%s", e.Pod, e.Theirs, e.Got.Total, e.Best.Node,
			e.Best.Total, differences(e), ofNodes(e), leadText(e))
	case coreshadow.Rejected:
		return fmt.Sprintf("pod %s: theirs %s is not possible: %s%s%s", e.Pod, e.Theirs, e.Why, ofNodes(e), leadText(e))
	case coreshadow.Uncertain:
		return fmt.Sprintf("pod %s: theirs %s, ours %s: the cluster changed in between, so it is not judged%s%s", e.Pod,
			e.Theirs, cmp.Or(e.Ours, "none yet"), ofNodes(e), leadText(e))
	case coreshadow.BothRefuse:
		return fmt.Sprintf("pod %s: both: nowhere: %s", e.Pod, e.Why)
	case coreshadow.Fits:
		return fmt.Sprintf("pod %s: fits on %s, the best is %s, and they say: %s", e.Pod, countOf(e.Nodes, "node", "nodes"),
			e.Best.Node, e.Why)
	case coreshadow.NotJudged:
		return fmt.Sprintf("pod %s: not judged: %s, which plimsoll's core does not know", e.Pod, e.Why)
	}
	return e.Pod
}

func nodeText(e *coreshadow.Event) string {
	about := "node " + e.Node
	if e.Pod != "" {
		about = fmt.Sprintf("pod %s on node %s", e.Pod, e.Node)
	}
	why := ""
	if e.Why != "" {
		why = ": " + e.Why
	}
	switch e.Kind {
	case coreshadow.Would:
		return fmt.Sprintf("%s: we would now: %s%s", about, e.What, why)
	case coreshadow.BothDid:
		return fmt.Sprintf("%s: both: %s%s", about, e.What, leadText(e))
	case coreshadow.OnlyOurs:
		return fmt.Sprintf("%s: only ours, for %s: %s%s", about, short(e.Lead), e.What, why)
	case coreshadow.OnlyTheirs:
		return fmt.Sprintf("%s: only theirs, for %s: %s%s", about, short(e.Lead), e.What, why)
	}
	return about
}

func ofNodes(e *coreshadow.Event) string {
	if e.Nodes == 0 {
		return ""
	}
	return fmt.Sprintf(" (fits on %s)", countOf(e.Nodes, "node", "nodes"))
}

// differences prints what the plugins give the best node and theirs.
func differences(e *coreshadow.Event) string {
	var parts []string
	for _, d := range e.Differs {
		parts = append(parts, fmt.Sprintf("%s %d and %d", d.Plugin, d.Got, d.Best))
	}
	if len(parts) == 0 {
		return ""
	}
	return ": " + strings.Join(parts, ", ")
}

func leadText(e *coreshadow.Event) string {
	switch {
	case e.Late:
		return "; theirs was sooner"
	case !e.HasLead:
		return ""
	case e.Lead < 0:
		return "; theirs " + short(-e.Lead) + " sooner"
	}
	return "; ours " + short(e.Lead) + " sooner"
}

// short prints a duration with three digits or so.
func short(d time.Duration) string {
	switch {
	case d < time.Millisecond && d > -time.Millisecond:
		return d.Round(time.Microsecond).String()
	case d < time.Second && d > -time.Second:
		return d.Round(100 * time.Microsecond).String()
	}
	return d.Round(10 * time.Millisecond).String()
}

func countOf(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}

// oneLine returns text that others wrote without control characters: these would end the line, or change the terminal.
func oneLine(text string) string {
	return strings.TrimSpace(strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return ' '
		}
		return r
	}, text))
}
