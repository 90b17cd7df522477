package census

import (
	"slices"

	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler/encode"
	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler/selector"
	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler/shrink"
)

// An Identity is what selectors see of a pod: its namespace and labels. The pods of one ReplicaSet share one Identity.
type Identity struct {
	key       string
	Namespace string
	Labels    []selector.Label
	places    []int // by label: the place in the list of that label in Census.peers
	Refs      int   // how many pods and users have it

	Aims  []*Aim // that have its pods, sorted by ID
	Reach string // the IDs of Aims, encoded: equal for identities that are in the same aims
	Pods  []*Pod // those on rows, in no order
	Keeps any    // owned by the user of the package

}

func (who *Identity) add(a *Aim) {
	i, found := slices.BinarySearchFunc(who.Aims, a.ID, func(x *Aim, id int32) int { return int(x.ID) - int(id) })
	if !found {
		who.Aims = slices.Insert(who.Aims, i, a)
		who.name()
	}
}

func (who *Identity) drop(a *Aim) {
	if who.MeantBy(a) {
		who.Aims = shrink.Without(who.Aims, a)
		who.name()
	}
}

// MeantBy reports whether a means the pods of who.
func (who *Identity) MeantBy(a *Aim) bool {
	_, found := slices.BinarySearchFunc(who.Aims, a.ID, func(x *Aim, id int32) int { return int(x.ID) - int(id) })
	return found
}

func (who *Identity) name() {
	var b []byte
	for _, a := range who.Aims {
		b = encode.Number(b, int64(a.ID))
	}
	who.Reach = string(b)
}

// Identify returns the identity of pods with these labels, sorted by key, with one more reference. fresh is true if it
// was created by this call. ReleaseIdentity drops the reference.
func (c *Census) Identify(namespace string, labels []selector.Label) (who *Identity, fresh bool) {
	b := encode.String(c.scratch[:0], namespace)
	b = selector.AppendLabels(b, labels)
	c.scratch = b
	if known := c.identities[string(b)]; known != nil {
		known.Refs++
		return known, false
	}
	who = &Identity{key: string(b), Namespace: namespace, Labels: labels, Refs: 1}
	c.identities[who.key] = who
	c.listIdentity(who)
	for _, home := range [...]string{who.Namespace, everyNamespace} {
		c.eachAimFor(home, who, func(a *Aim) {
			if a.Means(c, who) {
				who.add(a)
			}
		})
	}
	return who, true
}

// ReleaseIdentity drops a reference to an identity, and reports whether it was the last. With the last reference the
// identity is deleted.
func (c *Census) ReleaseIdentity(who *Identity) (last bool) {
	if who.Refs--; who.Refs > 0 {
		return false
	}
	delete(c.identities, who.key)
	c.identities = shrink.Map(c.identities, &c.gone.identities)
	c.unlistIdentity(who)
	return true
}
