//go:build race

package pods

// historiesShort is how many histories a plain go test plays: the race detector makes each ten times as dear, and looks
// for something else in them.
const historiesShort = 60
