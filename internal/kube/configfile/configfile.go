// Package configfile does what is common to reading the configuration files of Kubernetes' components: it decodes one
// YAML or JSON document of a given apiVersion and kind strictly into an upstream type, and reports all problems in one
// error.
//
// # Model
//
// Read bounds the size of the file. Decode decodes field by field, so that one bad field does not hide the next. A
// field that cannot be decoded stays absent and is never half filled, so that the rest can be checked further. Problems
// collects what is wrong, from Decode and from the checks of the package that knows the fields.
//
// # What it does not do
//
// It knows no field, sets no default and accepts no list of documents.
package configfile

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"

	utiljson "sigs.k8s.io/json"
	"sigs.k8s.io/yaml"
)

// sizeMax bounds a file, in bytes (chosen). Real files have some KiB; a path to another kind of file should not be read
// whole.
const sizeMax = 1 << 20

// Read returns the content of the file at path.
func Read(path string) ([]byte, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() || info.Size() > sizeMax {
		return nil, fmt.Errorf("%s: want a regular file of at most %d bytes, found %s of %d", path, sizeMax,
			info.Mode().Type(), info.Size())
	}
	return os.ReadFile(path)
}

// Decode reads a document of a kind into a T, and adds to p what is wrong. has contains the names of the fields that
// the document has, except apiVersion and kind. An empty document has no fields. If data is no such document at all,
// Decode returns nil.
func Decode[T any](data []byte, apiVersion, kind string, p *Problems) (out *T, has map[string]bool) {
	out, has = new(T), map[string]bool{}
	if len(strings.TrimSpace(string(data))) == 0 {
		return out, has
	}
	doc, err := yaml.YAMLToJSONStrict(data)
	if err != nil {
		p.Add("", err.Error())
		return nil, nil
	}
	fields := map[string]json.RawMessage{}
	if err := json.Unmarshal(doc, &fields); err != nil {
		p.Add("", "want a mapping of fields, found something else")
		return nil, nil
	}
	for name, want := range map[string]string{"apiVersion": apiVersion, "kind": kind} {
		if got := strings.Trim(string(fields[name]), `"`); got != want {
			p.Add(name, fmt.Sprintf("%.200q: want %s", got, want))
		}
		delete(fields, name)
	}
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		has[name] = true
		one, err := json.Marshal(map[string]json.RawMessage{name: fields[name]})
		if err == nil {
			_, err = utiljson.UnmarshalStrict(one, new(T))
		}
		if err != nil {
			p.Add(name, fmt.Sprintf("%.200q: %s", fields[name], Plain(err, kind)))
			continue
		}
		strict, err := utiljson.UnmarshalStrict(one, out)
		for _, err := range append(strict, err) {
			if err != nil {
				p.Add("", Plain(err, kind))
			}
		}
	}
	return out, has
}

// Plain returns the text of a decoder's error without the parts that name Go types.
func Plain(err error, kind string) string {
	return strings.ReplaceAll(strings.TrimPrefix(err.Error(), "json: "), "Go struct field "+kind+".", "field ")
}

// Problems are the problems of a file, in no order.
type Problems []string

// problemsMax bounds how many problems are kept. Chosen: nobody reads more at once, and a file from a node or a pod
// could otherwise make an error many times as long as itself.
const problemsMax = 100

// Add adds a problem at path; an empty path is the file as a whole. Problems after the hundredth are dropped.
func (p *Problems) Add(path, text string) {
	if p.Full() {
		return
	}
	if path != "" {
		text = path + ": " + text
	}
	*p = append(*p, text)
}

// Full reports whether further problems are dropped.
func (p Problems) Full() bool { return len(p) >= problemsMax }

// Err returns all problems in one error, in a fixed order; nil if there are none.
func (p Problems) Err() error {
	slices.Sort(p)
	switch p = slices.Compact(p); len(p) {
	case 0:
		return nil
	case 1:
		return fmt.Errorf("%s", p[0])
	}
	return fmt.Errorf("%d problems:\n  - %s", len(p), strings.Join(p, "\n  - "))
}
