// Package flagdoc keeps the tables of flags in a page of docs/ equal to the flags of a program.
//
// # Model
//
// A page has one section per program between two marks, which are HTML comments. Check makes the section from the
// program's commands, one table per command. It compares the section with the page, and fails the test if they differ;
// or it writes the section into the page (make docs). The rest of the page is written by hand.
//
// # What it does not do
//
// It does not know what flags mean: the words are those of --help. Defaults that a program computes at run time are not
// in the table unless the flag's description has them.
package flagdoc

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// Check compares the section of root's program in the page with the flags of its commands. If update is set, it writes
// the section first.
func Check(t *testing.T, page string, root *cobra.Command, update bool) {
	t.Helper()
	have, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	want, err := replace(string(have), root.Name(), Section(root))
	if err != nil {
		t.Fatalf("%s: %v", page, err)
	}
	if update && want != string(have) {
		if err := os.WriteFile(page, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if want != string(have) {
		t.Errorf("%s: the flags of %s are others by now: run make docs", page, root.Name())
	}
}

// replace returns text with section between the marks of the program.
func replace(text, program, section string) (string, error) {
	begin := fmt.Sprintf("<!-- Flags of %s: written by \"make docs\" from the program. -->\n", program)
	end := fmt.Sprintf("<!-- End of the flags of %s. -->\n", program)
	before, rest, found := strings.Cut(text, begin)
	if !found {
		return "", fmt.Errorf("no line %q", begin)
	}
	_, after, found := strings.Cut(rest, end)
	if !found {
		return "", fmt.Errorf("no line %q after %q", end, begin)
	}
	return before + begin + section + end + after, nil
}

// Section returns the tables of all commands of a program, in the order of their names.
func Section(root *cobra.Command) string {
	var out strings.Builder
	write(&out, root)
	return out.String()
}

func write(out *strings.Builder, c *cobra.Command) {
	fmt.Fprintf(out, "\n### %s\n\n%s.\n", c.CommandPath(), escape(c.Short))
	rows := 0
	c.NonInheritedFlags().VisitAll(func(f *pflag.Flag) {
		if f.Hidden || f.Name == "help" {
			return
		}
		if rows++; rows == 1 {
			out.WriteString("\n| flag | default | meaning |\n|---|---|---|\n")
		}
		kind, usage := pflag.UnquoteUsage(f)
		fmt.Fprintf(out, "| %s | %s | %s |\n", nameOf(f, kind), defaultOf(f), escape(usage))
	})
	for _, below := range c.Commands() {
		if !below.Hidden && below.Name() != "help" {
			write(out, below)
		}
	}
}

func nameOf(f *pflag.Flag, kind string) string {
	name := "--" + f.Name
	if f.Shorthand != "" {
		name = "-" + f.Shorthand + ", " + name
	}
	if kind != "" {
		name += " " + kind
	}
	return "`" + name + "`"
}

// defaultOf returns the default of a flag; nothing for the zero value of its type, whose meaning the description has.
func defaultOf(f *pflag.Flag) string {
	switch f.DefValue {
	case "", "false", "0", "0s", "[]":
		return ""
	}
	return "`" + f.DefValue + "`"
}

// escape keeps what Markdown would read as markup or as the end of a cell.
func escape(text string) string {
	return strings.NewReplacer("|", `\|`, "<", "&lt;", "*", `\*`, "\n", " ").Replace(text)
}
