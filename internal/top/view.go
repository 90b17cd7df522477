package top

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// Page is what a View shows.
type Page int

// Pages. A page is reached from those above it.
const (
	Nodes Page = iota
	Pods
	Decisions
	OneNode
	OnePod
	Help
)

// The least terminal on which there is room for a table, in characters (chosen: a name, its state and three numbers;
// three rows).
const (
	WidthMin  = 50
	HeightMin = 10
)

// textWidth is the width of bars and sparklines where there is no terminal, in characters (chosen, as in prose).
const textWidth = 120

// View is what the user looks at.
type View struct {
	Width, Height int // of the terminal, in characters; 0: no limit
	Page          Page
	Node          string // of the page OneNode
	Pod           string // of the page OnePod: NAMESPACE/NAME
	Filter        string
	Typing        bool // the user types the filter
	Sort          map[Page]string
	Reverse       bool
	// Story is what is known of the pod of OnePod, by lines; nil: it was asked for.
	Story []string
	Every time.Duration // between two refreshes

	chosen string // the id of the selected row
	top    int    // the first row on the screen
	rows   int    // how many rows the screen had
	back   []place

	ordered podOrder // of the pods that were shown last
	shown   []string // the ids of the rows on the screen
}

// Shown returns the ids of the rows that were on the screen last: of a page of pods, NAMESPACE/NAME.
func (v *View) Shown() []string { return v.shown }

// place is where the user was before.
type place struct {
	page   Page
	node   string
	pod    string
	chosen string
	filter string
}

// Order is what a key asks the program for, beyond what it changed in the View.
type Order int

// Orders.
const (
	Stay Order = iota
	Quit
	AskStory // of the pod View.Pod
)

// document is a page: lines that stay, and rows, of which those on the screen are made.
type document struct {
	head  []Line
	count int
	line  func(int) Line
	id    func(int) string // empty: the row cannot be selected
}

func linesOf(lines []Line) document {
	return document{
		count: len(lines),
		line:  func(i int) Line { return lines[i] },
		id:    func(int) string { return "" },
	}
}

// sortOf is the column by which a page is sorted.
func (v *View) sortOf(p Page) string {
	if p == OneNode {
		p = Pods
	}
	if by := v.Sort[p]; by != "" {
		return by
	}
	return byName
}

// Sorts are the names of columns by which a page can be sorted.
func Sorts(p Page) []string {
	switch p {
	case Nodes:
		return names(nodeColumns)
	case Pods, OneNode:
		return names(podColumns(time.Time{}, true))
	}
	return nil
}

// document returns the page.
func (v *View) document(s *State) document {
	switch v.Page {
	case Pods:
		return v.podTable(s)
	case Decisions:
		return v.decisionTable(s)
	case OneNode:
		return v.nodePage(s)
	case OnePod:
		if v.Story == nil {
			return linesOf([]Line{dim("Asking what became of " + v.Pod + " ...")})
		}
		return document{
			count: len(v.Story),
			line:  func(i int) Line { return plain(v.Story[i]) },
			id:    func(int) string { return "" },
		}
	case Help:
		return linesOf(help())
	}
	return v.nodeTable(s)
}

func help() (out []Line) {
	for _, text := range []string{
		"1 2 3, tab      nodes, pods, decisions",
		"up down j k     select; page up, page down, home, end move",
		"enter           descend: into a node, into a pod's story (as plimsoll explain pod tells it)",
		"esc, backspace  back",
		"s, S            sort by the next column, by the one before; r turns the order round",
		"/               filter: words that a row must have; enter ends, esc removes it",
		"q, ctrl+c       quit",
		"",
		"A load line is all of a node's capacity:",
		"  █ used  ▒ requested beyond that  · free  ╳ reserved",
		"? is what is not known; the last lines say why.",
	} {
		out = append(out, plain(text))
	}
	return out
}

// Lines returns the screen. It moves the view if the selected row would not be on it.
func (v *View) Lines(s *State) []Line {
	if v.Width < WidthMin || v.Height < HeightMin {
		text := fmt.Sprintf("The terminal has %dx%d characters; plimsoll top needs %dx%d.", v.Width, v.Height, WidthMin,
			HeightMin)
		return Line{{text, Warn}}.wrap(v.Width, v.Height)
	}
	out := v.banner(s)
	doc := v.document(s)
	foot := v.foot(s)
	for _, l := range doc.head {
		out = append(out, l.cut(v.Width))
	}
	rows := max(v.Height-len(out)-len(foot), 1)
	v.rows = rows
	at := v.follow(&doc, rows)
	v.shown = nil // who asked for the last ones may keep them
	for i := v.top; i < min(v.top+rows, doc.count); i++ {
		v.shown = append(v.shown, doc.id(i))
		l := doc.line(i).cut(v.Width)
		if i == at {
			l = Line{{pad(l.String(), v.Width, false), Chosen}}
		}
		out = append(out, l)
	}
	if doc.count == 0 {
		out = append(out, dim(v.emptyText(s)).cut(v.Width))
	}
	for len(out) < v.Height-len(foot) {
		out = append(out, Line{})
	}
	out = append(out, foot...)
	return out[:min(len(out), v.Height)]
}

