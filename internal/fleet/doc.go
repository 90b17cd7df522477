// Package fleet is hollow nodes: the agent's heartbeat without containers.
package fleet
