// Package compat writes docs/compatibility.md: how a node of this agent treats every field of a pod and of a
// KubeletConfiguration, and every feature gate. It uses the tables that the agent itself uses (podfields,
// kubeletconfig, featuregate).
//
// The text is a function of the tables. A test writes it (make docs) and fails where the file in the repository
// differs, so that a change of the agent's behaviour cannot leave the page outdated. The product does not use this
// package.
package compat

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/plimsoll-dev/plimsoll/internal/kube/featuregate"
	"github.com/plimsoll-dev/plimsoll/internal/kube/kubeletconfig"
	"github.com/plimsoll-dev/plimsoll/internal/kube/podfields"
)

const head = `# Compatibility

<!-- Written by "make docs" from internal/kube/podfields/rows.go, internal/kube/kubeletconfig/fields.go and
internal/kube/featuregate/node.txt. Change those. -->

What becomes of every field of a pod, of every field of the kubelet's configuration file, and of every feature gate, on
a node that runs ` + "`plimsoll agent`" + `. The fields are those of Kubernetes 1.36. Tests walk the types of the API: a field that is
missing here fails the build.

## Pods

Each field of a pod's specification has one of five outcomes.

- **Carried out.** The agent does what the API says; for fields about placement, ` + "`plimsoll scheduler`" + ` does. A
  test fails if the field makes no difference.
- **Rejected.** The pod fails with the reason and message of upstream's kubelet, under the condition that the note
  names. Otherwise the field is carried out.
- **Held.** The agent cannot do this. The pod stays Pending and none of its containers starts. Its condition
  PodReadyToStartContainers has the reason UnsupportedField, and one Event names the field and what would help. Nothing
  is tried until the pod or the agent changes. A held pod can be deleted at once. A pod that another agent started on
  the node before this one took it over keeps running, and nothing of it is started again.
- **Not placed.** ` + "`plimsoll scheduler`" + ` leaves the pod pending. (kube-scheduler, if it runs instead, treats the
  field as always.)
- **No effect.** No component on a node reads the field, by design; the note says which component reads it.

The agent lists what it cannot carry out in the annotation ` + "`plimsoll.dev/agent-lacks`" + ` of its Node.
` + "`plimsoll scheduler`" + ` places no pod there that the agent would hold because of a field or a volume. That
includes the volume that a claim of the pod is bound to, and the one that a CSI driver would provision for it (the
class's provisioner has a CSIDriver of its name). kube-scheduler does not know the annotation and may place such a pod
there. Static pods are treated like all others; their mirror pods show it.

` + "`containers[]`" + ` stands for init containers and ephemeral containers, too.
`

// Markdown returns the page.
func Markdown() string {
	var out strings.Builder
	out.WriteString(head)
	for _, area := range podfields.Areas() {
		fmt.Fprintf(&out, "\n### %s\n\n| Fields | Outcome | Note |\n|---|---|---|\n", area.Title)
		for _, g := range area.Groups {
			fmt.Fprintf(&out, "| %s | %s | %s |\n", fieldsOf(g), outcomes[g.Outcome], note(g))
		}
	}
	writeConfiguration(&out)
	writeGates(&out)
	return filled(out.String())
}

var outcomes = map[podfields.Outcome]string{
	podfields.CarriedOut: "carried out",
	podfields.Rejected:   "**rejected**",
	podfields.Held:       "**held**",
	podfields.Unplaced:   "**not placed**",
	podfields.NoEffect:   "no effect",
}

// fieldsOf lists a group's fields relative to the path that they have in common.
func fieldsOf(g podfields.Group) string {
	var names []string
	for _, name := range strings.Fields(g.Fields) {
		names = append(names, "`"+strings.TrimSuffix(name, "*")+"`")
	}
	at := strings.TrimPrefix(strings.TrimPrefix(g.At, "spec"), ".")
	if at == "" {
		return strings.Join(names, ", ")
	}
	return "`" + at + "`: " + strings.Join(names, ", ")
}