func (v *View) emptyText(s *State) string {
	switch {
	case !s.Synced:
		return "Reading the cluster ..."
	case v.Filter != "":
		return "Nothing matches the filter."
	}
	return "There are none."
}

// wrap breaks a line into at most height lines of width.
func (l Line) wrap(width, height int) (out []Line) {
	rest := []rune(l.String())
	for width > 0 && len(rest) > 0 && len(out) < height {
		n := min(width, len(rest))
		out = append(out, Line{{string(rest[:n]), l[0].Style}})
		rest = rest[n:]
	}
	return out
}

// banner is the first lines: the cluster, and what is wrong with it.
func (v *View) banner(s *State) []Line {
	ready := 0 // nodes
	for _, n := range s.Nodes {
		if n.State == "Ready" {
			ready++
		}
	}
	where := ""
	switch v.Page {
	case OneNode:
		where = " › node " + v.Node
	case OnePod:
		where = " › pod " + v.Pod
	default:
		where = " › " + [...]string{"nodes", "pods", "decisions", "", "", "help"}[v.Page]
	}
	text := fmt.Sprintf("  %s  %d nodes (%d Ready)", s.Now.UTC().Format("15:04:05Z"), s.NodeCount, ready)
	if s.Blind {
		text += "  " + unknown + " pods"
	} else {
		text += fmt.Sprintf("  %d pods (%d wait)", s.PodCount, s.Waiting)
	}
	out := []Line{Line{{"plimsoll top" + clean(where), Title}, {text, Plain}}.cut(v.Width)}
	if s.Away != "" {
		text := "The API server does not answer: " + clean(s.Away)
		if !s.Since.IsZero() {
			text = fmt.Sprintf("The API server does not answer; these values are %s old: %s", ageText(s.Now.Sub(s.Since)),
				clean(s.Away))
		}
		out = append(out, Line{{text, Bad}}.cut(v.Width))
	}
	return out
}

// foot is the last lines: what is not known, and keys.
func (v *View) foot(s *State) (out []Line) {
	if len(s.Lacks) > 0 {
		text := fmt.Sprintf("? %s: %s", s.Lacks[0].What, s.Lacks[0].Why)
		if more := len(s.Lacks) - 1; more > 0 {
			text = fmt.Sprintf("? (and %d more) %s: %s", more, s.Lacks[0].What, s.Lacks[0].Why)
		}
		out = append(out, dim(text).cut(v.Width))
	}
	switch {
	case v.Typing:
		out = append(out, titled("filter: "+v.Filter+"▏").cut(v.Width))
	case v.Filter != "":
		out = append(out, plain("filter: "+v.Filter+"  (/ changes it, esc removes it)").cut(v.Width))
	default:
		out = append(out, dim("1 nodes  2 pods  3 decisions  enter descend  esc back  s sort  r reverse  / filter  ? help  "+
			"q quit").cut(v.Width))
	}
	return out
}

// follow returns the place of the selected row, -1 if there is none, and moves the view within the document.
func (v *View) follow(doc *document, rows int) int {
	v.top = min(max(v.top, 0), max(doc.count-rows, 0))
	at := v.find(doc)
	if at < 0 && v.chosen != "" || at < 0 && v.Page < OneNode {
		if at = v.next(doc, v.top-1, 1); at >= 0 {
			v.chosen = doc.id(at)
		}
	}
	if at >= 0 && v.Page < OneNode || at >= 0 && v.moved(at, rows) {
		v.top = min(max(v.top, at-rows+1), at)
	}
	return at
}

// moved reports whether the row at is just outside of the screen. On a page with lines above its rows, a user may have
// turned away from the selected row.
func (v *View) moved(at, rows int) bool { return at == v.top-1 || at == v.top+rows }

func (v *View) find(doc *document) int {
	if v.chosen == "" {
		return -1
	}
	for i := range doc.count {
		if doc.id(i) == v.chosen {
			return i
		}
	}
	return -1
}

// next returns the next row after at that can be selected, in steps; -1: there is none.
func (v *View) next(doc *document, at, step int) int {
	for i := at + step; i >= 0 && i < doc.count; i += step {
		if doc.id(i) != "" {
			return i
		}
	}
	return -1
}

