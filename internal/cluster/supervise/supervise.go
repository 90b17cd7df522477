// Package supervise runs child processes and keeps them running. They survive the end of their supervisor, and a later
// supervisor adopts them.
//
// A Spec says how to run a child. Apply makes the child run that way: it starts the child, adopts the one that an
// earlier supervisor left running, or replaces it when its command line, program, environment or input files have
// changed. A child that dies is restarted, at once the first time and then after growing pauses.
//
// # Identity
//
// Children outlive a supervisor that is killed. So a later supervisor must recognize them, and must never mistake
// another process for a child. A pid alone is not an identity, since pids are reused. A child is identified by (boot,
// pid, start time since boot), which is written to a record file. The pidfd is opened first and the start time compared
// afterwards, so that the pidfd cannot refer to another process. Signals and waits use the pidfd only. (pidfd_open(2)
// and pidfd_send_signal(2), Linux 5.3.)
//
// The supervisor can be killed between the start of a process and its record. Therefore each child also carries a mark
// in its environment, and a new supervisor looks for marked processes that its record lacks. Any process can carry a
// mark. So a marked process must also have the user, the mount namespace and the executable of a child, according to
// the kernel.
//
// # What it does not do
//
// It knows no order among children: the caller applies and stops them one by one. It does not read their output: they
// write to their own log files, so that logging works without a supervisor. It does not prevent two supervisors with
// one record: the caller holds a lock.
package supervise

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Spec says how to run a child.
type Spec struct {
	Name string
	Argv []string // Argv[0] is the absolute path of the program
	Env  []string // the whole environment, "KEY=value"
	Dir  string   // working directory
	// files that the child reads only at its start: when their content has changed, Apply replaces the child
	Inputs []string
	Log    string        // file that standard output and error are appended to
	Grace  time.Duration // time between End and SIGKILL
	End    unix.Signal   // the signal that makes it end; zero: SIGTERM

	// Namespace is the name of the network namespace in which the child runs; empty: the supervisor's.
	Namespace string
}

func (s Spec) end() unix.Signal {
	if s.End == 0 {
		return unix.SIGTERM
	}
	return s.End
}

// Options configure a Supervisor.
type Options struct {
	Record string // path of the record file; its directory exists
	// distinguishes this supervisor's children from those of others on the machine; e.g. the state directory
	Owner   string
	Backoff Backoff      // the zero value is DefaultBackoff
	Logger  *slog.Logger // starts, exits and restarts; nil: none
	// Notice is called after every change of a child's state, from any goroutine, without locks held. It may be nil.
	Notice func(Status)
}

// Supervisor keeps the children of one record. It is safe for concurrent use.
type Supervisor struct {
	options Options
	bootID  string // of this boot of the machine

	mu        sync.Mutex          // guards what follows, and the record file
	children  map[string]*child   // applied ones, by name
	survivors map[string]*process // found by Open and not applied yet
	rows      map[string]row      // the record's row of every known child
}

// Open reads the record and finds the children that still run. It starts and stops nothing.
func Open(o Options) (*Supervisor, error) {
	if o.Backoff == (Backoff{}) {
		o.Backoff = DefaultBackoff
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	bootID, err := readBootID()
	if err != nil {
		return nil, fmt.Errorf("open supervisor: %w", err)
	}
	s := &Supervisor{options: o, bootID: bootID, children: map[string]*child{}, survivors: map[string]*process{},
		rows: map[string]row{}}
	r, err := readRecord(o.Record)
	if err != nil {
		// The marks suffice to find children, so a damaged record loses only restart counts.
		o.Logger.Warn("read record of children", "path", o.Record, "error", err)
	}
	if r.BootID == bootID {
		for _, row := range r.Children {
			s.rows[row.Name] = row
			if p, err := adopt(row.PID, row.StartTicks); err == nil {
				s.survivors[row.Name] = p
			}
		}
	}
	s.findMarked()
	s.mu.Lock()
	s.save()
	s.mu.Unlock()
	return s, nil
}

// findMarked adopts marked processes that the record lacks: their supervisor was killed before it recorded them.
func (s *Supervisor) findMarked() {
	for _, m := range scanMarks(s.options.Owner) {
		if have := s.survivors[m.name]; have != nil {
			continue
		}
		p, err := adopt(m.pid, m.startTicks)
		if err != nil {
			continue // it has ended meanwhile
		}
		s.options.Logger.Info("found a child that was never recorded", "child", m.name, "pid", m.pid)
		s.survivors[m.name] = p
		s.rows[m.name] = row{Name: m.name, PID: m.pid, StartTicks: m.startTicks, Digest: m.digest,
			Restarts: s.rows[m.name].Restarts}
	}
}

// Survivors returns the sorted names of the children that were found running and have not been applied.
func (s *Supervisor) Survivors() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Sorted(maps.Keys(s.survivors))
}

// Pids returns the pids of all children that run now, applied or found. Callers use it to recognize ports that children
// use.
func (s *Supervisor) Pids() []int {
	s.mu.Lock()
	defer s.mu.Unlock()
	var pids []int
	for _, p := range s.survivors {
		pids = append(pids, p.pid)
	}
	for _, c := range s.children {
		if c.proc != nil {
			pids = append(pids, c.proc.pid)
		}
	}
	return pids
}

