// Package agent is the node agent's shell: it runs the pods bound to this node and speaks for the node.
package agent
