package allocation

import (
	corev1 "k8s.io/api/core/v1"

	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

// Request is a pod that asks for other resources than are allocated to it.
type Request struct {
	Desired   *corev1.Pod // as its specification is now
	Allocated *corev1.Pod // with its allocated resources; its status says what its cgroups have
	Since     unit.Wall   // when it began to wait; zero: it is new
}

// Verdict is the node's decision on a Request.
type Verdict struct {
	Allocated       bool   // it has what it asks for now
	Reason, Message string // if not: Deferred or Infeasible, and why
}
