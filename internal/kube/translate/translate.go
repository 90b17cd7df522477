// Package translate translates objects of the Kubernetes API to values of the core, and values of the core to what is
// published in the API.
//
// # Model
//
// Each type of the core that is made from an API object has one function here, named for the core package and the
// object: SchedulerPod, LifecycleNode. All callers use that one, on a node, in the scheduler, in whatif and in
// benchmarks, so that the same object means the same everywhere. Defaults and bounds are applied here: the core may
// compute with the values that a function returns, whatever the object contains.
//
// Every function depends on its arguments alone and does not change them, except TrimLifecyclePod, which removes fields
// from its argument. fields_test.go checks, field by field, that the functions read of a pod what the table in
// podfields says.
//
// # What it does not do
//
// It does no I/O: clients and watches are in package kube, which does not import this one. It makes no decisions: a
// field for which the core has no rule is only named (scheduler.Pod.Unsupported). It does not translate the agent's
// requests to a container runtime (agent/criconfig).
package translate
