package oracle

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/plimsoll-dev/plimsoll/internal/host/cri"
)

// difference is a field of a request in which we differ from upstream. A field that a side does not set has its zero
// value.
type difference struct {
	path         string // of fields, by the protocol's names
	ours, theirs protoreflect.Value
	field        protoreflect.FieldDescriptor
	whole        struct{ ours, theirs protoreflect.Message } // the whole requests
}

// confineKind is a kind of intended difference.
type confineKind struct {
	name  string // what differs, and why ours does not confine less
	path  string // the end of the path
	meant func(d difference) bool
}

// confineKinds are all intended differences. Any other difference fails the test.
var confineKinds = []confineKind{
	{"userns_options: we leave out what upstream says, that the users are the host's: the runtime takes it so",
		"namespace_options.userns_options",
		func(d difference) bool {
			theirs, ok := d.theirs.Message().Interface().(*runtimeapi.UserNamespace)
			return ok && !d.ours.Message().IsValid() && theirs.Mode == runtimeapi.NamespaceMode_NODE && len(theirs.Uids)+
				len(theirs.Gids) == 0
		}},
	{"masked_paths: ours hide what procMount Unmasked opens upstream, if the pod has the host's users",
		"security_context.masked_paths", moreWords},
	{"readonly_paths: likewise", "security_context.readonly_paths", moreWords},
	{"run_as_group of a sandbox without a user: left out, since the runtime refuses it and the pod would never start; " +
		"only the sandbox's own " +
		"process runs so", "sandbox.linux.security_context.run_as_group",
		func(d difference) bool {
			theirs := d.whole.theirs.Interface().(*runtimeapi.PodSandboxConfig)
			return !d.ours.Message().IsValid() && theirs.Linux.SecurityContext.RunAsUser == nil
		}},
	{"port_mappings of a sandbox: ours leave out ports without a hostPort and all of a pod on the host's network: the " +
		"runtime makes nothing of them", "sandbox.port_mappings", sameHostPorts},
	{"annotations of a container: each side's own memory; those that both have are equal", "container.annotations",
		sharedAnnotations},
}

// confineRefusals are errors with which we refuse what upstream accepts: a refused pod is not confined less.
var confineRefusals = []string{
	"hostNetwork, hostPID and hostIPC must not be true", // the API server refuses the pod with hostUsers: false
	"want a path below the directory of profiles",       // the API server refuses the pod
	"missing localhost apparmor profile name",           // the API server refuses it, too; upstream accepts the empty name
	// the API server refuses it, too; upstream treats it as Unconfined
	"unknown seccomp profile type",
}

// moreWords reports whether upstream has no value where we have a list.
func moreWords(d difference) bool {
	return d.theirs.List().Len() == 0 && d.ours.List().Len() > 0
}

func sameHostPorts(d difference) bool {
	sandbox := d.whole.ours.Interface().(*runtimeapi.PodSandboxConfig)
	ours := sandbox.PortMappings
	if sandbox.Linux.SecurityContext.NamespaceOptions.Network == runtimeapi.NamespaceMode_NODE {
		return len(ours) == 0
	}
	theirs := slices.DeleteFunc(slices.Clone(d.whole.theirs.Interface().(*runtimeapi.PodSandboxConfig).PortMappings),
		func(p *runtimeapi.PortMapping) bool {
			return p.HostPort == 0
		})
	return slices.EqualFunc(ours, theirs, func(a, b *runtimeapi.PortMapping) bool { return proto.Equal(a, b) })
}

func sharedAnnotations(d difference) bool {
	ours := d.whole.ours.Interface().(*runtimeapi.ContainerConfig).Annotations
	theirs := d.whole.theirs.Interface().(*runtimeapi.ContainerConfig).Annotations
	for _, key := range []string{cri.AnnotationRestartCount, cri.AnnotationMessagePath, cri.AnnotationMessagePolicy,
		cri.AnnotationPodGracePeriod} {
		if text, ok := theirs[key]; ok && ours[key] != text {
			return false
		}
	}
	return true
}

