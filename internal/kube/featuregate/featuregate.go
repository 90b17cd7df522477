// Package featuregate has the feature gates of Kubernetes' components, with their defaults and whether they are locked.
//
// # Model
//
// gates.txt lists what kube-scheduler and the kubelet 1.36 accept for --feature-gates, one gate per line: its name, its
// default, whether it is locked to its default, and its maturity. node.txt says of each gate that the kubelet reads,
// and that cannot be changed on a node of ours, what holds there instead. Tests in oracle/ compare both with upstream's
// registry and sources.
//
// Parse reads a command line's value. A name that upstream does not have is an error, and so is a locked gate that is
// set to the other value. A gate that is set to its default has no effect.
//
// # What it does not do
//
// It switches no behaviour. The caller knows what a gate means, and passes the names of the gates that it honours.
package featuregate

import (
	_ "embed"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
)

//go:embed gates.txt
var text string

//go:embed node.txt
var nodeText string

// Gate is one feature gate.
type Gate struct {
	Name     string
	On       bool // the default
	Locked   bool // it cannot be set to the other value
	Maturity string
}

// All returns all gates by name.
var All = sync.OnceValue(func() map[string]Gate {
	all := map[string]Gate{}
	for line := range strings.Lines(text) {
		f := append(strings.Fields(line), "", "", "", "")
		all[f[0]] = Gate{Name: f[0], On: f[1] == "true", Locked: f[2] == "true", Maturity: f[3]}
	}
	return all
})

// onNodes are the lines of node.txt by name.
var onNodes = sync.OnceValue(func() map[string]string {
	all := map[string]string{}
	for line := range strings.Lines(nodeText) {
		name, why, _ := strings.Cut(strings.TrimSpace(line), "\t")
		all[name] = why
	}
	return all
})

// OnNodes returns the gates that the kubelet reads and that cannot be changed on a node of ours, with what holds there.
func OnNodes() map[string]string { return maps.Clone(onNodes()) }

// Set is the gates that were set, with their values.
type Set map[string]bool

// On reports whether the gate of that name is on.
func (s Set) On(name string) bool {
	if on, said := s[name]; said {
		return on
	}
	return All()[name].On
}

// Parse reads values of --feature-gates, "name=bool,..." each; a later one overrides an earlier one. idle returns the
// gates that are set to another value than their default and are not among the honoured. All problems are in one error.
func Parse(values []string, honoured ...string) (set Set, idle []string, err error) {
	set = Set{}
	var errs []error
	for _, part := range strings.Split(strings.Join(values, ","), ",") {
		if part = strings.TrimSpace(part); part == "" {
			continue
		}
		name, value, ok := strings.Cut(part, "=")
		name = strings.TrimPrefix(name, "kube:") // the component's name in upstream's longer form
		gate, known := All()[name]
		on, bad := strconv.ParseBool(strings.TrimSpace(value))
		switch {
		case !ok || bad != nil:
			errs = append(errs, fmt.Errorf("%.200q: want name=true or name=false", part))
		case !known:
			errs = append(errs, fmt.Errorf("%.200q: no feature gate of Kubernetes 1.36", name))
		case gate.Locked && on != gate.On:
			errs = append(errs, fmt.Errorf("%s=%v: is locked to %v in Kubernetes 1.36", name, on, gate.On))
		default:
			set[name] = on
		}
	}
	for name, on := range set {
		if on != All()[name].On && !slices.Contains(honoured, name) {
			idle = append(idle, name)
		}
	}
	slices.Sort(idle)
	return set, idle, errors.Join(errs...)
}