// Key changes the view for a key, by the name that bubbletea gives it.
func (v *View) Key(key string, s *State) Order {
	if v.Typing {
		v.typed(key)
		return Stay
	}
	switch key {
	case "q", "ctrl+c":
		return Quit
	case "1", "2", "3":
		v.open(Page(key[0] - '1'))
	case "tab":
		v.open((min(v.Page, Decisions) + 1) % (Decisions + 1))
	case "?":
		v.descend(place{page: Help})
	case "/":
		v.Typing = true
	case "esc", "backspace", "left":
		v.up()
	case "r":
		v.Reverse = !v.Reverse
	case "s":
		v.resort(1)
	case "S":
		v.resort(-1)
	case "enter", "right":
		return v.enter(s)
	default:
		v.move(key, s)
	}
	return Stay
}

// typed changes the filter.
func (v *View) typed(key string) {
	switch key {
	case "enter":
		v.Typing = false
	case "esc", "ctrl+c":
		v.Typing, v.Filter = false, ""
	case "backspace":
		if letters := []rune(v.Filter); len(letters) > 0 {
			v.Filter = string(letters[:len(letters)-1])
		}
	case "space":
		v.Filter += " "
	default:
		if letters := []rune(key); len(letters) == 1 {
			v.Filter += key
		}
	}
	v.top = 0
}

func (v *View) resort(step int) {
	of := Sorts(v.Page)
	if len(of) == 0 {
		return
	}
	page := v.Page
	if page == OneNode {
		page = Pods
	}
	if v.Sort == nil {
		v.Sort = map[Page]string{}
	}
	at := slices.Index(of, v.sortOf(page))
	v.Sort[page] = of[(at+step+len(of))%len(of)]
}

// open goes to a page, and forgets the way.
func (v *View) open(p Page) {
	if v.Page != p {
		v.chosen, v.Filter = "", ""
	}
	v.Page, v.top = p, 0
	v.back = nil
}

// descend goes to a page from which there is a way back.
func (v *View) descend(to place) {
	v.back = append(v.back, place{page: v.Page, node: v.Node, pod: v.Pod, chosen: v.chosen, filter: v.Filter})
	v.goTo(to)
}

func (v *View) goTo(to place) {
	v.Page = to.page
	v.Node = to.node
	v.Pod = to.pod
	v.chosen = to.chosen
	v.Filter = to.filter
	v.top = 0
}

func (v *View) up() {
	if v.Filter != "" {
		v.Filter = ""
		return
	}
	if n := len(v.back); n > 0 {
		to := v.back[n-1]
		v.back = v.back[:n-1]
		v.goTo(to)
	} else if v.Page >= OneNode {
		v.open(Nodes)
	}
}

// enter descends into the selected row.
func (v *View) enter(s *State) Order {
	doc := v.document(s)
	at := v.find(&doc)
	if at < 0 {
		return Stay
	}
	if at < v.top || at >= v.top+v.rows { // it is shown first
		v.top = at
		return Stay
	}
	pod := v.chosen
	switch v.Page {
	case Nodes:
		v.descend(place{page: OneNode, node: v.chosen})
		return Stay
	case Decisions:
		_, about, _ := strings.Cut(v.chosen, " ")
		kind, name, _ := strings.Cut(about, " ")
		if kind != "true" {
			if slices.ContainsFunc(s.Nodes, func(n *Node) bool { return n.Name == name }) {
				v.descend(place{page: OneNode, node: name})
			}
			return Stay
		}
		pod = name
	case OneNode, Pods:
	default:
		return Stay
	}
	v.descend(place{page: OnePod, node: v.Node, pod: pod})
	v.Story = nil
	return AskStory
}

// move selects another row, or moves the screen.
func (v *View) move(key string, s *State) {
	doc := v.document(s)
	rows := max(v.Height-len(v.banner(s))-len(doc.head)-len(v.foot(s)), 1)
	at := v.follow(&doc, rows)
	if at < v.top || at >= v.top+rows { // nobody sees it
		at = -1
		v.chosen = ""
	}
	step := 0
	switch key {
	case "up", "k":
		step = -1
	case "down", "j":
		step = 1
	case "pgup":
		step = -rows
	case "pgdown", "space":
		step = rows
	case "home", "g":
		step = -doc.count
	case "end", "G":
		step = doc.count
	default:
		return
	}
	if v.Page >= OneNode && (at < 0 || step != 1 && step != -1) {
		v.top = min(max(v.top+step, 0), max(doc.count-rows, 0))
		if at < 0 {
			if first := v.next(&doc, -1, 1); first >= 0 && first < v.top+rows {
				v.chosen = doc.id(max(first, v.next(&doc, v.top-1, 1)))
			}
		}
		return
	}
	to := min(max(at+step, 0), max(doc.count-1, 0))
	if doc.count == 0 || doc.id(to) == "" { // above the first row: the lines are turned
		v.top = max(v.top+step, 0)
		return
	}
	v.chosen = doc.id(to)
	if to < v.top || to >= v.top+rows {
		v.top = min(max(v.top, to-rows+1), to)
	}
}
