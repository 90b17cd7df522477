package shadow

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	coreshadow "github.com/plimsoll-dev/plimsoll/internal/core/shadow"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

// Summary is what a run found. Its keys are for programs: they stay.
type Summary struct {
	Kind    string  `json:"kind"`    // "Summary", so that it is told apart from Lines
	Seconds float64 `json:"seconds"` // how long was watched
	Nodes   int     `json:"nodes"`   // now
	Pods    int     `json:"pods"`    // now
	Waiting int     `json:"waiting"` // pods without a node, now

	Counts map[string]int `json:"counts"` // of Lines, by kind
	// Agree is how many of the Judged decisions about pods are the same, or equally good.
	Agree  int `json:"agree"`
	Judged int `json:"judged"`
	// PodLeads are how much sooner our decisions about pods were than the binds, NodeLeads than what was written about
	// nodes. Late is how many pods were bound before we had decided.
	PodLeads  Leads `json:"podLeads"`
	NodeLeads Leads `json:"nodeLeads"`
	Late      int   `json:"late"`

	Findings []Line   `json:"findings"` // the first of each kind
	Open     []Line   `json:"open,omitempty"`
	Notes    []string `json:"notes,omitempty"`
	Unseen   []Unseen `json:"unseen,omitempty"`
}

// Leads are percentiles, in seconds.
type Leads struct {
	Of  int     `json:"of"`
	Min float64 `json:"min"`
	P50 float64 `json:"p50"`
	P90 float64 `json:"p90"`
	P99 float64 `json:"p99"`
	Max float64 `json:"max"`
}

func leadsOf(s coreshadow.Spread) Leads {
	return Leads{
		Of:  s.Of,
		Min: s.Min.Seconds(),
		P50: s.P50.Seconds(),
		P90: s.P90.Seconds(),
		P99: s.P99.Seconds(),
		Max: s.Max.Seconds(),
	}
}

// openAfter is for how long only one side must have done something before a Summary has it. Chosen: upstream checks
// nodes every 5 s, so what is younger may only be late.
const openAfter = 10 * time.Second

// summary is called by the watcher's goroutine.
func (w *watcher) summary(now unit.Instant) *Summary {
	s := &Summary{
		Kind:      "Summary",
		Seconds:   now.Sub(w.began).Seconds(),
		Nodes:     w.count.nodes,
		Pods:      w.count.pods(),
		Counts:    map[string]int{},
		PodLeads:  leadsOf(w.tally.Pods()),
		NodeLeads: leadsOf(w.tally.Nodes()),
		Late:      w.tally.Late,
		Findings:  append([]Line{}, w.findings...),
		Unseen:    w.unseen,
	}
	s.Waiting, _ = w.placements.Waiting()
	s.Agree, s.Judged = w.tally.Judged()
	for _, k := range coreshadow.Kinds() {
		s.Counts[string(k)] = w.tally.Counts[k]
	}
	for _, e := range w.nodes.Open(now) {
		if e.Lead >= openAfter && len(s.Open) < findingsMax {
			s.Open = append(s.Open, w.lineOf(&e))
		}
	}
	for name, n := range w.others {
		s.Notes = append(s.Notes, fmt.Sprintf("pods of scheduler %q were not compared (%s): the configuration has no "+
			"profile of that name", name, countOf(n, "sighting", "sightings")))
	}
	if len(w.o.Config.Extenders) > 0 {
		s.Notes = append(s.Notes, "the extenders of the configuration are not asked")
	}
	slices.Sort(s.Notes)
	return s
}

// JSON returns s as one line.
func (s *Summary) JSON() ([]byte, error) { return json.Marshal(s) }

// words says what each kind means, in the order of the summary.
var words = map[coreshadow.Kind]string{
	coreshadow.SameNode:   "the same node",
	coreshadow.EqualNode:  "another node, with the same score",
	coreshadow.LowerScore: "theirs has a lower score",
	coreshadow.Rejected:   "theirs is not possible for the core",
	coreshadow.Uncertain:  "not judged: the cluster changed in between",
	coreshadow.BothRefuse: "both say that the pod fits nowhere",
	coreshadow.Fits:       "only they say that the pod fits nowhere",
	coreshadow.NotJudged:  "not judged: the core does not know what the pod needs",
	coreshadow.BothDid:    "conditions, taints and evictions of both",
	coreshadow.OnlyOurs:   "of ours only",
	coreshadow.OnlyTheirs: "of theirs only",
}

// Text returns s for people.
func (s *Summary) Text() []byte {
	var out bytes.Buffer
	watched := time.Duration(s.Seconds * float64(time.Second)).Round(time.Second)
	fmt.Fprintf(&out, "\nWatched for %s: %s, %s, %d wait. Nothing was written.\n", watched,
		countOf(s.Nodes, "node", "nodes"), countOf(s.Pods, "pod", "pods"), s.Waiting)
	if s.Judged > 0 {
		fmt.Fprintf(&out, "Of %s about pods, %d agree (%.1f %%).\n", countOf(s.Judged, "decision", "decisions"), s.Agree,
			100*float64(s.Agree)/float64(s.Judged))
	} else {
		fmt.Fprintf(&out, "No decision about a pod was seen.\n")
	}
	table := tabwriter.NewWriter(&out, 0, 0, 3, ' ', 0)
	for _, k := range coreshadow.Kinds() {
		if n := s.Counts[string(k)]; n > 0 {
			mark := " "
			if k.Finding() {
				mark = "!"
			}
			fmt.Fprintf(table, "%s %s\t%d\t%s\n", mark, k, n, words[k])
		}
	}
	table.Flush()
	s.PodLeads.write(&out, "Our decision before their bind")
	if s.Late > 0 {
		fmt.Fprintf(&out, "%s before we had decided.\n", countOf(s.Late, "pod was bound", "pods were bound"))
	}
	s.NodeLeads.write(&out, "Ours before theirs, about nodes")
	writeLines(&out, "Findings", s.Findings)
	writeLines(&out, "Done by one side only, so far", s.Open)
	if len(s.Notes)+len(s.Unseen) > 0 {
		fmt.Fprintln(&out)
	}
	for _, note := range s.Notes {
		fmt.Fprintf(&out, "Note: %s.\n", note)
	}
	for _, u := range s.Unseen {
		fmt.Fprintf(&out, "Not seen: %s: %s (%s).\n", u.What, u.Effect, oneLine(u.Error))
	}
	return out.Bytes()
}

func (l Leads) write(out *bytes.Buffer, what string) {
	if l.Of == 0 {
		return
	}
	text := func(seconds float64) string { return short(time.Duration(seconds * float64(time.Second))) }
	fmt.Fprintf(out, "%s (%d): least %s, half %s, 90 %% %s, 99 %% %s, most %s.\n", what, l.Of, text(l.Min), text(l.P50),
		text(l.P90), text(l.P99), text(l.Max))
}

func writeLines(out *bytes.Buffer, head string, lines []Line) {
	if len(lines) == 0 {
		return
	}
	fmt.Fprintf(out, "\n%s:\n", head)
	for _, l := range lines {
		fmt.Fprintln(out, strings.TrimRight(l.String(), " "))
	}
}
