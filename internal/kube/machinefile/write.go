package machinefile

import (
	"bytes"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// mapping is a mapping of the document, in the order of its fields. Values are string, int64, mapping and []any of
// these.
type mapping []pair

type pair struct {
	key   string
	value any
}

// lineMax is the greatest length of a line of YAML, in characters, where the line can be broken. Chosen: fits today's
// terminals.
const lineMax = 120

// jsonOf returns doc as indented JSON.
func jsonOf(doc mapping) []byte {
	var flat, out bytes.Buffer
	asJSON.write(&flat, doc)
	if err := json.Indent(&out, flat.Bytes(), "", "  "); err != nil {
		panic(fmt.Sprintf("machinefile: wrote broken JSON: %v", err)) // impossible: keys and strings are quoted
	}
	out.WriteByte('\n')
	return out.Bytes()
}

// yamlOf returns doc as YAML: mappings with nested values in block style, the others in flow style on one line.
func yamlOf(doc mapping) []byte {
	var b bytes.Buffer
	writeBlock(&b, doc, "")
	return b.Bytes()
}

func writeBlock(b *bytes.Buffer, m mapping, indent string) {
	for i, p := range m {
		if i > 0 {
			b.WriteString(indent)
		}
		b.WriteString(bareKey(p.key) + ":")
		switch v := p.value.(type) {
		case mapping:
			if isDeep(v) {
				b.WriteString("\n" + indent + "  ")
				writeBlock(b, v, indent+"  ")
				continue
			}
		case []any:
			if slices.ContainsFunc(v, func(e any) bool { _, ok := e.(mapping); return ok }) {
				b.WriteByte('\n')
				writeItems(b, v, indent)
				continue
			}
		}
		writeWrapped(b, p.value, len(indent)+len(p.key)+2, indent+"  ")
	}
}

// writeItems writes a list of mappings, one item after the other.
func writeItems(b *bytes.Buffer, items []any, indent string) {
	for _, item := range items {
		b.WriteString(indent + "-")
		if m := item.(mapping); isDeep(m) {
			b.WriteByte(' ')
			writeBlock(b, m, indent+"  ")
			continue
		}
		writeWrapped(b, item, len(indent)+2, indent+"  ")
	}
}

// isDeep reports whether a mapping contains values that are not scalars.
func isDeep(m mapping) bool {
	return slices.ContainsFunc(m, func(p pair) bool {
		switch p.value.(type) {
		case string, int64:
			return false
		}
		return true
	})
}

// writeWrapped writes a value and a line break. It breaks long lines after commas.
func writeWrapped(b *bytes.Buffer, v any, column int, indent string) {
	var flat bytes.Buffer
	asYAML.write(&flat, v)
	for i, part := range strings.Split(flat.String(), breakable) {
		if i > 0 && column+len(part) > lineMax {
			b.WriteString("\n" + indent)
			column = len(indent)
		} else {
			b.WriteByte(' ')
		}
		b.WriteString(part)
		column += len(part) + 1
	}
	b.WriteByte('\n')
}

// breakable marks, in flow style, where a line may be broken. Quoted strings do not contain this character.
const breakable = "\x00"

// flow says how values are written on one line.
type flow struct {
	key, text func(string) string
	comma     string
}

var (
	asJSON = flow{quoted, quoted, ","}
	asYAML = flow{bareKey, bareText, "," + breakable}
)

func (f flow) write(b *bytes.Buffer, v any) {
	switch v := v.(type) {
	case string:
		b.WriteString(f.text(v))
	case int64:
		b.WriteString(strconv.FormatInt(v, 10))
	case mapping:
		b.WriteByte('{')
		for i, p := range v {
			if i > 0 {
				b.WriteString(f.comma)
			}
			b.WriteString(f.key(p.key) + ": ")
			f.write(b, p.value)
		}
		b.WriteByte('}')
	case []any:
		b.WriteByte('[')
		for i, e := range v {
			if i > 0 {
				b.WriteString(f.comma)
			}
			f.write(b, e)
		}
		b.WriteByte(']')
	default:
		panic(fmt.Sprintf("machinefile: cannot write a %T", v))
	}
}

var (
	// bare matches strings that need no quotes in YAML: names, and quantities with a suffix.
	bare = regexp.MustCompile(`^([A-Za-z][A-Za-z0-9_./-]*|[0-9]+(Ki|Mi|Gi|Ti|Pi|Ei))$`)

	// special are words that YAML 1.1 reads as other values.
	special = []string{"y", "n", "yes", "no", "on", "off", "true", "false", "null"}

	// number matches an id of hardware. As a key it is read back as the same text.
	number = regexp.MustCompile(`^(0|[1-9][0-9]{0,8})$`)
)

func bareText(s string) string {
	if bare.MatchString(s) && !slices.Contains(special, strings.ToLower(s)) {
		return s
	}
	return quoted(s)
}

func bareKey(s string) string {
	if number.MatchString(s) {
		return s
	}
	return bareText(s)
}

func quoted(s string) string {
	text, err := json.Marshal(s)
	if err != nil {
		panic(fmt.Sprintf("machinefile: quote %q: %v", s, err)) // impossible: every string can be encoded
	}
	return string(text)
}
