package kube

import (
	"bufio"
	"context"
	"net"
	"sync"
	"time"
)

// gatherFor is how long a gathering connection lets bytes pile up in the kernel before it looks again. A stream of
// hundreds of small records a second costs a wake-up of several goroutines each; gathered, it costs forty a second at
// most. It delays what is read by as much: raise it to spend less, lower it to hear sooner. Chosen: 25 ms, a tenth of the
// 250 ms within which silence is to be noticed.
const gatherFor = 25 * time.Millisecond

// gatherBuffer holds what piled up, so that the layers above, which read a few hundred bytes at a time, do not wait for
// each of them. At 500 renewals of 600 bytes a second, 25 ms are 8 KiB; 64 KiB leaves room for bursts.
const gatherBuffer = 64 << 10

// A gatheringConn reads at most once per gatherFor from the connection below it.
type gatheringConn struct {
	net.Conn
	mu       sync.Mutex // Read may be called from several goroutines; net/http does not
	buffered *bufio.Reader
}

// paced is the reader below the buffer.
type paced struct {
	conn net.Conn
	last time.Time
}

func (p *paced) Read(b []byte) (int, error) {
	if early := gatherFor - time.Since(p.last); early > 0 {
		time.Sleep(early)
	}
	n, err := p.conn.Read(b)
	p.last = time.Now()
	return n, err
}

func (g *gatheringConn) Read(b []byte) (int, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.buffered.Read(b)
}

// gathering makes dial's connections gather.
func gathering(dial func(context.Context, string, string) (net.Conn, error)) func(context.Context, string, string) (net.Conn, error) {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := dial(ctx, network, address)
		if err != nil {
			return nil, err
		}
		return &gatheringConn{Conn: conn, buffered: bufio.NewReaderSize(&paced{conn: conn}, gatherBuffer)}, nil
	}
}
