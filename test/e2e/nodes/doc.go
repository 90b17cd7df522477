// Package nodes tests clusters of several machines: joining by token, pods and Services across nodes, and that a
// machine keeps nothing of a node that is gone.
//
// The cluster runs in the network namespace of the test process. Each machine that joins is another namespace. A bridge
// connects them. All share one kernel and one file system.
package nodes
