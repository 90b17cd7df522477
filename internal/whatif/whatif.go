// Package whatif shows, from files, what a node or a cluster would decide: from a machine, a configuration, manifests.
// It calls the same functions of the core as the programs on real nodes, and has no rules of its own.
//
// # Model
//
// There is one file per question, named like its verb: allocatable.go is `plimsoll whatif allocatable`. A question is a
// function from the content of the files to a result. A result can be written as JSON, YAML (both are stable: keys may
// be added, but existing keys do not change) or a table for people. The packages of the formats, such as machinefile
// and kubeletconfig, read the files.
//
// # What it does not do
//
// It reads nothing from this machine or a cluster: the same files give the same bytes anywhere. It writes no file.
package whatif

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"text/tabwriter"

	"sigs.k8s.io/yaml"
)

// JSON returns a result in the format for programs.
func JSON(result any) ([]byte, error) {
	var text bytes.Buffer
	w := json.NewEncoder(&text)
	w.SetIndent("", "  ")
	w.SetEscapeHTML(false) // thresholds contain a <
	if err := w.Encode(result); err != nil {
		return nil, fmt.Errorf("write result: %w", err)
	}
	return text.Bytes(), nil
}

// YAML returns a result as JSON does, in YAML.
func YAML(result any) ([]byte, error) {
	text, err := yaml.Marshal(result)
	if err != nil {
		return nil, fmt.Errorf("write result: %w", err)
	}
	return text, nil
}

// table aligns columns.
type table struct {
	out bytes.Buffer
	w   *tabwriter.Writer
}

func newTable() *table {
	t := &table{}
	t.w = tabwriter.NewWriter(&t.out, 0, 0, 3, ' ', 0)
	return t
}

func (t *table) line(columns ...string) { fmt.Fprintln(t.w, strings.Join(columns, "\t")) }

// text ends the aligned columns and adds lines as they are.
func (t *table) text(lines ...string) {
	t.w.Flush()
	for _, line := range lines {
		t.out.WriteString(line + "\n")
	}
}

func (t *table) bytes() []byte {
	t.w.Flush()
	return t.out.Bytes()
}
