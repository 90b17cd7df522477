// Package freeport finds TCP ports for the servers that tests start, stop and start again.
//
// A listener on port 0 cannot do that: the kernel gives it a port that it gives to outgoing connections, too. A server
// that stops and starts again may then find its port taken by any process that has connected to another meanwhile.
package freeport

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
	"syscall"
	"testing"
)

// Ports are from this range. Many of those below have well-known servers. From 30000 on, kube-apiserver gives them to
// Services (its flag --service-node-port-range), and from 32768 on, the kernel gives them to connections
// (net.ipv4.ip_local_port_range in the kernel's ip-sysctl.rst).
const first, end = 12000, 30000

// ForTest returns a port of this machine that is free now and that the kernel gives to no outgoing connection.
func ForTest(t testing.TB) int {
	t.Helper()
	ports, err := Find(1)
	if err != nil {
		t.Fatal(err)
	}
	return ports[0]
}

// Find returns different ports as ForTest does. They are random, since tests of other processes look for ports at the
// same time.
func Find(count int) ([]int, error) {
	var ports []int
	for tries := 0; len(ports) < count; tries++ {
		if tries == end-first {
			return nil, fmt.Errorf("find a free TCP port: tried %d random ports from %d to %d: all are in use", tries, first,
				end-1)
		}
		port := first + rand.IntN(end-first)
		l, err := net.Listen("tcp", net.JoinHostPort("", strconv.Itoa(port)))
		if errors.Is(err, syscall.EADDRINUSE) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("find a free TCP port: %w", err)
		}
		defer l.Close() // until all are found, so that they differ
		ports = append(ports, port)
	}
	return ports, nil
}
