// Package disk takes resources away from a real node: blocks, inodes, a writable disk, file descriptors, time. The
// agent's files are on a small separate disk. It needs root.
//
//	make build && go test -tags e2e ./test/e2e/disk
//
// # Model
//
// Every test has the same parts. A pod that ran before the shortage is not affected and still runs after it. The agent
// keeps running. If it is killed, another starts during the shortage. When the shortage is over it runs new pods. Loss
// of power, another calendar time and suspension of the machine are tested in package lab, in guests:
// TestFullDiskAndPower and TestAsleep are the long forms of these tests.
package disk
