// Package kubeadm pins upstream's kubeadm of the same release as the control plane. TestKubeadm of test/e2e/lab makes
// guests of the lab nodes of a cluster with it. `make bin/kubeadm` builds it from its published Go module. go.mod names
// the command as a tool; there is no code. It is a separate module so that its dependencies do not become ours.
package kubeadm
