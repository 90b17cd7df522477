// Package registration decides about the plugins of a node that register by sockets in the directory plugins_registry:
// which socket is asked when, which plugin is registered, and which is refused, with the reason.
//
// # Model
//
// A Registry is told which sockets there are, and how each of its own actions ended. It answers with the next actions.
// A socket goes through phases: waiting until it is due, asking (the plugin says what it is), registering (the part of
// the agent that uses plugins of its kind tries it), telling (the plugin learns the outcome), registered. After a
// refusal or a failure it waits again, twice as long each time.
//
// # Invariants
//
//   - At most one action is under way for one socket. A plugin that hangs delays only itself.
//   - Of one kind and name at most one plugin is registered. Every Unregister follows a Register of the same plugin.
//   - A plugin is unregistered when its socket is gone or was made again, and not otherwise.
//   - Every refusal has a reason that says what the plugin said and what is wanted.
//
// These are the kubelet's rules (1.36, pluginmanager and volume/csi), with three differences. In the kubelet, a driver
// that leaves also removes another driver of the same name. In the kubelet, a driver that was refused because its name
// was taken waits for the end of its back-off after the name has become free; here it is tried at once. In both, a
// newer CSI driver replaces an older one of its name; here the older one is registered again when the newer one leaves.
//
// The package does not call plugins (host/pluginregistry) and does not use them (agent/csidrivers,
// agent/devicemanager).
package registration

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

// The wait after the first failure, and the longest one; each is twice the one before (the kubelet's exponential
// back-off of operations: 500 ms, 2 min 2 s). A shorter wait helps plugins that create their socket too early.
const (
	waitMin = 500 * time.Millisecond
	waitMax = 2*time.Minute + 2*time.Second
)

// Socket is a socket in the directory.
type Socket struct {
	Path string
	Made uint64 // distinguishes it from a socket that was at the same path before
}

// Plugin is a plugin as it registers.
type Plugin struct {
	Socket   Socket
	Kind     Kind
	Name     string
	Endpoint string // path of the socket on which it serves
	Version  string // the chosen one of those that it supports
}

// Tell is what a plugin is told about its registration.
type Tell struct {
	Socket Socket
	OK     bool
	Why    string // not empty if OK is false
}

// Decision is what to do next, in this order. The shell reports each outcome back, except those of Unregister.
type Decision struct {
	Unregister []Plugin
	Ask        []Socket // what the plugin is; ends with Asked
	Register   []Plugin // ends with Registered
	Tell       []Tell   // ends with Told
	// Wake is when Step must be called again at the latest; zero: not before something happens.
	Wake unit.Instant
}

// phase is where a socket is in its life.
type phase uint8

const (
	waiting phase = iota // until due
	asking
	registering
	telling
	registered
)

// entry is the state of one socket.
type entry struct {
	phase    phase
	present  Socket        // as listed last
	gone     bool          // not listed any more; dropped when the action under way has ended
	due      unit.Instant  // valid in phase waiting
	wait     time.Duration // the last wait; 0: the last attempt succeeded, or there was none
	at       Socket        // the socket that the action or the registration is about; not valid in phase waiting
	plugin   Plugin        // valid in the phases registering and registered; in telling if accepted
	accepted bool          // valid in phase telling
	blocked  identity      // the plugin whose place is taken by another; zero: none
}

// identity names a plugin. At most one plugin of an identity is registered.
type identity struct {
	kind Kind
	name string
}

// Registry is the state of the directory. It is for one goroutine at a time.
type Registry struct {
	entries map[string]*entry   // by path
	holders map[identity]string // path of the entry that has a name, from registering on
	out     Decision            // of the Step under way
}

// New returns the Registry of an empty directory.
func New() *Registry {
	return &Registry{entries: map[string]*entry{}, holders: map[identity]string{}}
}

// Listed records the complete list of sockets.
func (r *Registry) Listed(now unit.Instant, sockets []Socket) {
	for _, e := range r.entries {
		e.gone = true
	}
	for _, s := range sockets {
		e := r.entries[s.Path]
		if e == nil {
			r.entries[s.Path] = &entry{present: s, due: now}
			continue
		}
		e.gone = false
		if e.present != s {
			e.present = s
			e.wait = 0
			e.blocked = identity{}
			if e.phase == waiting {
				e.due = now
			}
		}
	}
}

// Asked records a plugin's answer, or why it gave none.
func (r *Registry) Asked(now unit.Instant, s Socket, answer Answer, err error) {
	e := r.under(s, asking)
	switch {
	case e == nil:
	case e.stale():
		r.waitAgain(now, e, 0)
	case err != nil:
		r.waitLonger(now, e)
	default:
		p, why := judge(s, answer)
		if why == "" {
			why = r.take(now, e, p)
		}
		if why != "" {
			r.tell(e, false, why)
		}
	}
}

