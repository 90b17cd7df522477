package census

import (
	"slices"

	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler/encode"
	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler/selector"
	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler/shrink"
)

// An Identity is what selectors see of a pod: its namespace and labels. The pods of one ReplicaSet share one Identity.
type Identity struct {
	key       string // namespace and labels, encoded
	Namespace string
	Labels    []selector.Label // sorted by key
	places    []int            // by label: its index in the list of that label in Census.peers
	Refs      int              // how many pods and users have it

	Sets    []*PodSet // the pod sets that have its pods, sorted by ID
	SetsKey string    // the IDs of Sets, encoded: equal for identities that are in the same pod sets
	Pods    []*Pod    // those on rows, in no order
	Data    any       // owned by the user of the package
}

func (who *Identity) add(a *PodSet) {
	i, found := slices.BinarySearchFunc(who.Sets, a.ID, func(x *PodSet, id int32) int { return int(x.ID) - int(id) })
	if !found {
		who.Sets = slices.Insert(who.Sets, i, a)
		who.setKey()
	}
}

func (who *Identity) drop(a *PodSet) {
	if who.In(a) {
		who.Sets = shrink.Without(who.Sets, a)
		who.setKey()
	}
}

// In reports whether the pods of who are in a.
func (who *Identity) In(a *PodSet) bool {
	_, found := slices.BinarySearchFunc(who.Sets, a.ID, func(x *PodSet, id int32) int { return int(x.ID) - int(id) })
	return found
}

func (who *Identity) setKey() {
	var b []byte
	for _, a := range who.Sets {
		b = encode.Number(b, int64(a.ID))
	}
	who.SetsKey = string(b)
}

// Identify returns the identity of pods with these labels, sorted by key, with one more reference. fresh is true if it
// was created by this call. DropIdentity drops the reference.
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
		c.eachSetFor(home, who, func(a *PodSet) {
			if a.Has(c, who) {
				who.add(a)
			}
		})
	}
	return who, true
}

// DropIdentity drops a reference to an identity, and reports whether it was the last. With the last reference the
// identity is deleted.
func (c *Census) DropIdentity(who *Identity) (last bool) {
	if who.Refs--; who.Refs > 0 {
		return false
	}
	delete(c.identities, who.key)
	c.identities = shrink.Map(c.identities, &c.gone.identities)
	c.unlistIdentity(who)
	return true
}
