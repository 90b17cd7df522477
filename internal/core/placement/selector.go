package placement

import (
	"slices"

	"github.com/plimsoll-dev/plimsoll/internal/core/placement/encode"
	"github.com/plimsoll-dev/plimsoll/internal/core/placement/selector"
)

// An aim is a set of pods that somebody means: those that all its parts select. Constraints and terms that mean the
// same pods share one.
type aim struct {
	id    int32
	key   string
	parts []aimPart
	refs  int

	counters []*counter // of pods that it means, by domain
	held     []*counter // of terms with this aim that counted pods hold, by domain
}

// aimPart selects pods of some namespaces.
type aimPart struct {
	namespaces []string // sorted
	byLabels   LabelSelector
	pods       LabelSelector
}

func (a *aim) means(c *cluster, who *identity) bool {
	for i := range a.parts {
		p := &a.parts[i]
		if _, listed := slices.BinarySearch(p.namespaces, who.namespace); !listed && !p.byLabels.Selects(c.namespaces[who.namespace]) {
			return false
		}
		if !p.pods.Selects(who.labels) {
			return false
		}
	}
	return true
}

// local reports whether the labels of namespaces do not matter to the aim and it means pods of one only, and which.
func (a *aim) local() (string, bool) {
	for i := range a.parts {
		if !a.parts[i].byLabels.Nothing {
			return "", false
		}
	}
	p := &a.parts[0]
	if len(p.namespaces) != 1 {
		return "", false
	}
	return p.namespaces[0], true
}

// aimAt returns the aim of parts and takes hold of it; release lets go.
func (c *cluster) aimAt(parts ...aimPart) *aim {
	b := c.scratch[:0]
	for i := range parts {
		b = encode.Strings(b, parts[i].namespaces)
		b = parts[i].byLabels.Append(b)
		b = parts[i].pods.Append(b)
	}
	c.scratch = b
	if known := c.aims[string(b)]; known != nil {
		known.refs++
		return known
	}
	c.aimsMade++
	a := &aim{id: c.aimsMade, key: string(b), parts: parts, refs: 1}
	c.aims[a.key] = a
	c.listAim(a)
	for _, who := range c.mayMean(a) {
		if a.means(c, who) {
			who.add(a)
		}
	}
	return a
}

func (c *cluster) releaseAim(a *aim) {
	if a.refs--; a.refs > 0 {
		return
	}
	delete(c.aims, a.key)
	c.aims = shrunk(c.aims, &c.gone.aims)
	c.unlistAim(a)
	for _, who := range c.mayMean(a) {
		who.drop(a)
	}
}

// without removes x from list; the order of the others is kept.
func without[T comparable](list []T, x T) []T {
	return slices.DeleteFunc(list, func(y T) bool { return y == x })
}

// An identity is who a pod is to others: its namespace and labels. Pods of one ReplicaSet share one.
type identity struct {
	key       string
	namespace string
	labels    []Label
	places    []int // in c.peers, by label
	refs      int

	aims  []*aim // that mean it, sorted by id
	reach string // the ids of aims, as text: equal for identities that are the same to everyone
	held  []*held

	spreading defaultSpread // see defaultsOf
	demands   []*demand     // that it has used
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

// identify returns the identity of pod and takes hold of it; releaseIdentity lets go.
func (c *cluster) identify(pod *Pod) *identity {
	b := encode.String(c.scratch[:0], pod.Namespace)
	b = selector.AppendLabels(b, pod.Labels)
	c.scratch = b
	if known := c.identities[string(b)]; known != nil {
		known.refs++
		return known
	}
	who := &identity{key: string(b), namespace: pod.Namespace, labels: pod.Labels, refs: 1}
	c.identities[who.key] = who
	c.listIdentity(who)
	for _, home := range [...]string{who.namespace, everyNamespace} {
		c.eachAimFor(home, who, func(a *aim) {
			if a.means(c, who) {
				who.add(a)
			}
		})
	}
	return who
}

func (c *cluster) releaseIdentity(who *identity) {
	if who.refs--; who.refs > 0 {
		return
	}
	delete(c.identities, who.key)
	c.identities = shrunk(c.identities, &c.gone.identities)
	c.demands.forget(c, who)
	c.unlistIdentity(who)
	if who.spreading.aim != nil {
		c.releaseAim(who.spreading.aim)
	}
}

// setNamespace folds in the labels of a namespace: wider aims may now mean its pods, or no longer.
func (c *cluster) setNamespace(name string, labels []Label) (changed bool) {
	if slices.Equal(c.namespaces[name], labels) {
		return false
	}
	if labels == nil {
		delete(c.namespaces, name)
	} else {
		c.namespaces[name] = labels
	}
	if c.peers[name] == nil {
		return false
	}
	for who := range c.peers[name].all {
		c.eachAimFor(everyNamespace, who, func(a *aim) {
			if means := a.means(c, who); means != who.meantBy(a) {
				changed = true
				c.turn(who, a, means)
			}
		})
	}
	return changed
}

// turn makes aim a mean the pods of who, or no longer.
func (c *cluster) turn(who *identity, a *aim, means bool) {
	sign := int32(1)
	if !means {
		sign = -1
	}
	for _, h := range who.held {
		for _, k := range a.counters {
			k.countPod(h, sign)
			c.notifyCounter(k, h.row, sign)
		}
		c.touch(h.row)
	}
	if means {
		who.add(a)
	} else {
		who.drop(a)
	}
}
