//go:build race

package scheduler

// racing says that the race detector is on. It makes each step about ten times as slow and finds little here, because
// one goroutine owns a Placer. So there are fewer histories then; make test-unit runs all of them without it.
const racing = true
