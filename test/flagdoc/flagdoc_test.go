package flagdoc

import (
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

func program() *cobra.Command {
	root := &cobra.Command{Use: "tool", Short: "Do things"}
	verb := &cobra.Command{Use: "cut FILE", Short: "Cut a file", RunE: func(*cobra.Command, []string) error { return nil }}
	verb.Flags().StringP("output", "o", "table", "table|json for <you>")
	verb.Flags().Bool("quiet", false, "say less")
	verb.Flags().String("config", "", "`file` to read")
	root.AddCommand(verb)
	return root
}

func TestSectionHasEveryFlag(t *testing.T) {
	const want = `
### tool

Do things.

### tool cut

Cut a file.

| flag | default | meaning |
|---|---|---|
` + "| `--config file` |  | file to read |\n" +
		"| `-o, --output string` | `table` | table\\|json for &lt;you> |\n" +
		"| `--quiet` |  | say less |\n"
	if got := Section(program()); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

func TestReplaceKeepsTheRestOfThePage(t *testing.T) {
	const begin, end = "<!-- Flags of tool: written by \"make docs\" from the program. -->\n",
		"<!-- End of the flags of tool. -->\n"
	got, err := replace("before\n"+begin+"old\n"+end+"after\n", "tool", "new\n")
	if want := "before\n" + begin + "new\n" + end + "after\n"; err != nil || got != want {
		t.Errorf("got %q, %v, want %q", got, err, want)
	}
	for _, page := range []string{"", begin, end + begin} {
		if _, err := replace(page, "tool", ""); err == nil || !strings.Contains(err.Error(), "no line") {
			t.Errorf("%q: error %v", page, err)
		}
	}
}
