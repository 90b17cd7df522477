// Package numa decides which CPUs, which memory and which devices a pod gets, and on which NUMA nodes: what the
// kubelet's CPU, memory, device and topology managers decide, in one place and at once.
//
// # Model
//
// A Layout is a machine and its configuration, prepared once. A State is what is free on it and who has the rest. Offer
// says what a pod would get, or why nothing (Refusal, with numbers); Commit makes an offer good; Release takes
// everything back. The agent, the scheduler (on its own copy of each node's State) and whatif call the same functions.
//
// An offer goes through a pod's containers in the order of their starts. For each (or once for the pod, by scope) it
// works out a hint, the NUMA nodes to take from, and then takes devices, CPUs and memory there:
//
//   - CPUs: a container of a Guaranteed pod that asks for whole CPUs gets them for itself, chosen so that whole sockets,
//     nodes, caches and cores stay whole or lie evenly (package cpus). All others run on the shared pool.
//   - Memory: a container of a Guaranteed pod owns blocks on one node or on a group of nodes (package memory).
//   - Devices: those near the hint's nodes, of these those that their plugin prefers. Its opinion is a fact: an Offer says
//     whom to ask what, and is made again with the answer.
//
// Init containers leave what they had to those after them; sidecars keep theirs.
//
// Which nodes are best for all that is wanted is package hints' to find; what is joint to all of it is here: requests,
// the assignments, offers and refusals.
//
// # Vocabulary
//
// hint, want, family, width and place are explained in package hints.
//
//   - berth: where a pod is expected by whoever sent it here. The pod lies there if that is free (berth.go).
//
// # Invariants
//
//   - A State is a function of the assignments and the plugins' devices: rebuilt from them after a crash, it is equal.
//   - No CPU, byte or device belongs to two pods; within a pod only to containers that never run at the same time.
//   - An offer that is not committed changes nothing. Release takes back exactly what was committed.
//   - Running pods keep what they have, whatever became of machine or configuration; what contradicts is told by Adopt.
//
// # What it does not do
//
// It writes no cpuset and talks to no plugin: the agent does. It does not count what pods request (core/admission
// does). Pod-level resources give no pod CPUs or memory of its own, as in upstream 1.36 by default.
package numa
