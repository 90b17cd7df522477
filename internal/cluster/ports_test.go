package cluster

import (
	"bufio"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/plimsoll-dev/plimsoll/test/cost"
)

// The error names the port, its holder and the flag. A port that one of our own children uses is no error.
func TestPortInUse(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	o := testOptions(t)
	o.Agent, o.ControllerManagerPort = false, 0
	o.APIServerPort = listener.Addr().(*net.TCPAddr).Port

	err = o.checkPorts(nil)
	if err == nil {
		t.Fatal("no error")
	}
	for _, want := range []string{fmt.Sprintf("port %d ", o.APIServerPort), "kube-apiserver", fmt.Sprintf("(pid %d)",
		os.Getpid()), "--apiserver-port"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("the error does not hold %q: %v", want, err)
		}
	}
	o.FirstServer = "https://192.0.2.10:6443"
	if err := o.checkPorts(nil); err == nil || !strings.Contains(err.Error(), ": end that process: all servers") {
		t.Errorf("on a further server: %v", err)
	}
	if err := o.checkPorts([]int{os.Getpid()}); err != nil {
		t.Errorf("our own child's port: %v", err)
	}
	listener.Close()
	if err := o.checkPorts(nil); err != nil {
		t.Errorf("a free port: %v", err)
	}
}

func TestForeignAddress(t *testing.T) {
	o := testOptions(t)
	o.Agent = false
	o.ControllerManagerPort = 0
	o.BindAddress = "192.0.2.1" // TEST-NET-1: no machine has this address
	if err := o.checkPorts(nil); err == nil || !strings.Contains(err.Error(), "--bind-address") {
		t.Errorf("error %v", err)
	}
}

// The format of proc_net_tcp: only sockets that listen (0A) on the port count.
func TestListeningInodes(t *testing.T) {
	const table = `  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:192B 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 111 1 0 100 0 0 10 0
   1: 0100007F:192B 0100007F:9C40 01 00000000:00000000 00:00000000 00000000     0        0 222 1 0 20 4 30 10 -1
   2: 00000000:192C 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 333 1 0 100 0 0 10 0
short line
`
	got := listeningInodes(bufio.NewScanner(strings.NewReader(table)), 0x192B)
	if !slices.Equal(got, []string{"111"}) {
		t.Errorf("inodes %v", got)
	}
}

func FuzzListeningInodes(f *testing.F) {
	cost.Attack(f, "0: 0100007F:192B 00000000:0000 0A 00000000:00000000 00:00000000 00000000 0 0 111", 0x192B)
	f.Fuzz(func(t *testing.T, table string, number int) {
		defer cost.Spend(t, len(table))()
		for _, inode := range listeningInodes(bufio.NewScanner(strings.NewReader(table)), number) {
			if inode == "" {
				t.Error("an inode without digits")
			}
		}
	})
}
