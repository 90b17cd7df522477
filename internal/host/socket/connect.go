package socket

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"

	"golang.org/x/sys/unix"
)

// Connect connects to the socket at path, which another program made. It refuses a symbolic link, even one to a socket.
// It refuses a socket of a user that is neither root nor this program's own: such a user could pose as a driver. It
// connects to the socket that it checked, even if path names another one meanwhile.
func Connect(ctx context.Context, path string) (net.Conn, error) {
	fd, err := unix.Open(path, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("connect: %s: %w", path, err)
	}
	defer func() { _ = unix.Close(fd) }() // nothing was written through it
	if err := check(fd); err != nil {
		return nil, fmt.Errorf("connect: %s: %w", path, err)
	}
	conn, err := (&net.Dialer{}).DialContext(ctx, "unix", fmt.Sprintf("/proc/self/fd/%d", fd))
	if op := (*net.OpError)(nil); errors.As(err, &op) {
		err = op.Err // op's own text has the number of a file descriptor instead of the path
	}
	if err != nil {
		return nil, fmt.Errorf("connect: %s: %w", path, err)
	}
	return conn, nil
}

// check returns an error unless fd is a socket of a trusted user.
func check(fd int) error {
	var stat unix.Stat_t
	if err := unix.Fstat(fd, &stat); err != nil {
		return err
	}
	switch stat.Mode & unix.S_IFMT {
	case unix.S_IFSOCK:
	case unix.S_IFLNK:
		return errors.New("a symbolic link, want the socket itself: have the program make it at this path")
	default:
		return errors.New("not a socket")
	}
	if own := os.Geteuid(); stat.Uid != 0 && int(stat.Uid) != own {
		return fmt.Errorf("a socket of user %d, want one of root or of the agent's user %d: "+
			"run the program as one of them, or chown the socket", stat.Uid, own)
	}
	return nil
}
