// Package numa decides which CPUs, memory and devices are assigned to a pod, and from which NUMA nodes. It decides in
// one place what the kubelet's CPU, memory, device and topology managers decide.
//
// # Model
//
// A Layout is a machine and its configuration, prepared once. A State is what is free on the machine, and what is
// assigned to which pod. Offer says what a pod would get, or why it gets nothing (Rejection, with numbers). Commit
// assigns the resources of an offer. Release takes back all resources of a pod. The agent, the scheduler (on its own
// copy of each node's State) and whatif call the same functions.
//
// An offer handles a pod's containers in the order in which they start. For each container (or once for the pod,
// depending on the scope) it computes a hint: the NUMA nodes to take resources from. Then it takes devices, CPUs and
// memory there:
//
//   - CPUs: a container of a Guaranteed pod that requests whole CPUs gets exclusive CPUs. They are chosen so that
//     sockets, nodes, caches and cores stay completely free where possible, or so that the load is spread evenly
//     (package cpus). All other containers run on the shared pool.
//   - Memory: a container of a Guaranteed pod is assigned blocks of memory on one node, or on a group of nodes (package
//     memory).
//   - Devices: devices near the hint's nodes come first, and among them those that their plugin prefers. The preference
//     is a fact that is passed in: an Offer says which question to ask which plugin, and is made again with the answer.
//
// Init containers pass their resources on to the containers after them. Sidecars keep theirs.
//
// Package hints finds the best nodes for everything that is requested. This package has what all resources share:
// requests, assignments, offers and rejections.
//
// # Vocabulary
//
// Package hints explains hint, want, family, width and place.
//
//   - berth: the CPUs and NUMA nodes where the scheduler expects a pod on its node. The pod gets them if they are free
//     (berth.go).
//
// # Invariants
//
//   - A State is a function of the assignments and the plugins' devices: a State rebuilt from them after a crash is
//     equal.
//   - No CPU, byte or device is assigned to two pods. Within a pod it is assigned to several containers only if they
//     never run at the same time.
//   - An offer that is not committed changes nothing. Release takes back exactly what was committed.
//   - Running pods keep their assigned resources, whatever changes in machine or configuration. Adopt returns the
//     contradictions.
//
// # What it does not do
//
// It writes no cpuset and talks to no plugin: the agent does. It does not add up what pods request (core/admission
// does). A pod with pod-level resources is assigned no exclusive CPUs or memory, as in upstream 1.36 by default.
package numa
