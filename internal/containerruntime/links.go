package containerruntime

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// removeLinks deletes a bridge and the links that are still its ports. A bridge that is not there is deleted.
func removeLinks(bridge string) error {
	ports, err := os.ReadDir(filepath.Join("/sys/class/net", bridge, "brif"))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("list ports of bridge: %w", err)
	}
	conn, err := netlink.Dial(unix.NETLINK_ROUTE, nil)
	if err != nil {
		return fmt.Errorf("open route netlink: %w", err)
	}
	defer conn.Close()
	var problems []error
	for _, port := range ports {
		problems = append(problems, deleteLink(conn, port.Name()))
	}
	return errors.Join(append(problems, deleteLink(conn, bridge))...)
}

// deleteLink sends RTM_DELLINK (rtnetlink(7)) with struct ifinfomsg: family, padding, type, index, flags, change.
func deleteLink(conn *netlink.Conn, name string) error {
	link, err := net.InterfaceByName(name)
	if err != nil {
		return nil //nolint:nilerr // it went away by itself, with the namespace of its other end
	}
	body := make([]byte, unix.SizeofIfInfomsg)
	binary.NativeEndian.PutUint32(body[4:], uint32(link.Index))
	_, err = conn.Execute(netlink.Message{
		Header: netlink.Header{Type: unix.RTM_DELLINK, Flags: netlink.Request | netlink.Acknowledge},
		Data:   body,
	})
	if err != nil && !errors.Is(err, unix.ENODEV) {
		return fmt.Errorf("delete network link %s: %w", name, err)
	}
	return nil
}
