package freeport_test

import (
	"fmt"
	"net"
	"os"
	"testing"

	"github.com/plimsoll-dev/plimsoll/test/freeport"
)

func TestFind(t *testing.T) {
	ports, err := freeport.Find(200)
	if err != nil {
		t.Fatal(err)
	}
	ofKernel, err := os.ReadFile("/proc/sys/net/ipv4/ip_local_port_range")
	if err != nil {
		t.Fatal(err)
	}
	var low, high int
	if _, err := fmt.Sscan(string(ofKernel), &low, &high); err != nil {
		t.Fatal(err)
	}
	seen := map[int]bool{}
	for _, port := range ports {
		if seen[port] || port >= low && port <= high {
			t.Errorf("%d: found twice, or one that the kernel gives to connections (%d-%d)", port, low, high)
		}
		seen[port] = true
	}
	l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", freeport.ForTest(t)))
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
}
