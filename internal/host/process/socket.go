package process

import (
	"fmt"
	"net"
	"time"

	"golang.org/x/sys/unix"
)

// listenerTimeout bounds the connection to a socket whose owner does not answer.
const listenerTimeout = time.Second

// Listener returns the process that listens on the unix socket at path.
func Listener(path string) (pid int, err error) {
	conn, err := net.DialTimeout("unix", path, listenerTimeout)
	if err != nil {
		return 0, fmt.Errorf("find the listening process: %w", err)
	}
	defer conn.Close()
	raw, err := conn.(*net.UnixConn).SyscallConn()
	if err != nil {
		return 0, fmt.Errorf("find the listening process: %s: %w", path, err)
	}
	var asked error
	err = raw.Control(func(fd uintptr) {
		var cred *unix.Ucred
		if cred, asked = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED); asked == nil {
			pid = int(cred.Pid)
		}
	})
	if err == nil {
		err = asked
	}
	if err == nil && pid <= 0 { // a process of another PID namespace
		err = fmt.Errorf("the kernel returns pid %d", pid)
	}
	if err != nil {
		return 0, fmt.Errorf("find the listening process: %s: %w", path, err)
	}
	return pid, nil
}
