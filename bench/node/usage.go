package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/plimsoll-dev/plimsoll/bench/record"
	"github.com/plimsoll-dev/plimsoll/bench/stats"
)

// Roles are the processes whose CPU time is counted: children of `up` by their names there, or groups of processes.
const (
	roleAgent      = "agent"
	roleContainerd = "containerd"
	roleShims      = "shims"   // containerd's shims, with the runc processes for which they waited
	roleControl    = "control" // the control plane, our scheduler and our lifecycle controller
	roleHarness    = "harness" // this program
	roleOthers     = "others"  // the rest: the kernel's own threads, and other users of this machine
	roleMachine    = "machine" // everything that ran on this machine
)

var roles = []string{roleAgent, roleContainerd, roleShims, roleControl, roleHarness, roleOthers, roleMachine}

// usage is CPU seconds by role since each process began.
type usage map[string]float64

// cpu reads what every role has used. Processes that ended meanwhile count for the process that waited for them.
func (r *rig) cpu() (usage, error) {
	u := usage{}
	for name, pid := range r.pids {
		role := name
		if name != roleAgent && name != roleContainerd {
			role = roleControl
		}
		s, err := record.CPUSeconds(pid)
		if err != nil {
			return nil, fmt.Errorf("measure %s: %w", name, err)
		}
		u[role] += s
	}
	shims, err := r.shims()
	if err != nil {
		return nil, err
	}
	for _, pid := range shims {
		s, err := record.CPUSeconds(pid)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("measure shims: %w", err)
		}
		u[roleShims] += s
	}
	if u[roleHarness], err = record.CPUSeconds(os.Getpid()); err != nil {
		return nil, err
	}
	u[roleMachine], err = record.MachineSeconds()
	return u, err
}

func (u usage) since(before usage) usage {
	d := usage{}
	for _, role := range roles {
		d[role] = u[role] - before[role]
	}
	d[roleOthers] = max(0, d[roleMachine]-d[roleAgent]-d[roleContainerd]-d[roleShims]-d[roleControl]-d[roleHarness])
	return d
}

// shims finds the shims of our containerd by its socket in their arguments.
func (r *rig) shims() (pids []int, err error) {
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		return nil, err
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			continue // the process has ended
		}
		program, args, _ := bytes.Cut(text, []byte{0})
		if strings.HasPrefix(filepath.Base(string(program)), "containerd-shim") && bytes.Contains(args,
			[]byte(r.plane.State()+"/")) {
			pid, err := strconv.Atoi(filepath.Base(filepath.Dir(file)))
			if err != nil {
				return nil, err
			}
			pids = append(pids, pid)
		}
	}
	return pids, nil
}

// samplePeriod is how often resident memory is read in a window.
const samplePeriod = time.Second

// window measures usage over d while nothing is requested of the node, under names that end in suffix.
func (r *rig) window(ctx context.Context, m *record.Measurement, suffix string, d time.Duration) error {
	if err := record.Pause(ctx, r.settle); err != nil {
		return err
	}
	agent := r.pids[roleAgent]
	before, err := r.cpu()
	if err != nil {
		return err
	}
	began := time.Now()
	var resident []float64
	var scraped time.Time
	for time.Since(began) < d {
		if r.scrape > 0 && time.Since(scraped) >= r.scrape {
			scraped = time.Now()
			if err := r.scrapeAgent(ctx); err != nil {
				return errors.Join(err, r.checkSameAgent(ctx))
			}
		}
		if err := record.Pause(ctx, samplePeriod); err != nil {
			return err
		}
		mib, err := record.StatusMiB(agent, "VmRSS")
		if err != nil {
			return errors.Join(err, r.checkSameAgent(ctx))
		}
		resident = append(resident, mib)
	}
	wall := time.Since(began).Seconds()
	after, err := r.cpu()
	if err != nil {
		return errors.Join(err, r.checkSameAgent(ctx))
	}
	for role, seconds := range after.since(before) {
		m.Put("cores_"+role+"_"+suffix, seconds/wall, 1)
	}
	m.Put("cores_runtime_"+suffix, m.Values["cores_containerd_"+suffix]+m.Values["cores_shims_"+suffix], 1)
	m.Put("rss_"+suffix, stats.Median(resident), len(resident))
	for key, name := range map[string]string{"RssAnon": "rssanon_", "RssFile": "rssfile_"} {
		mib, err := record.StatusMiB(agent, key)
		if err != nil {
			return err
		}
		m.Put(name+suffix, mib, 1)
	}
	mib, err := record.StatusMiB(r.pids[roleContainerd], "VmRSS")
	if err != nil {
		return err
	}
	m.Put("rsscontainerd_"+suffix, mib, 1)
	record.Progress("%s: %s: %.1f MiB, %.4f cores (containerd and shims %.4f)", r.side.name, suffix,
		stats.Median(resident),
		m.Values["cores_agent_"+suffix], m.Values["cores_runtime_"+suffix])
	return r.checkSameAgent(ctx)
}
