package allocation

import (
	corev1 "k8s.io/api/core/v1"

	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

// Request is a pod that requests other resources than are allocated to it.
type Request struct {
	Desired   *corev1.Pod // as its specification is now
	Allocated *corev1.Pod // with its allocated resources; its status has the actual resources of its cgroups
	Since     unit.Wall   // since when it waits; zero: it is new
}

// Verdict is the node's decision on a Request.
type Verdict struct {
	Allocated       bool   // what it requests is allocated now
	Reason, Message string // otherwise: Deferred or Infeasible, and why
}
