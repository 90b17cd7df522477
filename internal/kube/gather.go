package kube

import (
	"bufio"
	"context"
	"net"
	"sync"
	"time"
)

// The period at which a gathering connection reads: in between, bytes collect in the kernel's buffer. A stream of
// hundreds of small records per second wakes several threads for each record; gathered, it wakes them once per period
// at most. What comes after a pause of at least one period is read at once. What comes sooner is delayed by up to one
// period. Raising a period costs less CPU, lowering it delivers sooner.
const (
	// GatherRenewals is for a watch of the leases of thousands of nodes. Measured with 5,000 nodes (bench/lifecycle):
	// with 100 ms it cost 0.013 of a core, and a silent node was noticed 0.30 s after the node-monitor grace period at
	// the 99th percentile; with 50 ms 0.014 and 0.10 s. The bars are 0.018 and 0.25 s.
	GatherRenewals = 50 * time.Millisecond
	// GatherBursts is for a watch whose results somebody waits for, with bursts of a thousand changes per second.
	// Chosen: less than a bind takes.
	GatherBursts = 5 * time.Millisecond
)

// gatherBuffer is how much is read at once, so that the layers above, which read a few hundred bytes at a time, find it
// in memory. At 500 renewals of 600 bytes per second, 50 ms are 15 KiB; at 1,000 pods of 2 KiB, 5 ms are 10 KiB. A
// stream that fills the buffer within one period carries a list: it is read without pauses until a period brings less.
const gatherBuffer = 64 << 10

// gatherEpoch is the origin of the moments at which gathering connections read. All read at the same moments, so that
// they wake the process once and not once each.
var gatherEpoch = time.Now()

// A gatheringConn reads from the connection below it at most once per period.
type gatheringConn struct {
	net.Conn
	mu       sync.Mutex // Read may be called from several goroutines, though net/http calls it from one
	buffered *bufio.Reader
}

// paced is the reader below the buffer. The mutex of its gatheringConn guards it.
type paced struct {
	conn   net.Conn
	period time.Duration
	next   time.Time // the next read is not before this
	got    int       // bytes read since the last period began
	bulk   bool      // the last period filled the buffer: read without pauses
}

func (p *paced) Read(b []byte) (int, error) {
	if early := time.Until(p.next); early > 0 && !p.bulk {
		time.Sleep(early)
	}
	n, err := p.conn.Read(b)
	p.got += n
	if now := time.Now(); !now.Before(p.next) {
		p.next = now.Add(p.period - now.Sub(gatherEpoch)%p.period)
		p.bulk, p.got = p.got >= gatherBuffer, 0
	}
	return n, err
}

func (g *gatheringConn) Read(b []byte) (int, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.buffered.Read(b)
}

// gatherAlive notices a peer that vanished without a reset, by TCP keep-alive within 45 s. Other connections use the
// pings of HTTP/2, which take as long.
var gatherAlive = net.KeepAliveConfig{Enable: true, Idle: 15 * time.Second, Interval: 10 * time.Second, Count: 3}

// gathering returns a dial function whose connections gather.
func gathering(period time.Duration, dial func(context.Context, string, string) (net.Conn, error)) func(context.Context,
	string, string) (net.Conn, error) {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := dial(ctx, network, address)
		if err != nil {
			return nil, err
		}
		if tcp, ok := conn.(*net.TCPConn); ok {
			if err := tcp.SetKeepAliveConfig(gatherAlive); err != nil {
				_ = conn.Close()
				return nil, err
			}
		}
		return &gatheringConn{Conn: conn, buffered: bufio.NewReaderSize(&paced{conn: conn, period: period},
			gatherBuffer)}, nil
	}
}

// Gathering returns a client like c for watches that receive much: it reads from its connections at most once per
// period. It uses HTTP/1.1, where each watch has its own connection and its consumer reads from that directly. Under
// HTTP/2 every record passes from goroutine to goroutine, in client and server, and each handover may wake a thread.
func (c *Client) Gathering(period time.Duration) (*Client, error) {
	config := c.RESTConfig()
	config.Dial = gathering(period, config.Dial)
	config.NextProtos = []string{"http/1.1"}
	return NewClientForConfig(config)
}
