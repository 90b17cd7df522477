//go:build !race

package scheduler

const racing = false
