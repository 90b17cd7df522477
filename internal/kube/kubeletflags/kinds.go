package kubeletflags

import (
	"encoding/csv"
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"time"
)

// kind is the form of a flag's value.
type kind uint8

const (
	text kind = iota
	truth
	number      // an int32
	wide        // an int64
	period      // a duration
	address     // an IP address; empty: not set
	list        // a,b
	pairs       // key=value,key=value
	pair        // key=value, one at a time
	thresholds  // signal<quantity,signal<quantity
	gates       // Gate=true,Gate=false
	headers     // name:value,name:value
	numaMemory  // node:type=quantity,type=quantity;node:...
	onlyIfTrue  // a truth that cannot take back what the file says
	unusedKinds // their number
)

// stands reports whether a flag of this kind may stand alone, without a value.
func (k kind) stands() bool { return k == truth || k == onlyIfTrue }

// kinds are the names of the kinds for users, and how they are read: into what JSON can have; nil: nothing is set.
var kinds = [unusedKinds]struct {
	name  string
	parse func(text string) (any, error)
}{
	text:       {"text", func(s string) (any, error) { return s, nil }},
	truth:      {"bool", parseTruth},
	number:     {"number", func(s string) (any, error) { return parseNumber(s, 32) }},
	wide:       {"number", func(s string) (any, error) { return parseNumber(s, 64) }},
	period:     {"duration", parsePeriod},
	address:    {"address", parseAddress},
	list:       {"list", parseList},
	pairs:      {"key=value,...", func(s string) (any, error) { return parsePairs(s, "=") }},
	pair:       {"key=value", func(s string) (any, error) { return parsePair(s, "=") }},
	thresholds: {"signal<quantity,...", func(s string) (any, error) { return parsePairs(s, "<") }},
	gates:      {"gate=bool,...", parseGates},
	headers:    {"name:value,...", parseHeaders},
	numaMemory: {"node:type=quantity,...", parseNUMAMemory},
	onlyIfTrue: {"bool", parseOnlyIfTrue},
}

func parseTruth(s string) (any, error) {
	on, err := strconv.ParseBool(s)
	if err != nil {
		return nil, errors.New("want true or false")
	}
	return on, nil
}

func parseOnlyIfTrue(s string) (any, error) {
	on, err := parseTruth(s)
	if err != nil || on == false {
		return nil, err
	}
	return on, nil
}

func parseNumber(s string, bits int) (any, error) {
	n, err := strconv.ParseInt(s, 0, bits)
	if err != nil {
		return nil, fmt.Errorf("want a number of %d bits", bits)
	}
	return n, nil
}

func parsePeriod(s string) (any, error) {
	d, err := time.ParseDuration(s)
	if err != nil {
		return nil, errors.New("want a duration such as 10s or 1h30m")
	}
	return d.String(), nil
}

func parseAddress(s string) (any, error) {
	if s == "" {
		return nil, nil
	}
	if _, err := netip.ParseAddr(s); err != nil {
		return nil, errors.New("want an IP address")
	}
	return s, nil
}

func parseList(s string) (any, error) {
	all := []any{}
	if s == "" {
		return all, nil
	}
	parts, err := csv.NewReader(strings.NewReader(s)).Read()
	if err != nil {
		return nil, fmt.Errorf("want a list with commas: %w", err)
	}
	for _, part := range parts {
		all = append(all, part)
	}
	return all, nil
}

// parsePair reads one key and value.
func parsePair(s, between string) (any, error) {
	key, v, ok := strings.Cut(s, between)
	if !ok {
		return nil, fmt.Errorf("%.200q: want key%svalue", s, between)
	}
	return map[string]any{strings.TrimSpace(key): strings.TrimSpace(v)}, nil
}

// parsePairs reads keys and values.
func parsePairs(s, between string) (any, error) {
	all := map[string]any{}
	for part := range strings.SplitSeq(s, ",") {
		if part == "" {
			continue
		}
		one, err := parsePair(part, between)
		if err != nil {
			return nil, err
		}
		for key, v := range one.(map[string]any) {
			all[key] = v
		}
	}
	return all, nil
}

func parseGates(s string) (any, error) {
	all, err := parsePairs(s, "=")
	if err != nil {
		return nil, err
	}
	for name, v := range all.(map[string]any) {
		on, err := parseTruth(v.(string))
		if err != nil {
			return nil, fmt.Errorf("%.200s=%.200s: %w", name, v, err)
		}
		all.(map[string]any)[name] = on
	}
	return all, nil
}

func parseHeaders(s string) (any, error) {
	all := map[string]any{}
	for part := range strings.SplitSeq(s, ",") {
		if part == "" {
			continue
		}
		name, v, ok := strings.Cut(part, ":")
		if !ok {
			return nil, fmt.Errorf("%.200q: want name:value", part)
		}
		name = strings.TrimSpace(name)
		before, _ := all[name].([]string)
		all[name] = append(before, strings.TrimSpace(v))
	}
	return all, nil
}

// parseNUMAMemory reads the reservations of NUMA nodes.
func parseNUMAMemory(s string) (any, error) {
	all := []any{}
	if s == "" {
		return nil, nil
	}
	for part := range strings.SplitSeq(s, ";") {
		node, amounts, ok := strings.Cut(part, ":")
		n, err := strconv.ParseInt(node, 10, 32)
		if !ok || err != nil {
			return nil, fmt.Errorf("%.200q: want node:type=quantity[,type=quantity]", part)
		}
		limits, err := parsePairs(amounts, "=")
		if err != nil {
			return nil, err
		}
		all = append(all, map[string]any{"numaNode": n, "limits": limits})
	}
	return all, nil
}
