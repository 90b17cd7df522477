package main

import (
	"fmt"
	"net/netip"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/plimsoll-dev/plimsoll/lab/wire"
)

// The network cards of a guest: the kernel's arguments disable predictable names.
const (
	card     = "eth0"
	peerCard = "eth1"
)

// configureNetwork sets the addresses of the loopback interface and the cards, and the default route, with the old
// ioctls of netdevice(7) and route(7), which need no library.
func configureNetwork(config wire.Config) error {
	socket, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(socket)
	if err := up(socket, "lo"); err != nil {
		return err
	}
	gateway, err := netip.ParseAddr(config.Gateway)
	if err != nil {
		return err
	}
	if err := configureCard(socket, card, config.Address); err != nil {
		return err
	}
	if config.Peer != "" {
		if err := configureCard(socket, peerCard, config.Peer); err != nil {
			return err
		}
	}
	if err := addDefaultRoute(socket, gateway.As4()); err != nil {
		return fmt.Errorf("add default route by %s: %w", gateway, err)
	}
	return nil
}

// configureCard sets the address of a card, which has the form of CIDR, and switches the card on.
func configureCard(socket int, name, cidr string) error {
	address, err := netip.ParsePrefix(cidr)
	if err != nil {
		return err
	}
	mask := ^uint32(0) << (32 - address.Bits())
	for _, set := range []struct {
		request uint
		value   [4]byte
	}{
		{unix.SIOCSIFADDR, address.Addr().As4()},
		{unix.SIOCSIFNETMASK, [4]byte{byte(mask >> 24), byte(mask >> 16), byte(mask >> 8), byte(mask)}},
	} {
		if err := setAddress(socket, name, set.request, set.value); err != nil {
			return fmt.Errorf("set address %s of %s: %w", address, name, err)
		}
	}
	return up(socket, name)
}

func up(socket int, name string) error {
	request, err := unix.NewIfreq(name)
	if err != nil {
		return err
	}
	if err := unix.IoctlIfreq(socket, unix.SIOCGIFFLAGS, request); err != nil {
		return fmt.Errorf("find interface %s: %w", name, err)
	}
	request.SetUint16(request.Uint16() | unix.IFF_UP)
	if err := unix.IoctlIfreq(socket, unix.SIOCSIFFLAGS, request); err != nil {
		return fmt.Errorf("switch interface %s on: %w", name, err)
	}
	return nil
}

func setAddress(socket int, name string, which uint, address [4]byte) error {
	request, err := unix.NewIfreq(name)
	if err != nil {
		return err
	}
	if err := request.SetInet4Addr(address[:]); err != nil {
		return err
	}
	return unix.IoctlIfreq(socket, which, request)
}

// rtentry is struct rtentry of linux/route.h on 64-bit machines.
type rtentry struct {
	_                     uint64
	dst, gateway, netmask unix.RawSockaddrInet4
	flags                 uint16
	_                     int16
	_                     uint64
	_                     [2]uint64
	metric                int16
	dev                   *byte
	mtu, window           uint64
	irtt                  uint16
}

func addDefaultRoute(socket int, gateway [4]byte) error {
	zero := unix.RawSockaddrInet4{Family: unix.AF_INET}
	route := rtentry{dst: zero, netmask: zero, gateway: unix.RawSockaddrInet4{Family: unix.AF_INET, Addr: gateway},
		flags: unix.RTF_UP | unix.RTF_GATEWAY}
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(socket), unix.SIOCADDRT, uintptr(unsafe.Pointer(&route)))
	runtime.KeepAlive(&route)
	if errno != 0 {
		return errno
	}
	return nil
}
