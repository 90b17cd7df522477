package kube

import (
	"bufio"
	"context"
	"net"
	"sync"
	"time"
)

// How long a gathering connection lets bytes pile up in the kernel before it looks again. A stream of hundreds of small records a
// second costs a wake-up of several threads each; gathered, it costs one per period at most. What comes after a pause of a period is read
// at once, what comes soon after that is delayed by as much as the period: raise it to spend less, lower it to hear sooner.
const (
	// GatherBeats is for who hears thousands of nodes beat. Measured with 5,000 (bench/lifecycle): 100 ms cost 0.013 of a core and noticed
	// silence 0.30 s after the grace at the 99th percentile, 50 ms 0.014 and 0.10 s; the bars are 0.018 and 0.25 s.
	GatherBeats = 50 * time.Millisecond
	// GatherBursts is for who is waited for, and hears a thousand changes a second at times. Chosen: below what a bind takes.
	GatherBursts = 5 * time.Millisecond
)

// gatherBuffer holds what piled up, so that the layers above, which read a few hundred bytes at a time, do not wait for
// each of them. At 500 renewals of 600 bytes a second, 50 ms are 15 KiB; at 1,000 pods of 2 KiB, 5 ms are 10 KiB. A stream that fills it
// is no trickle but a list: it is read as it comes, until it brings less in a period.
const gatherBuffer = 64 << 10

// gatherEpoch is the origin of the moments at which gathering connections look: all at the same, so that what they bring
// wakes the process once and not once each.
var gatherEpoch = time.Now()

// A gatheringConn reads at most once per period from the connection below it.
type gatheringConn struct {
	net.Conn
	mu       sync.Mutex // Read may be called from several goroutines; net/http does not
	buffered *bufio.Reader
}

// paced is the reader below the buffer.
type paced struct {
	conn   net.Conn
	period time.Duration
	next   time.Time // when it looks next
	got    int       // bytes read since it last had waited
	bulk   bool      // it does not wait
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

// gatherAlive is how a gathering connection notices a peer that vanished without a reset: by TCP keep-alive, within 45 s as
// by HTTP/2's pings elsewhere.
var gatherAlive = net.KeepAliveConfig{Enable: true, Idle: 15 * time.Second, Interval: 10 * time.Second, Count: 3}

// gathering makes dial's connections gather.
func gathering(period time.Duration, dial func(context.Context, string, string) (net.Conn, error)) func(context.Context, string, string) (net.Conn, error) {
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
		return &gatheringConn{Conn: conn, buffered: bufio.NewReaderSize(&paced{conn: conn, period: period}, gatherBuffer)}, nil
	}
}

// Gathering returns a client like c for watches that bring much: it reads from its connections at most once per period. It
// speaks HTTP/1.1, where a watch has a connection of its own, which its reader reads: under HTTP/2 every record passes from
// goroutine to goroutine, on both sides, and each passing may wake a thread.
func (c *Client) Gathering(period time.Duration) (*Client, error) {
	config := c.RESTConfig()
	config.Dial = gathering(period, config.Dial)
	config.NextProtos = []string{"http/1.1"}
	return NewClientForConfig(config)
}
