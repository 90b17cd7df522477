// Package hints finds the NUMA nodes from which to take everything that a container or a pod requests. It computes what
// the kubelet's topology manager merges from the hints of its CPU, memory and device managers.
//
// # Vocabulary
//
//   - hint: a set of NUMA nodes, and whether it is preferred. It is preferred if fewer nodes would not be enough even
//     on an empty machine, and all resources agree. Upstream also calls each possible set of one resource a hint; here
//     that is a member of a family.
//   - want: one request to the nodes. family: the sets of nodes that satisfy it.
//   - width: how many nodes a preferred set has.
//   - place: the index of a NUMA node in the order of ids. Ids may have gaps; arrays and sets use places.
//
// # How the best hint is found
//
// Upstream lists for each resource every set of nodes that has enough (up to 2^n-1 of n nodes), and then examines every
// combination of one set per resource: (2^n-1)^r steps. The result of a combination is the intersection of its sets. It
// is preferred if all sets are equal and each is preferred. Preferred results are better than others. Among preferred
// results the smallest is the best, then (by option) the one whose nodes are closest to each other, then the smallest
// as a number. Among other results the best is the one whose size is nearest to an aim: first those not above the aim,
// then those above, with the same tie-breaks. The aim is the largest of the sizes of each resource's smallest set. This
// is a total order on results, so the best result does not depend on the order of the search.
//
// This package examines neither lists nor combinations. A family is described by sums: amounts by node that together
// must reach a need. It is closed upwards: an additional node never hurts. (Memory is several such families with
// disjoint universes: the unused nodes, each group, and each node with blocks of its own, alone.)
//
// Preferred results: a preferred result is one set M that is in a family of every want and has the width of every want,
// so all widths must be equal. Conversely, such an M is the result of the combination of M with itself. So it is enough
// to search for the best M of that size in the intersection of the families. That intersection is again a family: its
// universe is the intersection of the universes, and its sums are all sums. The search (search.go) visits sets in
// ascending order by choosing the highest node first, so that the first set found is the smallest number. It leaves a
// branch when, for some sum, even the largest remaining amounts (from a table) do not reach the need. That is exact for
// one sum, and almost always enough for several. For width 1, the common case, it is one check per node.
//
// Other results: a set X is the intersection of one set from each family if and only if the nodes outside X can be
// shared out among the families, each node to one family that does without it, such that each family still reaches its
// needs with the nodes that it keeps. Proof: given such sets, assign each outside node to a family whose set lacks it.
// Adding to that set all nodes not assigned to its family changes no intersection and, because families are closed
// upwards, keeps the set in the family. The converse is obvious. A family does without a node outside its universe at
// no cost. Results are closed upwards in the intersection of the universes (add the same node to every set). So if
// there is a result of the aim's size or less, the best result has the aim's size, or is the whole intersection of the
// universes if that is smaller. Otherwise the best result has the least size there is. So the search goes through the
// sets of the aim's size, then of the next size, in the same order, and checks for each branch whether the nodes
// skipped so far can be shared out (meet.go). Mostly a single family can do without all of them. With memory of several
// kinds upstream counts one family several times, and so does this package. Sets of different memory families are
// disjoint, so all kinds use the same family.
//
// Finding a set for several sums is a knapsack problem, so some inputs must be hard. For many nodes one more sum is
// added that ends most hopeless branches (mixture.go), and searchSteps limits a search. Random amounts on up to 8 nodes
// do not come near that limit (TestMergeAgainstPlainTwin). Those on up to 64 nodes do not reach it either
// (TestLargeMachines), except in the search for results that are not preferred with distances: there the closest nodes
// found so far are taken. If a preferred set is not found within the limit, the search returns one that is known to
// exist, or none. Then a pod might be rejected that could be admitted, but no pod is admitted wrongly.
//
// # What it does not do
//
// It knows amounts by node, not what they are amounts of: packages numa and memory make the families.
package hints
