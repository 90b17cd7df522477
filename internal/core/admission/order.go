package admission

import (
	"cmp"
	"strings"

	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

// Standing is what a pod had of a node before the node was told of it. A greater one goes first.
type Standing int

// The standings of pods, the least first.
const (
	Unknown Standing = iota // nothing of it was started here, as far as anybody knows
	Ran                     // a container of it was started on this node before, by whatever agent
	Remains                 // the runtime has something of it
)

// Arrival is a pod that a node learns of together with others.
type Arrival struct {
	Standing Standing
	Created  unit.Wall // to the second, as the API has it
	Name     string    // namespace/name: says who is first of those of one second
}

// Order compares two pods that a node learns of together, as when its agent starts: the lesser one is judged first, and
// the other next to it. A pod that runs has its resources already. A pod that ran here before was admitted before; a
// new one came while the agent was away, however old it is, and must not take the resources of another. Of the rest the
// older one goes first. Upstream's kubelet compares the age alone (pkg/kubelet/kubelet.go, HandlePodAdditions).
func Order(a, b Arrival) int {
	return cmp.Or(
		cmp.Compare(b.Standing, a.Standing),
		cmp.Compare(a.Created, b.Created),
		strings.Compare(a.Name, b.Name),
	)
}
