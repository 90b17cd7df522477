package plimsoll

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"
)

// TestProseEndsAt120Columns: no line of prose in a page (*.md) is longer. Free are tables and code blocks, where a
// break changes what a reader sees or copies, and lines that are one link. So are the records of measurements in
// directories named results, which programs write: each statement there is one line, so that two records can be
// compared. Directories named bin hold what was built here.
func TestProseEndsAt120Columns(t *testing.T) {
	pages := 0
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && slices.Contains([]string{"results", "bin", ".git"}, d.Name()):
			return filepath.SkipDir
		case filepath.Ext(path) != ".md":
			return nil
		}
		pages++
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		for _, l := range longProse(string(text)) {
			t.Errorf("%s:%d: the line ends after column %d: break it", path, l, columnsMax)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if pages < 25 {
		t.Fatalf("only %d pages were found", pages)
	}
}

// TestLongProseIsFound: the test above sees long prose, and leaves out what is free.
func TestLongProseIsFound(t *testing.T) {
	fits := strings.Repeat("ä", columnsMax)
	long := fits + " ä"
	text := strings.Join([]string{
		"# " + long,
		fits,
		long,
		"- item",
		"  " + long,
		"    - item of an item that is " + long,
		"| " + long + " |",
		"1. [a link](docs/" + fits + ")",
		"[a link](docs/" + fits + ") and more",
		"",
		"    code " + long,
		"",
		"```sh",
		long,
		"```",
		long,
	}, "\n")
	if got, want := longProse(text), []int{1, 3, 5, 6, 9, 16}; !slices.Equal(got, want) {
		t.Errorf("long lines are %v, want %v", got, want)
	}
}

// Lines of tables, lines that are one link, and first lines of list items.
var (
	tableLine = regexp.MustCompile(`^ *\|`)
	linkLine  = regexp.MustCompile(`^ *([-*] |[0-9]+\. )?\[[^]]*\]\([^)]*\)[.,;:]?$`)
	itemLine  = regexp.MustCompile(`^ *([-*]|[0-9]+\.) `)
)

// longProse returns the numbers of the lines of a page that are longer than columnsMax, without those that are free. An
// indented code block begins after an empty line; an indented line after an item continues it.
func longProse(text string) (long []int) {
	fenced, indented, before := false, false, ""
	for i, line := range strings.Split(text, "\n") {
		if strings.HasPrefix(strings.TrimLeft(line, " "), "```") {
			fenced = !fenced
		}
		deep := strings.HasPrefix(line, "    ") && !itemLine.MatchString(line)
		indented = deep && (indented || before == "") || line == "" && indented
		free := fenced || indented || tableLine.MatchString(line) || linkLine.MatchString(line)
		if utf8.RuneCountInString(line) > columnsMax && !free {
			long = append(long, i+1)
		}
		before = line
	}
	return long
}
