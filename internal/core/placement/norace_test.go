//go:build !race

package placement

const racing = false
