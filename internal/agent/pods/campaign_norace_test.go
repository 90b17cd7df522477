//go:build !race

package pods

// historiesShort is how many histories a plain go test plays: about ten seconds. make test-unit plays 10,000.
const historiesShort = 500
