package hints

// Policy says how well the resources of a pod have to agree on NUMA nodes.
type Policy uint8

// Policies, from indifferent to strict.
const (
	PolicyNone           Policy = iota // every resource for itself
	PolicyBestEffort                   // together if possible
	PolicyRestricted                   // as narrow as an empty machine would allow, or not at all
	PolicySingleNUMANode               // from one node, or not at all
)

// String returns the policy as configurations spell it.
func (p Policy) String() string {
	return [...]string{"none", "best-effort", "restricted", "single-numa-node"}[p]
}
