// Package hints finds the NUMA nodes from which to take all that a container or a pod asks for: what the kubelet's
// topology manager merges out of the hints of its CPU, memory and device managers.
//
// # Vocabulary
//
//   - hint: a set of NUMA nodes, and whether it is preferred: nothing narrower would do on an empty machine, and all
//     resources agree. Upstream also calls each possible set of one resource a hint; here that is a member of a family.
//   - want: one thing asked of the nodes. family: the sets of nodes that will do for it.
//   - width: how many nodes a preferred set has.
//   - place: the position of a NUMA node in the order of ids. Ids may be sparse; arrays and sets go by place.
//
// # How the best hint is found
//
// Upstream lists for each resource every set of nodes that has enough (up to 2^n-1 of n nodes), then looks at every
// combination of one set per resource: (2^n-1)^r steps. A combination's result is the intersection of its sets; it is
// preferred if all sets are equal and each is preferred. The best result is a preferred one before any other; of
// preferred ones the smallest, then (by option) the one whose nodes are closest, then the smallest as a number; of
// others the one whose size is nearest to an aim, from below if not met, with the same tie-breaks. The aim is the
// largest of the sizes of each resource's smallest set. This is a total order on results, so the best does not depend
// on the order of looking.
//
// We look at neither lists nor combinations. A family is given by sums: amounts by node that must reach a need
// together. It is closed upwards: a node more never hurts. (Memory is several such families with disjoint universes:
// the unused nodes, each group, and each node with blocks of its own, alone.)
//
// Preferred: a preferred result is one set M that is in a family of every want and has every want's width, so widths
// must agree. Conversely, such an M is the result of the combination of M with itself. So we search for the best M of
// that size in the intersection of the families, again a family: its universe is the intersection of the universes, its
// sums are all sums. The search (search.go) chooses the highest node first, in ascending order, so that the first set
// found is the smallest number, and leaves a branch when for some sum even the largest remaining amounts (a table) do
// not reach the need: exact for one sum, and almost always enough for several. For width 1, the common case, that is
// one look per node.
//
// Not preferred: a set X is the intersection of one set from each family if and only if the nodes outside X can be
// shared out among the families, each node to one that does without it, such that each family still reaches its needs
// within what it keeps. (Given such sets, assign each outside node to a family whose set lacks it; adding to that set
// all nodes not assigned to it changes no intersection and, families being closed upwards, keeps it in. The converse is
// plain.) A node outside a universe is assigned to that family for nothing. Results are closed upwards in the
// intersection of the universes (add the same node to every set), so if any has the aim's size or less, the best one
// has the aim's size, or is the whole intersection of the universes when that is smaller; else it has the least size
// there is. So we search the sets of the aim's size, then of the next, in the same order, and ask of each branch
// whether the nodes skipped so far can be shared out (meet.go), which a single family can mostly do alone. With memory
// of several kinds upstream counts one family several times, and so do we; sets of different memory families are
// disjoint, so that all kinds use the same.
//
// Finding a set for several sums is a knapsack problem, so some input must be hard. Many nodes get one more sum that
// kills most hopeless branches (mixture.go), and searchSteps bounds a search. Random amounts on up to 8 nodes do not
// come near that bound (TestMergeAgainstPlainTwin), nor do those on up to 64 nodes (TestLargeMachines), but for
// compromises by distance: there the closest nodes found so far are taken. If a preferred set were not found in time,
// one that is known to exist is taken, or none: a pod might then be refused that could be admitted, but never wrongly
// admitted.
//
// # What it does not do
//
// It knows amounts by node, not what they are amounts of: packages numa and memory make the families.
package hints
