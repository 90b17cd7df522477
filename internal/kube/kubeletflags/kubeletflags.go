// Package kubeletflags has the flags of the kubelet 1.36 that set fields of its configuration, that have no effect
// here, or that are refused. With those that the agent's command line has of its own they are all flags of the kubelet:
// a test in oracle/ compares. Explain says of flags that older kubelets had what holds now.
//
// # Model
//
// Add defines the flags. Parsed values are checked for their form at once, and kept as settings, one for each field.
// kubeletconfig puts them on top of the configuration file and its drop-ins and checks what they mean. A flag that may
// be given more than once collects its values, as in the kubelet.
//
// A flag of the kubelet without a configuration file has another default for four fields, by which anybody may use the
// kubelet's server (anonymous-auth, authentication-token-webhook, authorization-mode, read-only-port). Here they have
// the defaults of the configuration file.
//
// The package reads no file and changes no behaviour.
package kubeletflags

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"github.com/plimsoll-dev/plimsoll/internal/kube/kubeletconfig"
)

// Line is what a command line says. Its flags set it.
type Line struct {
	flags    *pflag.FlagSet
	settings []kubeletconfig.Setting // in the order of the first mention
}

// Add defines the flags in fs, and has names with underscores stand for those with dashes, as the kubelet does.
func Add(fs *pflag.FlagSet) *Line {
	l := &Line{flags: fs}
	fs.SetNormalizeFunc(func(_ *pflag.FlagSet, name string) pflag.NormalizedName {
		return pflag.NormalizedName(strings.ReplaceAll(name, "_", "-"))
	})
	for _, f := range fields {
		added := fs.VarPF(&value{line: l, field: f}, f.name, f.short, "sets `"+kinds[f.kind].name+"` "+f.path+
			" of the configuration")
		if f.kind.stands() {
			added.NoOptDefVal = "true"
		}
	}
	for _, f := range idle {
		add(fs, f, "no effect: ")
	}
	for _, f := range refused {
		add(fs, f, "refused: ")
	}
	return l
}

func add(fs *pflag.FlagSet, f other, what string) {
	if f.value == "" {
		fs.Bool(f.name, false, what+f.why)
	} else {
		fs.String(f.name, "", what+"`"+f.value+"`; "+f.why)
	}
}

// Settings returns what the flags say about the configuration.
func (l *Line) Settings() []kubeletconfig.Setting { return slices.Clone(l.settings) }

// Check returns a warning for each given flag that has no effect. The error names each that is refused.
func (l *Line) Check() (warnings []string, err error) {
	for _, f := range idle {
		if l.flags.Changed(f.name) {
			warnings = append(warnings, fmt.Sprintf("--%s: no effect: %s", f.name, f.why))
		}
	}
	var problems []string
	for _, f := range refused {
		if given := l.flags.Lookup(f.name); given.Changed && given.Value.String() != given.DefValue {
			problems = append(problems, fmt.Sprintf("--%s=%.200s: %s", f.name, given.Value, f.why))
		}
	}
	if len(problems) > 0 {
		return nil, fmt.Errorf("%s", strings.Join(problems, "; "))
	}
	return warnings, nil
}

// set notes a value of a field: it replaces or extends what an earlier flag of that name said.
func (l *Line) set(f field, v any) {
	for i, s := range l.settings {
		if s.Path != f.path {
			continue
		}
		switch old := s.Value.(type) {
		case map[string]any:
			for key, one := range v.(map[string]any) {
				if more, ok := one.([]string); ok { // headers of one name
					before, _ := old[key].([]string)
					one = append(before, more...)
				}
				old[key] = one
			}
		case []any:
			l.settings[i].Value = append(old, v.([]any)...)
		default:
			l.settings[i].Value = v
		}
		return
	}
	l.settings = append(l.settings, kubeletconfig.Setting{Flag: "--" + f.name, Path: f.path, Value: v,
		Add: f.kind == gates})
}

// value is a flag as pflag sees it.
type value struct {
	line  *Line
	field field
	text  string // as given last
}

// Set implements pflag.Value.
func (v *value) Set(text string) error {
	parsed, err := kinds[v.field.kind].parse(text)
	if err != nil {
		return err
	}
	v.text = text
	if parsed != nil {
		v.line.set(v.field, parsed)
	}
	return nil
}

// String implements pflag.Value.
func (v *value) String() string { return v.text }

// Type implements pflag.Value.
func (v *value) Type() string {
	if v.field.kind.stands() {
		return "bool"
	}
	return kinds[v.field.kind].name
}
