//go:build !race

package cost

const instrumented = false
