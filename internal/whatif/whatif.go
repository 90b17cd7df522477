// Package whatif answers what a node, or a cluster, would decide, from files: a machine, a configuration, manifests. It calls
// the same core functions as the shells that run on real nodes, and holds no rule of its own.
//
// # Model
//
// One file per question, named as its verb: allocatable.go is `plimsoll whatif allocatable`. A question is a function from what
// the files said to a result; a result is a value that can be written as JSON, YAML (both stable: keys are added, none
// changes) or a table for people. Reading the files is done by the packages of their formats, machinefile, kubeletconfig
// and the like.
//
// # What it does not do
//
// It asks nothing of this machine or of a cluster: the same files give the same bytes anywhere. It writes no file.
package whatif

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"text/tabwriter"

	"sigs.k8s.io/yaml"
)

// JSON returns a result as programs read it.
func JSON(result any) ([]byte, error) {
	var text bytes.Buffer
	w := json.NewEncoder(&text)
	w.SetIndent("", "  ")
	w.SetEscapeHTML(false) // thresholds have a <
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

// table lines up columns.
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

// text ends the columns and adds lines as they are.
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
