// Package scenario runs scenario texts: commands and what came of them, kept side by side so that a reader sees a
// decision next to its cause.
//
// A text is a sequence of blocks, separated by blank lines. A block is comment lines (#), command lines, a line "----"
// and the outcome. Run executes the commands and returns the text with each outcome replaced by the real one; a test
// compares the two, or writes the new text when asked to rewrite.
//
// The package reads no files and knows no tests: it is for test code of the core, and of no use elsewhere.
package scenario

import "strings"

const separator = "----"

// Run executes the commands of text in order and returns the text with the outcomes that run produced. run answers one
// command line; an answer may have several lines or none.
func Run(text string, run func(command string) string) string {
	var out strings.Builder
	inOutcome := false
	var answers []string
	for line := range strings.Lines(text) {
		line = strings.TrimSuffix(line, "\n")
		switch {
		case inOutcome && line != "":
			continue // the old outcome
		case inOutcome:
			inOutcome = false
			out.WriteString("\n")
		case line == separator:
			out.WriteString(separator + "\n")
			for _, a := range answers {
				out.WriteString(a + "\n")
			}
			answers, inOutcome = nil, true
		default:
			out.WriteString(line + "\n")
			if line == "" || strings.HasPrefix(line, "#") {
				continue
			}
			if a := strings.TrimRight(run(line), "\n"); a != "" {
				answers = append(answers, a)
			}
		}
	}
	return out.String()
}
