// Package translate turns objects of the Kubernetes API into the core's values, and values of the core into what the
// API publishes of them.
//
// # Model
//
// Each type of the core that is made of an API object has one function here, named for the core package and the object:
// PlacementPod, HealthNode. Whoever decides with the core calls that one, on a node, in the scheduler, in whatif and in
// benchmarks, so that the same object means the same everywhere. Defaults and bounds are applied here: a value that a
// function returns is one that the core may count with, whatever somebody wrote into the object.
//
// Every function depends on its arguments alone, and changes none of them, but for TrimHealthPod, which is made for
// that. What they read of a pod is held to the table in podfields, field by field, by fields_test.go.
//
// # What it does not do
//
// It speaks to nobody: clients and watches are in package kube, which does not import this one. It decides nothing: a
// field that the core has no rule for is named (scheduler.Pod.Unsupported), not judged. It does not translate what the
// agent asks of a container runtime (agent/criconfig).
package translate
