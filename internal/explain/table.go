package explain

import (
	"bytes"
	"fmt"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"
)

// newTable returns a writer that aligns columns. It must be flushed.
func newTable(out *bytes.Buffer) *tabwriter.Writer { return tabwriter.NewWriter(out, 0, 0, 3, ' ', 0) }

// Table returns the answer for people.
func (w *Waiting) Table() []byte {
	var out bytes.Buffer
	fmt.Fprintf(&out, "%s; %s.\n", countOf(w.Pods, "pod waits", "pods wait"), countOf(w.Nodes, "node", "nodes"))
	for _, g := range w.Groups {
		fmt.Fprintf(&out, "\n%s, since %s: %s\n", countOf(g.Count, "pod", "pods"), timeText(g.Since), names(g.Pods, g.Count))
		g.write(&out, g.Unspoken, g.Count)
	}
	writeRefused(&out, w.Refused)
	if w.Pods > 1 {
		fmt.Fprintf(&out, "\nEach pod is judged alone: what lets one in need not have room for all.\n")
	}
	writeUnseen(&out, w.Notes, w.Unseen)
	return out.Bytes()
}

// write prints a verdict. unspoken is about how many of count pods no scheduler has said anything.
func (v *Verdict) write(out *bytes.Buffer, unspoken, count int) {
	if v.NotJudged != "" {
		fmt.Fprintf(out, "  Not judged: %s.\n", v.NotJudged)
		return
	}
	if len(v.Gates) > 0 {
		fmt.Fprintf(out, "  Not scheduled before these gates are removed: %s.\n", strings.Join(v.Gates, ", "))
	}
	switch {
	case v.Feasible > 0:
		fmt.Fprintf(out, "  Fits now on %s: %s.\n", countOf(v.Feasible, "node", "nodes"), names(v.FeasibleNodes, v.Feasible))
	default:
		fmt.Fprintf(out, "  %s\n", v.Summary)
	}
	switch {
	case unspoken > 0 && count == 1:
		fmt.Fprintf(out, "  No scheduler has said anything about it: is the one that it names running?\n")
	case unspoken > 0:
		fmt.Fprintf(out, "  No scheduler has said anything about %d of %d: is the one that they name running?\n", unspoken,
			count)
	}
	if v.Feasible == 0 {
		table := newTable(out)
		for _, r := range v.Reasons {
			fmt.Fprintf(table, "    %s\t%s\t%s: %s\n", countOf(r.Count, "node", "nodes"), names(r.Nodes, r.Count), r.Plugin,
				r.Reason)
		}
		table.Flush()
	}
	if n := v.Nearest; n != nil {
		fmt.Fprintf(out, "  Nearest: %s: %s", n.Node, strings.Join(n.Reasons, "; "))
		for _, s := range n.Short {
			fmt.Fprintf(out, "; %s: %s requested, %s free of %s", s.Resource, s.Asked, s.Free, s.Allocatable)
		}
		if n.Detail != "" {
			fmt.Fprintf(out, " (%s)", n.Detail)
		}
		fmt.Fprintln(out)
	}
	v.writeChanges(out)
}

func (v *Verdict) writeChanges(out *bytes.Buffer) {
	switch {
	case len(v.Changes) > 0:
		fmt.Fprintf(out, "  Any one of these lets it in, the smallest first:\n")
	case v.Feasible == 0 && len(v.Reasons) > 0:
		fmt.Fprintf(out, "  No change of the pod, of a node or of a budget was found that lets it in.\n")
	}
	for _, c := range v.Changes {
		fmt.Fprintf(out, "    - %s\n", c.Text)
	}
}

// writeUnseen prints notes, and what could not be read.
func writeUnseen(out *bytes.Buffer, notes []string, unseen []Unseen) {
	if len(notes)+len(unseen) > 0 {
		fmt.Fprintln(out)
	}
	for _, note := range notes {
		fmt.Fprintf(out, "Note: %s.\n", note)
	}
	for _, u := range unseen {
		fmt.Fprintf(out, "Not seen: %s: %s (%s).\n", u.What, u.Effect, u.Error)
	}
}

// names prints some of total names.
func names(shown []string, total int) string {
	shown = some(shown)
	text := strings.Join(shown, ", ")
	if more := total - len(shown); more > 0 {
		text += fmt.Sprintf(", and %d more", more)
	}
	return text
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

func countOf(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}

func timeText(t time.Time) string {
	if t.IsZero() {
		return "an unknown time"
	}
	return t.UTC().Format(time.RFC3339)
}
