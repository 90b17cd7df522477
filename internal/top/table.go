package top

import (
	"cmp"
	"slices"
	"strings"
)

// column is a column of a table of T.
type column[T any] struct {
	name  string // for --sort, and the key that sorts
	group string // printed above neighbours of the same group
	title string
	width int // characters; 0: as wide as needed and possible
	least int // of a column without width: if there is less room, other columns leave
	// rank says which columns narrow terminals have: those of low rank. Columns of rank 0 are always there.
	rank  int
	right bool
	cell  func(*T) Span
	order func(a, b *T) int // nil: not to sort by; numbers with the largest first
}

const (
	gap     = 1  // columns between columns
	flexMin = 10 // characters of a column that is as wide as possible (chosen: its title fits)
	flexMax = 60 // characters (chosen: the longest names that people give)
)

// fit returns the columns that fit in width with their widths; 0: all fit. flex is the widest cell of the column that
// is as wide as needed.
func fit[T any](all []column[T], width, flex int) []column[T] {
	out := slices.Clone(all)
	for {
		fixed := -gap // characters
		least := flexMin
		worst := 0
		for i, c := range out {
			fixed += c.width + gap
			least = max(least, c.least)
			if c.rank > out[worst].rank {
				worst = i
			}
		}
		room := flex
		if width > 0 {
			room = min(flex, width-fixed)
		}
		if room >= min(least, flex) || out[worst].rank == 0 {
			for i := range out {
				if out[i].width == 0 {
					out[i].width = max(room, 1)
				}
			}
			return out
		}
		out = slices.Delete(out, worst, worst+1)
	}
}

// heads returns the lines above a table.
func heads[T any](columns []column[T], sorted string, reverse bool) (out []Line) {
	var groups, titles strings.Builder
	group := ""
	for i, c := range columns {
		if i > 0 {
			groups.WriteString(strings.Repeat(" ", gap))
			titles.WriteString(strings.Repeat(" ", gap))
		}
		title := c.title
		if c.name == sorted && c.order != nil {
			mark := "↓"
			if reverse {
				mark = "↑"
			}
			title = shorten(title, c.width-1) + mark
		}
		titles.WriteString(pad(title, c.width, c.right))
		above := ""
		if c.group != group {
			above = c.group
		}
		group = c.group
		groups.WriteString(pad(above, c.width, false))
	}
	if strings.TrimSpace(groups.String()) != "" {
		out = append(out, titled(strings.TrimRight(groups.String(), " ")))
	}
	return append(out, titled(strings.TrimRight(titles.String(), " ")))
}

// row returns a row of a table.
func row[T any](columns []column[T], of *T) Line {
	var out Line
	for i, c := range columns {
		cell := c.cell(of)
		text := pad(clean(cell.Text), c.width, c.right)
		if i > 0 {
			text = strings.Repeat(" ", gap) + text
		}
		out = append(out, Span{text, cell.Style})
	}
	return out
}

// byName is the column by whose order rows come: that of their ids.
const byName = "name"

// sorted returns those rows that keep wants, in the order of the column by; equal ones in the order of id. The rows
// must come in the order of id; a nil keep keeps all. What it returns may be rows itself.
func sorted[T any](rows []*T, keep func(*T) bool, columns []column[T], by string, reverse bool) []*T {
	if keep != nil {
		kept := make([]*T, 0, len(rows))
		for _, r := range rows {
			if keep(r) {
				kept = append(kept, r)
			}
		}
		rows = kept
	}
	if by == byName && reverse {
		rows = slices.Clone(rows)
		slices.Reverse(rows)
	}
	at := slices.IndexFunc(columns, func(c column[T]) bool { return c.name == by && c.order != nil })
	if by == byName || at < 0 {
		return rows
	}
	order := columns[at].order
	type placed struct {
		row *T
		at  int // in the order of id
	}
	all := make([]placed, len(rows))
	for i, r := range rows {
		all[i] = placed{r, i}
	}
	slices.SortFunc(all, func(a, b placed) int {
		first := order(a.row, b.row)
		if reverse {
			first = -first
		}
		return cmp.Or(first, a.at-b.at)
	})
	out := make([]*T, len(all))
	for i, p := range all {
		out[i] = p.row
	}
	return out
}

// names returns the names to sort by.
func names[T any](columns []column[T]) (out []string) {
	for _, c := range columns {
		if c.order != nil {
			out = append(out, c.name)
		}
	}
	return out
}

// more compares numbers: the larger is first.
func more[T any, N cmp.Ordered](of func(*T) N) func(a, b *T) int {
	return func(a, b *T) int { return cmp.Compare(of(b), of(a)) }
}

// less compares texts.
func less[T any](of func(*T) string) func(a, b *T) int {
	return func(a, b *T) int { return cmp.Compare(of(a), of(b)) }
}

// matches reports whether one of the texts contains every word of the filter.
func matches(filter string, texts ...string) bool {
	for word := range strings.FieldsSeq(filter) {
		if !slices.ContainsFunc(texts, func(text string) bool {
			return strings.Contains(strings.ToLower(text), strings.ToLower(word))
		}) {
			return false
		}
	}
	return true
}
