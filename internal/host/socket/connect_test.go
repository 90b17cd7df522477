package socket

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestConnect: a socket is reached even if its path is longer than a socket's address. Links and sockets of other users
// are refused.
func TestConnect(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("gives a socket to another user: run as root")
	}
	dir, err := Open(filepath.Join(t.TempDir(), strings.Repeat("d", 120)))
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	for _, name := range []string{"own.sock", "theirs.sock"} {
		listener, err := dir.Listen(name)
		if err != nil {
			t.Fatal(err)
		}
		defer listener.Close()
	}
	path := func(name string) string { return filepath.Join(dir.Path, name) }
	for _, err := range []error{
		os.Lchown(path("theirs.sock"), 1234, 0),
		os.Symlink("own.sock", path("link.sock")),
		os.WriteFile(path("file"), nil, 0o600),
		stale(dir, "stale.sock"),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, test := range []struct{ name, want string }{
		{"own.sock", ""},
		{"theirs.sock", "a socket of user 1234, want one of root or of the agent's user 0: run the program as one of " +
			"them, or chown the socket"},
		{"link.sock", "a symbolic link, want the socket itself: have the program make it at this path"},
		{"file", "not a socket"},
		{"none", "no such file or directory"},
		{"stale.sock", "connect: connection refused"},
	} {
		conn, err := Connect(t.Context(), path(test.name))
		if err == nil {
			_ = conn.Close()
		}
		want := "connect: " + path(test.name) + ": " + test.want
		if test.want == "" != (err == nil) || err != nil && err.Error() != want {
			t.Errorf("%s: %v", test.name, err)
		}
	}
}

// stale makes a socket on which nobody listens.
func stale(dir *Dir, name string) error {
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: dir.In(name), Net: "unix"})
	if err != nil {
		return err
	}
	listener.SetUnlinkOnClose(false)
	return listener.Close()
}
