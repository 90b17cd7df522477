// Package screen draws plimsoll top on a terminal, with bubbletea.
//
// # Model
//
// A frame is made from the last State when a key is pressed, and from a new State at intervals. The interval grows with
// what a State and a frame cost, up to a bound: an idle page of 5,000 nodes or 150,000 pods needs less than 1 % of a
// CPU. Package top decides what is drawn.
//
// # Invariants
//
//   - The terminal is as before when Run returns.
//   - Without colors (NO_COLOR, or a terminal that has none) the selected row is still seen: it is in reverse.
//
// # What it does not do
//
// It asks nobody: what it shows and does is given to it as functions.
package screen

import (
	"context"
	"errors"
	"strings"
	"time"

	tea "charm.land/bubbletea/v2"

	"github.com/plimsoll-dev/plimsoll/internal/top"
)

// Screen is what a screen shows, and who knows it.
type Screen struct {
	View  *top.View
	State func() *top.State
	// Look is told which page the user looks at, and of OneNode which node.
	Look func(page top.Page, node string)
	// See is told which pods are on the page of pods, NAMESPACE/NAME.
	See func(pods []string)
	// Story returns what became of a pod, by lines. It may take its time.
	Story func(pod string) []string
}

// framesPerSecond is how often bubbletea looks whether a frame has changed. Chosen: its default of 60 costs more than
// 1 % of a CPU without any change; with 10, a key is answered within 100 ms.
const framesPerSecond = 10

// share is how many times as long as a refresh has taken nothing is refreshed (chosen: half of 1 %; the other half is
// for watches).
const share = 200

// refreshMax bounds the interval between two refreshes.
const refreshMax = 30 * time.Second

// Run draws until the user quits or ctx ends.
func (s *Screen) Run(ctx context.Context) error {
	m := &model{screen: s, state: s.State()}
	_, err := tea.NewProgram(m, tea.WithContext(ctx), tea.WithFPS(framesPerSecond), tea.WithoutSignalHandler()).Run()
	if ctx.Err() != nil && errors.Is(err, tea.ErrProgramKilled) {
		return nil
	}
	return err
}

// model is the state of the program, as bubbletea wants it. Only bubbletea's loop calls its methods.
type model struct {
	screen *Screen
	state  *top.State
	cost   time.Duration // of the last refresh with its frame
	page   top.Page
	node   string
}

type (
	refreshed struct{}
	told      struct {
		pod   string
		story []string
	}
)

// Init implements tea.Model.
func (m *model) Init() tea.Cmd { return m.later() }

func (m *model) later() tea.Cmd {
	wait := min(max(m.screen.View.Every, share*m.cost), max(refreshMax, m.screen.View.Every))
	if !m.state.Synced {
		wait = min(wait, 250*time.Millisecond)
	}
	return tea.Tick(wait, func(time.Time) tea.Msg { return refreshed{} })
}

// Update implements tea.Model.
func (m *model) Update(message tea.Msg) (tea.Model, tea.Cmd) {
	v := m.screen.View
	switch message := message.(type) {
	case tea.WindowSizeMsg:
		v.Width, v.Height = message.Width, message.Height
	case refreshed:
		m.refresh()
		return m, m.later()
	case told:
		if v.Page == top.OnePod && v.Pod == message.pod {
			v.Story = message.story
		}
	case tea.KeyPressMsg:
		switch v.Key(message.String(), m.state) {
		case top.Quit:
			return m, tea.Quit
		case top.AskStory:
			pod := v.Pod
			return m.looked(), func() tea.Msg { return told{pod, m.screen.Story(pod)} }
		}
		return m.looked(), nil
	}
	return m, nil
}

// looked tells what the user looks at, and shows what is known of that.
func (m *model) looked() tea.Model {
	v := m.screen.View
	if v.Page != m.page || v.Node != m.node {
		m.page, m.node = v.Page, v.Node
		m.screen.Look(v.Page, v.Node)
		m.refresh()
	}
	return m
}

func (m *model) refresh() {
	start := time.Now()
	m.state = m.screen.State()
	m.cost = time.Since(start)
}

// View implements tea.Model.
func (m *model) View() tea.View {
	start := time.Now()
	var out strings.Builder
	if m.screen.View.Width > 0 { // until then the size of the terminal is not known
		for i, l := range m.screen.View.Lines(m.state) {
			if i > 0 {
				out.WriteByte('\n')
			}
			write(&out, l)
		}
		if m.screen.View.Page == top.Pods {
			m.screen.See(m.screen.View.Shown())
		}
	}
	view := tea.NewView(out.String())
	view.AltScreen = true
	view.WindowTitle = "plimsoll top"
	m.cost = max(m.cost, time.Since(start))
	return view
}

// codes are the styles as terminals know them (ECMA-48 SGR). bubbletea leaves out colors where there are none.
var codes = map[top.Style]string{
	top.Title:  "\x1b[1m",
	top.Dim:    "\x1b[2m",
	top.Good:   "\x1b[32m",
	top.Warn:   "\x1b[33m",
	top.Bad:    "\x1b[1;31m",
	top.Chosen: "\x1b[7m",
}

func write(out *strings.Builder, l top.Line) {
	for _, s := range l {
		code := codes[s.Style]
		out.WriteString(code)
		out.WriteString(s.Text)
		if code != "" {
			out.WriteString("\x1b[0m")
		}
	}
}
