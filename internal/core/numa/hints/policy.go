package hints

// Policy says how well the resources of a pod must be aligned to NUMA nodes.
type Policy uint8

// The policies, from the least to the most strict.
const (
	PolicyNone           Policy = iota // resources are not aligned
	PolicyBestEffort                   // aligned if possible
	PolicyRestricted                   // on as few nodes as on an empty machine, or the pod is rejected
	PolicySingleNUMANode               // on one node, or the pod is rejected
)

// String returns the policy as configurations spell it.
func (p Policy) String() string {
	return [...]string{"none", "best-effort", "restricted", "single-numa-node"}[p]
}