// Apply makes a child run as spec says and keeps it running until Stop or Leave. It returns when the process has been
// started or adopted, and reports whether it was adopted.
func (s *Supervisor) Apply(ctx context.Context, spec Spec) (adopted bool, err error) {
	digest, err := spec.digest()
	if err != nil {
		return false, fmt.Errorf("start %s: %w", spec.Name, err)
	}
	s.mu.Lock()
	running := s.children[spec.Name]
	survivor := s.survivors[spec.Name]
	known := s.rows[spec.Name]
	delete(s.survivors, spec.Name)
	s.mu.Unlock()

	switch {
	case running != nil && running.digest == digest:
		return true, nil
	case running != nil:
		s.options.Logger.Info("replace child: its program, arguments or inputs changed", "child", spec.Name)
		running.stop(ctx, spec.Grace)
	case survivor != nil && known.Digest != digest:
		s.options.Logger.Info("replace survivor: its program, arguments or inputs changed", "child", spec.Name, "pid",
			survivor.pid)
		survivor.end(ctx, spec.end(), spec.Grace)
		survivor = nil
	}

	c := newChild(s, spec, digest, known.Restarts)
	if survivor != nil {
		s.options.Logger.Info("adopt child", "child", spec.Name, "pid", survivor.pid)
		c.proc = survivor
	} else if c.proc, err = s.start(spec, digest); err != nil {
		return false, fmt.Errorf("start %s: %w", spec.Name, err)
	}
	s.mu.Lock()
	s.children[spec.Name] = c
	s.mu.Unlock()
	s.note(c)
	go c.keep()
	return survivor != nil, nil
}

// Stop ends a child, applied or found: SIGTERM, then SIGKILL once grace is over or ctx ends. It returns when the
// process has ended. It is no error if there is no such child.
func (s *Supervisor) Stop(ctx context.Context, name string, grace time.Duration) {
	s.mu.Lock()
	c, survivor := s.children[name], s.survivors[name]
	s.mu.Unlock()
	if c != nil {
		c.stop(ctx, grace)
	}
	if survivor != nil {
		survivor.end(ctx, unix.SIGTERM, grace)
	}
	s.mu.Lock()
	delete(s.children, name)
	delete(s.survivors, name)
	delete(s.rows, name)
	s.save()
	s.mu.Unlock()
	if c != nil || survivor != nil {
		s.options.Logger.Info("child stopped", "child", name)
	}
}

// Leave stops watching all children and leaves their processes running, for the next supervisor to adopt.
func (s *Supervisor) Leave() {
	s.mu.Lock()
	children := slices.Collect(maps.Values(s.children))
	s.children = map[string]*child{}
	s.mu.Unlock()
	for _, c := range children {
		c.leave()
	}
}

// Release stops watching one child and leaves its process running. From then on it counts as a survivor.
func (s *Supervisor) Release(name string) {
	s.mu.Lock()
	c := s.children[name]
	delete(s.children, name)
	s.mu.Unlock()
	if c == nil {
		return
	}
	c.leave()
	if p := c.process(); p != nil {
		s.mu.Lock()
		s.survivors[name] = p
		s.mu.Unlock()
	}
}

// Status returns the state of every child that was applied, by name.
func (s *Supervisor) Status() []Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.statusLocked()
}

func (s *Supervisor) statusLocked() []Status {
	out := make([]Status, 0, len(s.rows))
	for _, name := range slices.Sorted(maps.Keys(s.rows)) {
		out = append(out, s.rows[name].status(s.bootID, s.bootID))
	}
	return out
}

// start runs spec and records the process.
func (s *Supervisor) start(spec Spec, digest string) (*process, error) {
	p, err := start(spec, mark{name: spec.Name, digest: digest}, s.options.Owner)
	if err != nil {
		return nil, err
	}
	s.options.Logger.Info("start child", "child", spec.Name, "pid", p.pid)
	return p, nil
}

// note records c's state and calls Options.Notice.
func (s *Supervisor) note(c *child) {
	s.mu.Lock()
	if s.children[c.spec.Name] != c {
		s.mu.Unlock()
		return // it was replaced or stopped meanwhile
	}
	s.rows[c.spec.Name] = c.row()
	s.save()
	status := s.rows[c.spec.Name].status(s.bootID, s.bootID)
	s.mu.Unlock()
	if s.options.Notice != nil {
		s.options.Notice(status)
	}
}

// save writes the record. A failure is only logged: children can still be found by their marks.
func (s *Supervisor) save() {
	r := record{BootID: s.bootID}
	for _, name := range slices.Sorted(maps.Keys(s.rows)) {
		r.Children = append(r.Children, s.rows[name])
	}
	if err := r.write(s.options.Record); err != nil {
		s.options.Logger.Warn("write record of children", "path", s.options.Record, "error", err)
	}
}

// errNotSupported is the error of kernels without pidfd_open.
var errNotSupported = errors.New("this kernel has no pidfd_open(2); Linux 5.3 or later is needed")

func explain(err error) error {
	if errors.Is(err, unix.ENOSYS) {
		return errNotSupported
	}
	return err
}
