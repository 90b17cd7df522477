// Package recommend measures what this machine's own programs use and recommends what to reserve for them. It is the
// shell of core/recommend.
//
// # Model
//
// Reservations takes a sample each Every until For has passed or ctx ends, and returns a result from the samples so
// far. A sample reads /proc (the processes, their usage, how busy the machine was) and the cgroups of all pods. It
// finds these cgroups by the processes in them: every kubepods or kubepods.slice, of one or several nodes on this
// machine. It needs no cgroup of its own and no API. Without root privileges, the memory of other users' processes
// includes shared pages in full.
//
// # Limits of the package
//
// It changes nothing on the machine: a person decides what to do with the recommendation. The arithmetic is in
// core/recommend.
package recommend

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"time"

	"github.com/plimsoll-dev/plimsoll/internal/core/machine"
	corerecommend "github.com/plimsoll-dev/plimsoll/internal/core/recommend"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
	"github.com/plimsoll-dev/plimsoll/internal/host/cgroup"
	"github.com/plimsoll-dev/plimsoll/internal/host/procfs"
)

// Options are the options of a measurement.
type Options struct {
	For, Every time.Duration   // how long to measure, and the time between samples
	MaxPods    int64           // how many pods the node may have
	Machine    machine.Machine // the machine that is measured: this one
	Proc       procfs.FS
	Cgroups    string // where cgroups are mounted

	Seen func(corerecommend.Sample) // called after each sample; nil: nothing is called
}

// Reservations measures and recommends. If ctx ends early, that is no error: the result is from the samples until then.
func Reservations(ctx context.Context, o Options) (*Result, error) {
	tree, err := cgroup.Open(o.Cgroups)
	if err != nil {
		return nil, fmt.Errorf("watch reservations: %w", err)
	}
	s := sampler{proc: o.Proc, tree: tree, known: map[corerecommend.ProcessID]whose{}, groups: map[string]bool{}}
	var w corerecommend.Watch
	begun := time.Now()
	next := time.NewTicker(o.Every)
	defer next.Stop()
	for {
		sample, err := s.sample()
		if err != nil {
			return nil, fmt.Errorf("watch reservations: %w", err)
		}
		sample.At, sample.CPUs = unit.Instant(time.Since(begun)+1), int64(o.Machine.CPUs.Len())
		w.Observe(sample)
		if o.Seen != nil {
			o.Seen(sample)
		}
		if time.Since(begun) >= o.For {
			return o.result(w.Report(), s.coarse), nil
		}
		select {
		case <-ctx.Done():
			return o.result(w.Report(), s.coarse), nil
		case <-next.C:
		}
	}
}

// sampler takes samples. Between samples it keeps the classification of processes, and the cgroups of pods.
type sampler struct {
	proc   procfs.FS
	tree   *cgroup.Tree
	known  map[corerecommend.ProcessID]whose
	groups map[string]bool // cgroups of all pods that have been seen
	coarse bool            // the memory of some process could not be read exactly
}

// whose classifies a process. That does not change while the process lives, except shortly after its start.
type whose struct {
	part   corerecommend.Part
	perPod bool   // there is one such process for each pod, like a shim
	pods   string // the cgroup of all pods that the process is in; empty: it is not in a pod
	pod    string // the cgroup of its pod
	seen   int    // samples since it was first seen
}

const systemSlice = "/system.slice"

func (s *sampler) sample() (corerecommend.Sample, error) {
	var out corerecommend.Sample
	var err error
	if out.Busy, err = s.proc.BusyTime(); err != nil {
		return out, err
	}
	memory, err := s.proc.Memory()
	if err != nil {
		return out, err
	}
	out.InUse = memory.Unreclaimable()
	if err := s.processes(&out); err != nil {
		return out, err
	}
	out.PodGroups = map[string]corerecommend.Group{}
	for name := range s.groups {
		group, ok, err := s.group(name)
		if err != nil {
			return out, err
		}
		if ok {
			out.PodGroups[name] = group
		}
	}
	if slice, ok, err := s.group(systemSlice); err != nil {
		return out, err
	} else if ok {
		out.Slice = &slice
	}
	return out, nil
}

