package top

import (
	"strings"
	"unicode/utf8"
)

// Style is how a span looks.
type Style int

// Styles.
const (
	Plain Style = iota
	Title
	Dim
	Good
	Warn
	Bad
	Chosen // the selected row
)

// Span is text with a style.
type Span struct {
	Text  string
	Style Style
}

// Line is a line on the terminal.
type Line []Span

func plain(text string) Line  { return Line{{clean(text), Plain}} }
func dim(text string) Line    { return Line{{clean(text), Dim}} }
func titled(text string) Line { return Line{{clean(text), Title}} }

// String returns the text.
func (l Line) String() string {
	var out strings.Builder
	for _, s := range l {
		out.WriteString(s.Text)
	}
	return out.String()
}

// cut returns l in at most width characters; 0: no limit. What is cut off ends with an ellipsis.
func (l Line) cut(width int) Line {
	if width <= 0 {
		return l
	}
	left := width // characters
	for i, s := range l {
		if n := columns(s.Text); n <= left {
			left -= n
			continue
		}
		if left == 0 && i > 0 { // the span before fills the line
			before := l[i-1]
			return append(l[:i-1:i-1], Span{shorten(before.Text+"x", columns(before.Text)), before.Style})
		}
		return append(l[:i:i], Span{shorten(s.Text, left), s.Style})
	}
	return l
}

// columns is how many columns text has. Wide characters count as two.
func columns(text string) (n int) {
	for _, r := range text {
		n += runeColumns(r)
	}
	return n
}

// runeColumns is how many columns a character has: 2 for those of East Asian scripts and pictures (Unicode TR 11, W and
// F, by blocks), 1 for all others. Names in the API are ASCII; only messages can have others.
func runeColumns(r rune) int {
	switch {
	case r < 0x1100:
		return 1
	case r <= 0x115f, r >= 0x2e80 && r <= 0xa4cf, r >= 0xac00 && r <= 0xd7a3, r >= 0xf900 && r <= 0xfaff,
		r >= 0xfe30 && r <= 0xfe6f, r >= 0xff00 && r <= 0xff60, r >= 0xffe0 && r <= 0xffe6, r >= 0x1f300 && r <= 0x1faff,
		r >= 0x20000 && r <= 0x3fffd:
		return 2
	}
	return 1
}

// shorten returns text in at most width columns, with an ellipsis if something is missing.
func shorten(text string, width int) string {
	if columns(text) <= width {
		return text
	}
	if width <= 0 {
		return ""
	}
	left, end := width-1, 0
	for i, r := range text {
		if left -= runeColumns(r); left < 0 {
			break
		}
		end = i + utf8.RuneLen(r)
	}
	return text[:end] + "…"
}

// pad fills text with spaces to width columns.
func pad(text string, width int, right bool) string {
	text = shorten(text, width)
	fill := strings.Repeat(" ", max(0, width-columns(text)))
	if right {
		return fill + text
	}
	return text + fill
}
