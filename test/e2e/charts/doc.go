// Package charts tests what people install: PostgreSQL with a claim, nginx with probes and a horizontal autoscaler, and
// Prometheus with our rules about the whole cluster (deploy/monitoring), as charts make them. Everything comes with one
// `kubectl apply`, works, and goes with one `kubectl delete` that leaves nothing behind. It needs root, and the images
// that `make charts` builds.
//
//	make charts
package charts
