// Package lifecycle is the node-lifecycle controller's shell: conditions and taints from core/health.
package lifecycle
