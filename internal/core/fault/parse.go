package fault

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// durationMax is the longest duration in an order (chosen: a year), so that the sum of two cannot overflow.
const durationMax = 365 * 24 * time.Hour

// demands lists the keys that a kind requires in addition to the keys that every kind allows.
var demands = map[Kind][]string{
	Silence: nil, Partition: nil, NotReady: nil, Return: nil,
	Slow: {"delay"},
	Flap: {"up", "down"},
}

// Kinds is the list of kinds for errors and help texts.
const Kinds = "silence, partition, slow, flap, notready or return"

// Parse reads one order: "[at DURATION] KIND [key=value...]". One error names all problems.
func Parse(text string) (Order, error) {
	var o Order
	var problems []string
	bad := func(format string, args ...any) { problems = append(problems, fmt.Sprintf(format, args...)) }
	words := strings.Fields(text)
	if len(words) > 1 && words[0] == "at" {
		at, err := parseDuration(words[1], 0)
		if err != nil {
			bad("at: %v", err)
		}
		o.At, words = at, words[2:]
	}
	if len(words) == 0 {
		return o, fmt.Errorf("read fault %q: no kind: want %s", text, Kinds)
	}
	o.Kind = Kind(words[0])
	wanted, known := demands[o.Kind]
	if !known {
		bad("kind %q: want %s", words[0], Kinds)
	}
	seen := map[string]bool{}
	for _, word := range words[1:] {
		key, value, ok := strings.Cut(word, "=")
		switch {
		case !ok:
			bad("%q: want key=value", word)
			continue
		case seen[key]:
			bad("%s: is there twice", key)
			continue
		}
		seen[key] = true
		if err := o.set(key, value); err != nil {
			bad("%v", err)
		}
	}
	for _, key := range wanted {
		if !seen[key] {
			bad("%s: %s= is missing: %s", o.Kind, key, meaning[key])
		}
	}
	for _, key := range []string{"delay", "up", "down", "for"} {
		if known && seen[key] && !allowed(o.Kind, key) {
			bad("%s=: %s does not take it", key, o.Kind)
		}
	}
	if o.Select.Count > 0 && o.Select.Percent > 0 {
		bad("count=%d percent=%d: want one of them", o.Select.Count, o.Select.Percent)
	}
	if len(problems) > 0 {
		return Order{}, fmt.Errorf("read fault %q: %s", text, strings.Join(problems, "; "))
	}
	return o, nil
}

// meaning explains a key in errors.
var meaning = map[string]string{
	"delay": "how much longer each request takes",
	"up":    "how long the node lives between two silences",
	"down":  "how long it is silent",
}

func allowed(k Kind, key string) bool {
	if key == "for" {
		return k != Return
	}
	return slices.Contains(demands[k], key)
}

func (o *Order) set(key, value string) (err error) {
	switch key {
	case "for":
		o.For, err = parseDuration(value, 1)
	case "delay":
		o.Delay, err = parseDuration(value, 1)
	case "up":
		o.Up, err = parseDuration(value, 1)
	case "down":
		o.Down, err = parseDuration(value, 1)
	case "zone":
		if value == "" {
			err = errors.New("want the name of a zone")
		}
		o.Select.Zone = value
	case "nodes":
		for name := range strings.SplitSeq(value, ",") {
			if name == "" {
				err = errors.New("want names of nodes, separated by commas")
			}
			o.Select.Nodes = append(o.Select.Nodes, name)
		}
	case "count":
		o.Select.Count, err = parseNumber(value, 1, 1<<30)
	case "percent":
		o.Select.Percent, err = parseNumber(value, 1, 100)
	default:
		return fmt.Errorf("%q: no such key: want count, percent, zone, nodes, for, delay, up or down", key)
	}
	if err != nil {
		return fmt.Errorf("%s=%s: %w", key, value, err)
	}
	return nil
}

func parseDuration(text string, least time.Duration) (time.Duration, error) {
	d, err := time.ParseDuration(text)
	if err != nil || d < least || d > durationMax {
		return 0, fmt.Errorf("%q: want a duration like 30s, 5m or 1h30m, at most a year", text)
	}
	return d, nil
}

func parseNumber(text string, least, most int) (int, error) {
	n, err := strconv.Atoi(text)
	if err != nil || n < least || n > most {
		return 0, fmt.Errorf("want a number from %d to %d", least, most)
	}
	return n, nil
}

// ParseScript reads one order per line; see EachLine.
func ParseScript(text string) ([]Order, error) {
	var orders []Order
	err := EachLine(text, func(line string) (time.Duration, error) {
		o, err := Parse(line)
		if err == nil {
			orders = append(orders, o)
		}
		return o.At, err
	})
	return orders, err
}

// EachLine calls read for every line of a script. It skips empty lines and removes comments, which begin with #. read
// returns the line's moment, which must not be before that of an earlier line. One error names the problems of all
// lines, each with its line number.
func EachLine(text string, read func(line string) (at time.Duration, err error)) error {
	var problems []error
	n, last := 0, time.Duration(0)
	for line := range strings.Lines(text) {
		n++
		line, _, _ = strings.Cut(line, "#")
		if line = strings.TrimSpace(line); line == "" {
			continue
		}
		at, err := read(line)
		if err == nil && at < last {
			err = fmt.Errorf("at %v: comes after at %v: want the lines in order of time", at, last)
		}
		if err != nil {
			problems = append(problems, fmt.Errorf("line %d: %w", n, err))
			continue
		}
		last = at
	}
	return errors.Join(problems...)
}

// String formats o so that Parse can read it.
func (o Order) String() string {
	var words []string
	if o.At > 0 {
		words = append(words, "at", o.At.String())
	}
	words = append(words, string(o.Kind))
	add := func(key string, set bool, value any) {
		if set {
			words = append(words, fmt.Sprintf("%s=%v", key, value))
		}
	}
	add("count", o.Select.Count > 0, o.Select.Count)
	add("percent", o.Select.Percent > 0, o.Select.Percent)
	add("zone", o.Select.Zone != "", o.Select.Zone)
	add("nodes", len(o.Select.Nodes) > 0, strings.Join(o.Select.Nodes, ","))
	add("delay", o.Delay > 0, o.Delay)
	add("up", o.Up > 0, o.Up)
	add("down", o.Down > 0, o.Down)
	add("for", o.For > 0, o.For)
	return strings.Join(words, " ")
}
