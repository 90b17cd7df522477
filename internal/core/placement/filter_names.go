package placement

import "slices"

// passesNames narrows pods whose affinity demands nodes by name (those of DaemonSets) to these nodes. It comes first,
// as upstream's narrowing does, and has a reason of its own.
func passesNames(c *cluster, k *class, r row) bool {
	if k.onlyNames == nil {
		return true
	}
	_, found := slices.BinarySearch(k.onlyNames, c.name[r])
	return found
}

func explainNames(_ *cluster, k *class, _ row, reasons []string) []string {
	if k.conflict {
		return append(reasons, "pod affinity terms conflict")
	}
	return append(reasons, "node(s) didn't satisfy plugin(s) [NodeAffinity]")
}