// Registered records the outcome of a Register.
func (r *Registry) Registered(now unit.Instant, s Socket, err error) {
	e := r.under(s, registering)
	switch {
	case e == nil:
	case err != nil:
		r.free(now, e)
		r.tell(e, false, err.Error())
	default:
		r.tell(e, true, "")
	}
}

// Told records the outcome of a Tell.
func (r *Registry) Told(now unit.Instant, s Socket, err error) {
	e := r.under(s, telling)
	switch {
	case e == nil:
	case e.accepted && err == nil:
		e.phase, e.wait = registered, 0
	case e.accepted:
		r.unregister(now, e)
		r.waitLonger(now, e)
	default:
		r.waitLonger(now, e)
	}
}

// Step returns the actions that follow from everything recorded since the last call.
func (r *Registry) Step(now unit.Instant) Decision {
	for _, path := range slices.Sorted(maps.Keys(r.entries)) {
		e := r.entries[path]
		if e.phase == registered && e.stale() {
			r.unregister(now, e)
			r.waitAgain(now, e, 0)
		}
		if e.phase == waiting && e.gone {
			delete(r.entries, path)
		}
	}
	for _, path := range slices.Sorted(maps.Keys(r.entries)) {
		e := r.entries[path]
		if e.phase != waiting {
			continue
		}
		if e.due > now {
			r.out.Wake = r.out.Wake.Earlier(e.due)
			continue
		}
		e.phase = asking
		e.at = e.present
		e.blocked = identity{}
		r.out.Ask = append(r.out.Ask, e.at)
	}
	out := r.out
	r.out = Decision{}
	return out
}

// List returns the registered plugins, by kind and name.
func (r *Registry) List() []Plugin {
	var out []Plugin
	for _, e := range r.entries {
		if e.phase == registered {
			out = append(out, e.plugin)
		}
	}
	slices.SortFunc(out, func(a, b Plugin) int { return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Name, b.Name)) })
	return out
}

// Paths returns the sockets that are there, in order.
func (r *Registry) Paths() []string {
	var out []string
	for path, e := range r.entries {
		if !e.gone {
			out = append(out, path)
		}
	}
	slices.Sort(out)
	return out
}

// under returns the entry of a socket whose action of this phase is under way.
func (r *Registry) under(s Socket, p phase) *entry {
	if e := r.entries[s.Path]; e != nil && e.phase == p && e.at == s {
		return e
	}
	return nil
}

// stale reports whether the socket that an action or a registration is about is no longer there.
func (e *entry) stale() bool { return e.gone || e.at != e.present }

// take gives p its name and registers it, or returns why another plugin keeps the name.
func (r *Registry) take(now unit.Instant, e *entry, p Plugin) string {
	id := identity{p.Kind, p.Name}
	if path, held := r.holders[id]; held {
		other := r.entries[path]
		if !replaces(p, other.plugin) || other.phase != registered {
			e.blocked = id
			return fmt.Sprintf("%s %s is registered already, at %s with version %s: "+
				"this one, with version %s, is registered when that one has gone",
				p.Kind, p.Name, other.plugin.Socket.Path, other.plugin.Version, p.Version)
		}
		r.unregister(now, other)
		r.waitAgain(now, other, waitMax)
		other.blocked = id
	}
	r.holders[id] = p.Socket.Path
	e.phase, e.plugin = registering, p
	r.out.Register = append(r.out.Register, p)
	return ""
}

func (r *Registry) tell(e *entry, ok bool, why string) {
	e.phase, e.accepted = telling, ok
	r.out.Tell = append(r.out.Tell, Tell{Socket: e.at, OK: ok, Why: why})
}

// unregister unregisters the plugin of an entry.
func (r *Registry) unregister(now unit.Instant, e *entry) {
	r.out.Unregister = append(r.out.Unregister, e.plugin)
	r.free(now, e)
}

// free gives up the name of an entry's plugin: others that wait for it are tried at once.
func (r *Registry) free(now unit.Instant, e *entry) {
	id := identity{e.plugin.Kind, e.plugin.Name}
	delete(r.holders, id)
	for _, other := range r.entries {
		if other.blocked == id && other.phase == waiting {
			other.due = now
		}
	}
}

// waitLonger makes an entry wait twice as long as the last time.
func (r *Registry) waitLonger(now unit.Instant, e *entry) {
	e.wait = max(waitMin, min(2*e.wait, waitMax))
	wait := e.wait
	if e.blocked != (identity{}) && r.holders[e.blocked] == "" || e.stale() {
		wait = 0 // the reason of the refusal is gone
	}
	r.waitAgain(now, e, wait)
}

func (r *Registry) waitAgain(now unit.Instant, e *entry, wait time.Duration) {
	e.phase, e.due = waiting, now.Add(wait)
}
