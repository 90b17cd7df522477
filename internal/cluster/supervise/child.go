package supervise

import (
	"context"
	"sync"
	"time"
)

// Backoff says how long to wait before a child that died is restarted.
type Backoff struct {
	First  time.Duration // pause before the second restart in a row; the first restart has none
	Max    time.Duration // the pause doubles up to this
	Steady time.Duration // after a child ran this long, counting starts again
}

// DefaultBackoff restarts a component that crashed once before its clients time out, and one that crashes again and
// again twice a minute (chosen, 2026-11). That is often enough to recover soon after the cause is gone, and rarely
// enough not to burden the machine.
var DefaultBackoff = Backoff{First: 200 * time.Millisecond, Max: 30 * time.Second, Steady: time.Minute}

// pause returns the time to wait before a restart; n is the number of deaths in a row, from 1.
func (b Backoff) pause(n int) time.Duration {
	if n <= 1 {
		return 0
	}
	d := b.First
	for i := 2; i < n && d < b.Max; i++ {
		d *= 2
	}
	return min(d, b.Max)
}

// child keeps one process running. Its goroutine, keep, is the only writer of the fields that mu guards, once Apply has
// started it.
type child struct {
	s      *Supervisor
	spec   Spec
	digest string // of spec

	quit chan struct{} // closed to end keep
	done chan struct{} // closed when keep has ended
	once sync.Once     // closes quit once

	mu       sync.Mutex // guards what follows
	proc     *process   // nil while waiting for a restart
	restarts int        // since the first start, also under earlier supervisors
	lastExit string     // how the previous process ended; empty: there was none
	resumeAt time.Time  // when the pause after the last death ends
}

func newChild(s *Supervisor, spec Spec, digest string, restarts int) *child {
	return &child{s: s, spec: spec, digest: digest, restarts: restarts, quit: make(chan struct{}),
		done: make(chan struct{})}
}

// keep restarts the process whenever it dies, until quit is closed.
func (c *child) keep() {
	defer close(c.done)
	deaths, began := 0, time.Now()
	for {
		p := c.process()
		if p != nil {
			select {
			case <-c.quit:
				return
			case <-p.done:
			}
			if ran := time.Since(began); ran >= c.s.options.Backoff.Steady {
				deaths = 0
			}
		}
		deaths++
		pause := c.s.options.Backoff.pause(deaths)
		if p != nil {
			c.died(p.exit(), pause)
		}
		select {
		case <-c.quit:
			return
		case <-time.After(pause):
		}
		began = time.Now()
		c.restart()
	}
}

func (c *child) process() *process {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.proc
}

func (c *child) died(exit string, pause time.Duration) {
	c.mu.Lock()
	c.proc = nil
	c.lastExit = exit
	c.resumeAt = time.Now().Add(pause)
	c.mu.Unlock()
	c.s.options.Logger.Warn("child ended", "child", c.spec.Name, "exit", exit, "restart_in", pause, "log", c.spec.Log)
	c.s.note(c)
}

func (c *child) restart() {
	p, err := c.s.start(c.spec, c.digest)
	c.mu.Lock()
	c.restarts++
	if err != nil {
		c.lastExit = err.Error()
	}
	c.proc = p
	c.mu.Unlock()
	if err != nil {
		c.s.options.Logger.Warn("restart child", "child", c.spec.Name, "error", err)
	}
	c.s.note(c)
}

// leave ends keep and leaves the process running.
func (c *child) leave() {
	c.once.Do(func() { close(c.quit) })
	<-c.done
}

// stop ends keep, then the process.
func (c *child) stop(ctx context.Context, grace time.Duration) {
	c.leave()
	if p := c.process(); p != nil {
		p.end(ctx, c.spec.end(), grace)
	}
}

func (c *child) row() row {
	c.mu.Lock()
	defer c.mu.Unlock()
	r := row{Name: c.spec.Name, Digest: c.digest, Argv: c.spec.Argv, Log: c.spec.Log, Restarts: c.restarts,
		LastExit: c.lastExit}
	if c.proc != nil {
		r.PID, r.StartTicks = c.proc.pid, c.proc.startTicks
	}
	return r
}
