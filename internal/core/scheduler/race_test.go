//go:build race

package scheduler

// racing: the race detector makes each step about ten times as slow, and finds little here, because one goroutine owns
// a Placer. So histories are fewer then; make test-unit runs all of them without it.
const racing = true
