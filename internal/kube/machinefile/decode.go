package machinefile

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"

	"github.com/plimsoll-dev/plimsoll/internal/core/idset"
	"github.com/plimsoll-dev/plimsoll/internal/core/machine"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

// Decode reads a machine from YAML or JSON.
func Decode(data []byte) (File, error) {
	doc, err := oneDocument(data)
	if err != nil {
		return File{}, err
	}
	var d decoder
	f := d.file(doc)
	if len(d.problems) == 0 {
		// Check checks the machine as a whole. If parts could not be read, it would report them as missing.
		f.Machine = f.Machine.Complete()
		var impossible machine.Impossible
		if err := f.Machine.Check(); errors.As(err, &impossible) {
			for _, problem := range impossible {
				d.add("spec", "%s", problem)
			}
		}
	}
	if err := d.err(); err != nil {
		return File{}, err
	}
	return f, nil
}

// oneDocument returns the only document in data as JSON values, with numbers in their original text.
func oneDocument(data []byte) (any, error) {
	var found []byte
	docs := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(data)))
	for {
		doc, err := docs.Read()
		if errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return nil, fmt.Errorf("not YAML: %w", err)
		}
		if len(bytes.TrimSpace(doc)) == 0 {
			continue
		}
		if found != nil {
			return nil, errors.New("contains several documents: want one, of kind Machine")
		}
		found = doc
	}
	text, err := yaml.YAMLToJSONStrict(found)
	if err != nil {
		return nil, fmt.Errorf("not YAML: %w", err)
	}
	numbers := json.NewDecoder(bytes.NewReader(text))
	numbers.UseNumber()
	var doc any
	if err := numbers.Decode(&doc); err != nil {
		return nil, fmt.Errorf("not YAML: %w", err)
	}
	return doc, nil
}

// decoder walks a document and collects its problems. Each method takes the path of a value and the value; it returns
// the zero value of its type when the value is not of that type.
type decoder struct{ problems }

// field is a function that reads the value of one field.
type field func(path string, v any)

// fields reads a mapping whose possible fields are known.
func (d *decoder) fields(path string, v any, known map[string]field) {
	want := strings.Join(slices.Sorted(maps.Keys(known)), ", ")
	for key, value := range d.entries(path, v) {
		read, ok := known[key]
		if !ok {
			d.add(join(path, key), "unknown field: want one of %s", want)
			continue
		}
		if value != nil { // a field without a value is an absent field
			read(join(path, key), value)
		}
	}
}

func join(path, key string) string {
	if path == "" {
		return key
	}
	return path + "." + key
}

// entries returns the entries of a mapping.
func (d *decoder) entries(path string, v any) map[string]any {
	m, ok := v.(map[string]any)
	if !ok {
		d.add(path, "%s: want a mapping", show(v))
	}
	return m
}

// list calls each for each element of a list.
func (d *decoder) list(path string, v any, each field) {
	elements, ok := v.([]any)
	if !ok {
		d.add(path, "%s: want a list", show(v))
	}
	for i, e := range elements {
		each(fmt.Sprintf("%s[%d]", path, i), e)
	}
}

// text returns the original text of a scalar: in YAML, 3 and "3" both are a list of one CPU.
func (d *decoder) text(path string, v any, want string) (string, bool) {
	switch v := v.(type) {
	case string:
		return v, true
	case json.Number:
		return v.String(), true
	}
	d.add(path, "%s: want %s", show(v), want)
	return "", false
}

// show prints a value for an error message, shortened.
func show(v any) string {
	text, err := json.Marshal(v)
	if err != nil {
		return fmt.Sprintf("%T", v)
	}
	return fmt.Sprintf("%.80s", text)
}

func (d *decoder) string(path string, v any) string {
	s, ok := v.(string)
	if !ok {
		d.add(path, "%s: want a string", show(v))
	}
	return s
}

// set reads a set of CPUs in the kernel's list format.
func (d *decoder) set(path string, v any) idset.Set {
	text, ok := d.text(path, v, `CPUs in the kernel's list format, like "0-3,8"`)
	if !ok {
		return idset.Set{}
	}
	s, err := idset.Parse(text)
	if err != nil {
		d.add(path, "%v", err)
	}
	return s
}

// bytes reads a quantity of memory or storage.
func (d *decoder) bytes(path string, v any) unit.Bytes {
	const want = "a whole number of bytes, like 64Gi"
	text, ok := d.text(path, v, want)
	if !ok {
		return 0
	}
	q, err := resource.ParseQuantity(text)
	if err != nil || q.Sign() < 0 || q.CmpInt64(math.MaxInt64) >= 0 || q.CmpInt64(q.Value()) != 0 {
		d.add(path, "%.80q: want %s", text, want)
		return 0
	}
	return unit.Bytes(q.Value())
}

// count reads a whole number from 0 to most.
func (d *decoder) count(path string, v any, most int64) int64 {
	text, ok := d.text(path, v, "a whole number")
	if !ok {
		return 0
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < 0 || n > most {
		d.add(path, "%.80q: want a whole number of 0 to %d", text, most)
		return 0
	}
	return n
}

func (d *decoder) numaID(path string, v any) machine.NUMAID {
	return machine.NUMAID(d.count(path, v, int64(machine.NUMAIDMax)))
}

// hex reads a number of up to that many bits in the format of sysfs: 0x020000.
func (d *decoder) hex(path string, v any, bits int) uint32 {
	text, ok := d.text(path, v, "a hexadecimal number, like \"0x8086\"")
	if !ok {
		return 0
	}
	digits, isHex := strings.CutPrefix(text, "0x")
	n, err := strconv.ParseUint(digits, 16, bits)
	if err != nil || !isHex {
		d.add(path, "%.80q: want a hexadecimal number of %d bits, like \"0x8086\"", text, bits)
		return 0
	}
	return uint32(n)
}

// pages reads a mapping from page sizes to page counts.
func (d *decoder) pages(path string, v any) map[unit.Bytes]int64 {
	pages := map[unit.Bytes]int64{}
	for key, value := range d.entries(path, v) {
		at := join(path, key)
		size := d.bytes(at, key)
		if _, twice := pages[size]; twice && size > 0 {
			d.add(at, "the size %v is listed twice", size)
		}
		if pages[size] = d.count(at, value, math.MaxInt64); size > 0 && pages[size] > math.MaxInt64/int64(size) {
			d.add(at, "%d pages of %v: more than can be counted", pages[size], size)
		}
	}
	return pages
}

// byID reads a mapping from hardware ids.
func byID[ID ~int, V any](d *decoder, path string, v any, read func(path string, v any) V) map[ID]V {
	out := map[ID]V{}
	for key, value := range d.entries(path, v) {
		at := join(path, key)
		before := len(d.problems)
		id := ID(d.count(at, key, math.MaxInt32))
		if len(d.problems) > before {
			continue
		}
		if _, twice := out[id]; twice {
			d.add(at, "the id %d is listed twice", id)
		}
		out[id] = read(at, value)
	}
	return out
}
