//go:build race

package scheduler

// racing: the race detector makes each step some ten times as dear, and finds little here: one goroutine owns a Placer.
// So random histories, and what comes and goes, are fewer then; make test-unit plays all of them without it.
const racing = true
