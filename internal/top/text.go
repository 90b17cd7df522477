package top

import (
	"bytes"
	"fmt"
	"strings"
)

// decisionsShown is how many decisions Text prints (chosen: half a screen).
const decisionsShown = 15

// Text returns the state for people who have no terminal: the page of v, whole. The page of nodes has the last
// decisions, too.
func (v *View) Text(s *State) []byte {
	whole := *v
	whole.Width, whole.Height = 0, 0
	var out bytes.Buffer
	print := func(l Line) { fmt.Fprintln(&out, strings.TrimRight(l.String(), " ")) }
	for _, l := range whole.banner(s) {
		print(l)
	}
	document := func(doc document) {
		for _, l := range doc.head {
			print(l)
		}
		for i := range doc.count {
			print(doc.line(i))
		}
	}
	document(whole.document(s))
	if whole.Page == Nodes && len(s.Decisions) > 0 {
		few := *s
		few.Decisions = s.Decisions[max(0, len(s.Decisions)-decisionsShown):]
		fmt.Fprintln(&out)
		document((&View{Page: Decisions}).decisionTable(&few))
	}
	for _, l := range s.Lacks {
		fmt.Fprintf(&out, "? %s: %s\n", clean(l.What), clean(l.Why))
	}
	return out.Bytes()
}
