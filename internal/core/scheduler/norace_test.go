//go:build !race

package scheduler

// racing says that the race detector is on.
const racing = false