// compare counts the differences between two requests. It fails the test if one is not intended.
func (c *confiner) compare(kind string, ours, theirs protoreflect.Message) {
	c.t.Helper()
	for _, text := range c.unknown(kind, ours, theirs) {
		c.t.Errorf("%s", text)
	}
}

// unknown counts the intended differences and returns the others.
func (c *confiner) unknown(kind string, ours, theirs protoreflect.Message) []string {
	var out []string
	for _, d := range differences(kind, ours, theirs) {
		d.whole.ours, d.whole.theirs = ours, theirs
		i := slices.IndexFunc(confineKinds, func(k confineKind) bool {
			return strings.HasSuffix(d.path, k.path) &&
				k.meant(d)
		})
		if i < 0 {
			out = append(out, fmt.Sprintf("%s: ours %s, theirs %s", d.path, printed(d.ours), printed(d.theirs)))
			continue
		}
		c.count[confineKinds[i].name]++
	}
	return out
}

func printed(v protoreflect.Value) string {
	switch x := v.Interface().(type) {
	case protoreflect.Message:
		return fmt.Sprintf("{%v} (set: %v)", x.Interface(), x.IsValid())
	case protoreflect.List:
		return fmt.Sprint(listOf(x))
	case protoreflect.Map:
		return fmt.Sprint(mapOf(x))
	}
	return fmt.Sprintf("%q", v.String())
}

func listOf(l protoreflect.List) (out []protoreflect.Value) {
	for i := range l.Len() {
		out = append(out, l.Get(i))
	}
	return out
}

func mapOf(m protoreflect.Map) map[string]string {
	out := map[string]string{}
	m.Range(func(k protoreflect.MapKey, v protoreflect.Value) bool {
		out[k.String()] = v.String()
		return true
	})
	return out
}

// differences compares two messages of one type. In the protocol, absent and empty lists and maps are the same; an
// absent message and an empty one are not.
func differences(path string, ours, theirs protoreflect.Message) []difference {
	var out []difference
	fields := theirs.Descriptor().Fields()
	for i := range fields.Len() {
		f := fields.Get(i)
		a, b := ours.Get(f), theirs.Get(f)
		at := path + "." + string(f.Name())
		same := true
		switch {
		case f.IsMap():
			same = maps.Equal(mapOf(a.Map()), mapOf(b.Map()))
		case f.IsList():
			same = slices.EqualFunc(listOf(a.List()), listOf(b.List()), func(a, b protoreflect.Value) bool { return a.Equal(b) })
		case f.Message() != nil && a.Message().IsValid() && b.Message().IsValid():
			out = append(out, differences(at, a.Message(), b.Message())...)
			continue
		case f.Message() != nil:
			same = a.Message().IsValid() == b.Message().IsValid()
		default:
			same = a.Equal(b)
		}
		if !same {
			out = append(out, difference{path: at, ours: a, theirs: b, field: f})
		}
	}
	return out
}

// refused reports whether a side refuses the pod. It fails the test if only upstream does, or if we do for a reason
// that is not in confineRefusals.
func (c *confiner) refused(what string, ours, theirs error) bool {
	c.t.Helper()
	switch {
	case ours == nil && theirs == nil:
		return false
	case ours == nil:
		c.t.Errorf("%s: upstream refuses: %v; we do not", what, theirs)
	case theirs == nil:
		i := slices.IndexFunc(confineRefusals, func(text string) bool { return strings.Contains(ours.Error(), text) })
		if i < 0 {
			c.t.Errorf("%s: we refuse: %v; upstream does not", what, ours)
			return true
		}
		c.count["we refuse, upstream does not: "+confineRefusals[i]]++
	default:
		c.errors[fmt.Sprintf("%.60s / %.60s", ours, theirs)]++
	}
	return true
}
