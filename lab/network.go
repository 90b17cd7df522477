package lab

import (
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
)

// A Network connects guests, which reach each other at their IP over second cards. It is a switch in this process:
// every frame of a guest goes to the guest that has its destination, or to all others. It is as empty as a cable:
// nothing in it has an address, and the host is not on it. What a guest sends is lost while its receiver is switched
// off, or reads so slowly that frameQueue frames wait for it.
//
// The zero value is a network without guests. A guest leaves it when it is closed.
type Network struct {
	mu    sync.Mutex
	ports []*port
	at    map[hardwareAddress]*port // learnt from what they send
}

// hardwareAddress is that of an Ethernet card.
type hardwareAddress [6]byte

// Ethernet frames begin with the addresses of receiver and sender (IEEE 802.3).
const (
	frameHeader = 2 * len(hardwareAddress{})
	frameMax    = 64 << 10 // more than any card sends: it has 1,514 bytes without segmentation, which QEMU has not here
)

// frameQueue is how many frames may wait for a guest (chosen: more than one TCP connection has under way, which is some
// 200 on an idle guest; 400 KiB).
const frameQueue = 256

// A port is the place of one guest in a Network.
type port struct {
	net     *Network
	here    net.Conn
	there   *os.File // of QEMU; a datagram for each frame
	waiting chan []byte
	closed  chan struct{}
	on      atomic.Bool // the guest runs
}

// plug adds a guest.
func (n *Network) plug() (*port, error) {
	here, there, err := pair("network", syscall.SOCK_DGRAM)
	if err != nil {
		return nil, err
	}
	p := &port{net: n, here: here, there: there, waiting: make(chan []byte, frameQueue), closed: make(chan struct{})}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.ports = append(n.ports, p)
	go p.receive()
	go p.send()
	return p, nil
}

// receive passes on what the guest sends, until the port is closed.
func (p *port) receive() {
	frame := make([]byte, frameMax)
	for {
		size, err := p.here.Read(frame)
		if err != nil {
			return
		}
		p.net.pass(p, frame[:size])
	}
}

// send sends the guest what waits for it, until the port is closed.
func (p *port) send() {
	for {
		select {
		case frame := <-p.waiting:
			if _, err := p.here.Write(frame); err != nil {
				return
			}
		case <-p.closed:
			return
		}
	}
}

// pass brings a frame from a guest to its receivers.
func (n *Network) pass(from *port, frame []byte) {
	if len(frame) < frameHeader {
		return
	}
	to, sender := hardwareAddress(frame), hardwareAddress(frame[len(hardwareAddress{}):])
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.at == nil {
		n.at = map[hardwareAddress]*port{}
	}
	n.at[sender] = from
	receivers := n.ports
	if one := n.at[to]; one != nil {
		receivers = []*port{one}
	}
	for _, p := range receivers {
		if p != from && p.on.Load() {
			select {
			case p.waiting <- append([]byte(nil), frame...):
			default:
			}
		}
	}
}

// unplug removes the guest. The caller closes there.
func (p *port) unplug() error {
	p.net.mu.Lock()
	defer p.net.mu.Unlock()
	ports := p.net.ports[:0]
	for _, other := range p.net.ports {
		if other != p {
			ports = append(ports, other)
		}
	}
	p.net.ports = ports
	for address, other := range p.net.at {
		if other == p {
			delete(p.net.at, address)
		}
	}
	close(p.closed)
	return p.here.Close()
}
