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

// removeLinks deletes a bridge and the links that are still its ports. It is no error if the bridge does not exist.
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

func deleteLink(conn *netlink.Conn, name string) error {
	link, err := net.InterfaceByName(name)
	if err != nil {
		return nil // it was deleted with the namespace of its other end
	}
	_, err = conn.Execute(netlink.Message{
		Header: netlink.Header{Type: unix.RTM_DELLINK, Flags: netlink.Request | netlink.Acknowledge},
		Data:   linkHeader(link.Index),
	})
	if err != nil && !errors.Is(err, unix.ENODEV) {
		return fmt.Errorf("delete network link %s: %w", name, err)
	}
	return nil
}

// createBridge creates the bridge unless it exists. The CNI plugin would create it with the first pod; here a kernel
// without bridges is detected before the node is Ready.
func createBridge(name string) error {
	conn, err := netlink.Dial(unix.NETLINK_ROUTE, nil)
	if err != nil {
		return fmt.Errorf("open route netlink: %w", err)
	}
	defer conn.Close()
	kind := netlink.NewAttributeEncoder()
	kind.String(unix.IFLA_IFNAME, name)
	kind.Nested(unix.IFLA_LINKINFO, func(info *netlink.AttributeEncoder) error {
		info.String(unix.IFLA_INFO_KIND, "bridge")
		return nil
	})
	attributes, err := kind.Encode()
	if err != nil {
		return fmt.Errorf("create bridge %s: %w", name, err)
	}
	_, err = conn.Execute(netlink.Message{
		Header: netlink.Header{Type: unix.RTM_NEWLINK, Flags: netlink.Request | netlink.Acknowledge | netlink.Create | netlink.Excl},
		Data:   append(linkHeader(0), attributes...),
	})
	switch {
	case errors.Is(err, unix.EEXIST):
		if _, err := os.Stat(filepath.Join("/sys/class/net", name, "bridge")); err != nil {
			return fmt.Errorf("create bridge %s: a link of that name exists and is not a bridge: remove it or choose another name", name)
		}
		return nil
	case errors.Is(err, unix.EOPNOTSUPP):
		return fmt.Errorf("create bridge %s: %w: this kernel has no bridges (CONFIG_BRIDGE), which the pod network needs", name, err)
	case err != nil:
		return fmt.Errorf("create bridge %s: %w", name, err)
	}
	return nil
}

// linkHeader is struct ifinfomsg of rtnetlink(7): family, padding, type, index, flags, change.
func linkHeader(index int) []byte {
	body := make([]byte, unix.SizeofIfInfomsg)
	binary.NativeEndian.PutUint32(body[4:], uint32(index))
	return body
}
