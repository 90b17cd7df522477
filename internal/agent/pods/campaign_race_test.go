//go:build race

package pods

// historiesShort is how many histories a plain go test plays. With the race detector each takes ten times as long, and
// it looks for other defects.
const historiesShort = 60
