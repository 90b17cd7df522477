// Package plimsoll is the root of the module. It holds no product code: only the tests that keep the tree in order
// (import rules, package docs). Start reading at ARCHITECTURE.md.
package plimsoll