// group reads the usage of a cgroup, and returns whether it exists.
func (s *sampler) group(name string) (corerecommend.Group, bool, error) {
	usage, err := s.tree.Usage(name)
	if errors.Is(err, fs.ErrNotExist) {
		return corerecommend.Group{}, false, nil
	} else if err != nil {
		return corerecommend.Group{}, false, err
	}
	memory, err := s.tree.Unreclaimable(name)
	if errors.Is(err, fs.ErrNotExist) {
		return corerecommend.Group{}, false, nil
	}
	return corerecommend.Group{CPU: usage.CPU.OrZero(), Memory: memory.OrZero()}, true, err
}

// processes adds the processes outside of pods, and counts the pods.
func (s *sampler) processes(out *corerecommend.Sample) error {
	pids, err := s.proc.ProcessIDs()
	if err != nil {
		return err
	}
	now := make(map[corerecommend.ProcessID]whose, len(pids))
	pods := map[string]bool{}
	for _, pid := range pids {
		err := s.process(pid, now, pods, out)
		if err != nil && !procfs.IsGone(err) {
			return err
		}
	}
	s.known, out.Pods = now, len(pods)
	return nil
}

// classifiedAfter is the number of samples after which the classification of a process is final (chosen). A process
// that was just forked still has its parent's name and cgroup.
const classifiedAfter = 3

func (s *sampler) process(pid int, now map[corerecommend.ProcessID]whose, pods map[string]bool,
	out *corerecommend.Sample) error {
	p, err := s.proc.Process(pid)
	if err != nil {
		return err
	}
	id := corerecommend.ProcessID{PID: pid, Start: p.Start}
	w, known := s.known[id]
	if !known || w.seen < classifiedAfter {
		seen := w.seen
		if w, err = s.look(pid, p.Name); err != nil {
			return err
		}
		w.seen = seen + 1
	}
	now[id] = w
	if w.pods != "" {
		s.groups[w.pods] = true
		if w.pod != "" {
			pods[w.pod] = true
		}
		return nil
	}
	if pid == os.Getpid() { // this process exists only for the measurement
		foot, err := s.proc.Footprint(pid)
		out.Busy, out.InUse = out.Busy-p.CPU, max(0, out.InUse-foot.Private)
		return err
	}
	foot, err := s.footprint(pid, w.part)
	if err != nil {
		return err
	}
	out.Processes = append(out.Processes, corerecommend.Process{
		ID: id, Name: p.Name, Part: w.part, PerPod: w.perPod, CPU: p.CPU, Resident: foot.Resident, Private: foot.Private,
	})
	return nil
}

func (s *sampler) look(pid int, name string) (whose, error) {
	groups, err := s.proc.Groups(pid)
	if err != nil {
		return whose{}, err
	}
	for _, group := range groups {
		if !strings.Contains(group, "kubepods") {
			continue
		}
		if pods, pod := corerecommend.PodsGroup(group); pods != "" {
			return whose{pods: pods, pod: pod}, nil
		}
	}
	args, err := s.proc.Arguments(pid)
	if err != nil {
		return whose{}, err
	}
	part, perPod := corerecommend.Classify(name, args)
	return whose{part: part, perPod: perPod}, nil
}

// footprint reads the exact share of memory for the few processes of runtime and agent. For the system's many
// processes, of which only the largest are shown, the inexact value is enough.
func (s *sampler) footprint(pid int, part corerecommend.Part) (procfs.Footprint, error) {
	if part != corerecommend.System {
		foot, err := s.proc.Footprint(pid)
		if err == nil || procfs.IsGone(err) {
			return foot, err
		}
		s.coarse = true
	}
	resident, err := s.proc.Resident(pid)
	return procfs.Footprint{Resident: resident, Private: resident}, err
}