// note returns a group's note; for held fields without a note, why they are held and what would help.
func note(g podfields.Group) string {
	if g.Note != "" || g.Outcome != podfields.Held {
		return g.Note
	}
	var said []string
	for _, row := range g.Rows() {
		for _, text := range podfields.WhyHeld(strings.TrimSuffix(row.Path, "*")) {
			if !strings.Contains(strings.Join(said, "; "), text) {
				said = append(said, text)
			}
		}
	}
	return strings.Join(said, "; ")
}

const configurationHead = `
## KubeletConfiguration

The agent reads the kubelet's configuration file unchanged (kubelet.config.k8s.io/v1beta1), with the kubelet's defaults.
A field that is not honoured and is set to anything but its default is a warning when the agent starts, which says what
happens instead.

### Honoured

`

// writeConfiguration writes the part about the fields of a KubeletConfiguration.
func writeConfiguration(out *strings.Builder) {
	out.WriteString(configurationHead)
	var honoured []string
	var others strings.Builder
	for _, f := range kubeletconfig.Fields() {
		if f.Honoured {
			honoured = append(honoured, "`"+f.Path+"`")
			continue
		}
		only := ""
		if len(f.Only) > 0 {
			only = "`" + strings.Join(f.Only, "`, `") + "`"
		}
		fmt.Fprintf(&others, "| `%s` | %s | %s |\n", f.Path, only, f.Instead)
	}
	fmt.Fprintf(out, "%s.\n", strings.Join(honoured, ", "))
	out.WriteString("\n### Not honoured\n\n| Field | Honoured value | What happens instead |\n|---|---|---|\n" +
		others.String())
}

const gatesHead = `
## Feature gates

The agent knows every gate of Kubernetes 1.36 by name, in ` + "`featureGates`" + ` of the configuration and in
` + "`--feature-gates`" + `. A name that does not exist is an error, and so is a locked gate that is set to the other
value. These gates can be set, with the kubelet's defaults: `

const fixedGatesHead = `

The kubelet reads these, too. They cannot be changed here: another value is a warning when the agent starts.

| Gate | Default | What holds on a node of ours |
|---|---|---|
`

// writeGates writes the part about feature gates.
func writeGates(out *strings.Builder) {
	out.WriteString(gatesHead)
	value := func(name string) string {
		if featuregate.All()[name].On {
			return "on"
		}
		return "off"
	}
	var honoured []string
	for _, name := range slices.Sorted(maps.Keys(kubeletconfig.Gates())) {
		honoured = append(honoured, fmt.Sprintf("`%s` (%s)", name, value(name)))
	}
	out.WriteString(strings.Join(honoured, ", ") + "." + fixedGatesHead)
	fixed := featuregate.OnNodes()
	for _, name := range slices.Sorted(maps.Keys(fixed)) {
		fmt.Fprintf(out, "| `%s` | %s | %s |\n", name, value(name), fixed[name])
	}
	var locked, others []string
	for _, name := range slices.Sorted(maps.Keys(featuregate.All())) {
		switch gate := featuregate.All()[name]; {
		case kubeletconfig.Gates()[name] || fixed[name] != "":
		case gate.Locked:
			locked = append(locked, fmt.Sprintf("`%s` (%s)", name, value(name)))
		default:
			others = append(others, "`"+name+"`")
		}
	}
	fmt.Fprintf(out, "\nLocked, in Kubernetes as here: %s.\n\n", strings.Join(locked, ", "))
	fmt.Fprintf(out, "These have no effect on a node, in the kubelet as here: %s.\n", strings.Join(others, ", "))
}

// columnsMax is where lines of prose end, in characters (chosen, CONTRIBUTING.md).
const columnsMax = 120

// filled breaks longer lines at blanks, except rows of tables.
func filled(page string) string {
	var out strings.Builder
	for line := range strings.Lines(page) {
		for len(line) > columnsMax+len("\n") && !strings.HasPrefix(line, "|") {
			at := strings.LastIndex(line[:columnsMax+1], " ")
			if at <= 0 {
				break
			}
			out.WriteString(line[:at] + "\n")
			line = line[at+1:]
		}
		out.WriteString(line)
	}
	return out.String()
}
