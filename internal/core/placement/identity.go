package placement

import (
	"slices"

	"github.com/plimsoll-dev/plimsoll/internal/core/placement/encode"
	"github.com/plimsoll-dev/plimsoll/internal/core/placement/selector"
)

// An identity is who a pod is to others: its namespace and labels. Pods of one ReplicaSet share one.
type identity struct {
	key       string
	namespace string
	labels    []Label
	places    []int // in c.peers, by label
	refs      int

	aims  []*aim // that mean it, sorted by id
	reach string // the ids of aims, as text: equal for identities that are the same to everyone
	pods  []*countedPod

	spreading defaultSpread // see defaultsOf
	demands   []*demand     // that it has used
	budgets   []*budget     // that select its pods
}

func (who *identity) add(a *aim) {
	i, found := slices.BinarySearchFunc(who.aims, a.id, func(x *aim, id int32) int { return int(x.id) - int(id) })
	if !found {
		who.aims = slices.Insert(who.aims, i, a)
		who.name()
	}
}

func (who *identity) drop(a *aim) {
	if who.meantBy(a) {
		who.aims = without(who.aims, a)
		who.name()
	}
}

func (who *identity) meantBy(a *aim) bool {
	_, found := slices.BinarySearchFunc(who.aims, a.id, func(x *aim, id int32) int { return int(x.id) - int(id) })
	return found
}

func (who *identity) name() {
	var b []byte
	for _, a := range who.aims {
		b = encode.Number(b, int64(a.id))
	}
	who.reach = string(b)
}

// identify returns the identity of pods with these labels, sorted by key, and takes hold of it; releaseIdentity lets go,
// and reports whether it was the last to do so. fresh: there was none yet.
func (c *census) identify(namespace string, labels []Label) (who *identity, fresh bool) {
	b := encode.String(c.scratch[:0], namespace)
	b = selector.AppendLabels(b, labels)
	c.scratch = b
	if known := c.identities[string(b)]; known != nil {
		known.refs++
		return known, false
	}
	who = &identity{key: string(b), namespace: namespace, labels: labels, refs: 1}
	c.identities[who.key] = who
	c.listIdentity(who)
	for _, home := range [...]string{who.namespace, everyNamespace} {
		c.eachAimFor(home, who, func(a *aim) {
			if a.means(c, who) {
				who.add(a)
			}
		})
	}
	return who, true
}

func (c *census) releaseIdentity(who *identity) (last bool) {
	if who.refs--; who.refs > 0 {
		return false
	}
	delete(c.identities, who.key)
	c.identities = shrunk(c.identities, &c.gone.identities)
	c.unlistIdentity(who)
	return true
}
