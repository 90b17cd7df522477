package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
)

// outputFormat is the value of a verb's -o: one of several formats; the first is the default.
type outputFormat struct {
	chosen string   // the value
	of     []string // the possible values
}

// The formats. Those for programs are stable: keys may be added, but existing keys do not change.
const (
	outputYAML  = "yaml"
	outputJSON  = "json"
	outputTable = "table"
	outputText  = "text"
)

// addOutputFlag gives c the flag -o with these formats.
func addOutputFlag(c *cobra.Command, formats ...string) *outputFormat {
	o := &outputFormat{formats[0], formats}
	c.Flags().VarP(o, "output", "o", "format: "+strings.Join(formats, ", "))
	return o
}

func (o *outputFormat) String() string { return o.chosen }
func (o *outputFormat) Type() string   { return "format" }

func (o *outputFormat) Set(text string) error {
	if !slices.Contains(o.of, text) {
		return fmt.Errorf("want one of %s", strings.Join(o.of, ", "))
	}
	o.chosen = text
	return nil
}
