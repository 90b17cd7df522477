// Package monitoring pins Prometheus, its promtool and kube-state-metrics for deploy/monitoring and test/e2e/charts.
// `make charts` builds them from their published Go modules. go.mod names the commands as tools; there is no code. It
// is a separate module so that their dependencies do not become ours.
package monitoring
