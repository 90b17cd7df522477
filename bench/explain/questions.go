package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/plimsoll-dev/plimsoll/bench/record"
	"github.com/plimsoll-dev/plimsoll/bench/stats"
)

// barWall is from the project's issue on explanations ("Numbers"), in milliseconds.
const barWall = 100

// question is one command line.
type question struct {
	name, title string
	args        []string
	says        string // what the answer must contain
	waits       bool   // pods wait meanwhile
}

func (c config) questions() []question {
	waiting := fmt.Sprintf("%d pods wait", c.waiting)
	return []question{
		{"pod", "explain pod, of one that has a node", []string{"pod", namespace + "/" + podName(0)},
			"is on node " + nodeName(0), false},
		{"node", "explain node, nothing waits", []string{"node", nodeName(0)}, "No pod waits in the cluster.", false},
		{"pending", "explain pending, nothing waits", []string{"pending"}, "0 pods wait; ", false},
		{"pod_waits", "explain pod, of one that waits", []string{"pod", namespace + "/" + waitingName(0)},
			"Insufficient cpu", true},
		{"node_waits", "explain node, " + waiting, []string{"node", nodeName(0)},
			fmt.Sprintf("Of %d waiting pods", c.waiting), true},
		{"pending_waits", "explain pending, " + waiting, []string{"pending"}, "Insufficient cpu", true},
	}
}

func newReport(ctx context.Context, c config) *record.Report {
	var lines []record.Line
	for _, q := range c.questions() {
		lines = append(lines,
			record.Line{Name: "wall_" + q.name, Title: "from start to end, median", Unit: "ms",
				Bar: record.Bar{Max: barWall}, Group: q.title},
			record.Line{Name: "worst_" + q.name, Title: "the same, worst", Unit: "ms", Group: q.title},
			record.Line{Name: "cpu_" + q.name, Title: "CPU of the process, median", Unit: "ms", Group: q.title},
			record.Line{Name: "server_" + q.name, Title: "CPU of kube-apiserver", Unit: "ms", Group: q.title},
			record.Line{Name: "peak_" + q.name, Title: "peak memory of the process", Unit: "MiB", Group: q.title})
	}
	return &record.Report{
		Title: "plimsoll explain in a large cluster", Program: "explain", Ours: asking, Theirs: reading,
		Heads: [2]string{reading, asking}, Lines: lines, Rounds: c.rounds, Args: os.Args[1:], Began: time.Now(),
		Machine: append(record.Machine(ctx),
			record.Fact{Name: "plimsoll", Value: record.Output(ctx, c.plimsoll, "version")}),
		Notes: []string{
			fmt.Sprintf("%d nodes with %d pods; %d pods of %d templates wait, and fit nowhere", c.nodes, c.pods, c.waiting,
				c.templates),
			fmt.Sprintf("each question %d times a round; API server and etcd on the same machine, --gc-percent %d", c.repeat,
				c.gcPercent),
		},
	}
}

// note adds what is running meanwhile.
func (r *rig) note(ctx context.Context, report *record.Report, waits bool) error {
	if !waits {
		return nil
	}
	rss, err := record.StatusMiB(r.scheduler.PID(), "VmRSS")
	if err != nil {
		return err
	}
	server, err := record.StatusMiB(r.ups["kube-apiserver"], "VmRSS")
	if err != nil {
		return err
	}
	bytes, err := r.podBytes(ctx)
	if err != nil {
		return err
	}
	report.Notes = append(report.Notes, fmt.Sprintf("resident memory: scheduler with --explain %.0f MiB, kube-apiserver "+
		"%.0f MiB; a pod's object has %d bytes", rss, server, bytes))
	return nil
}

// measure asks all questions of a state in one way.
func (r *rig) measure(ctx context.Context, m *record.Measurement, waits bool) error {
	for _, q := range r.questions() {
		if q.waits != waits {
			continue
		}
		args := append([]string{"explain"}, q.args...)
		args = append(args, "--kubeconfig", r.plane.Kubeconfig())
		if m.Side == asking {
			args = append(args, r.journalFlags()...)
		}
		before, err := record.CPUSeconds(r.ups["kube-apiserver"])
		if err != nil {
			return err
		}
		var wall, cpu, peak []float64
		for range r.repeat {
			one, err := ask(ctx, r.plimsoll, args, q.says)
			if err != nil {
				return err
			}
			wall = append(wall, one.wall)
			cpu = append(cpu, one.cpu)
			peak = append(peak, one.peak)
		}
		after, err := record.CPUSeconds(r.ups["kube-apiserver"])
		if err != nil {
			return err
		}
		for name, value := range map[string]float64{
			"wall_":   stats.Median(wall),
			"worst_":  slices.Max(wall),
			"cpu_":    stats.Median(cpu),
			"server_": 1000 * (after - before) / float64(r.repeat),
			"peak_":   slices.Max(peak),
		} {
			m.Put(name+q.name, value, r.repeat)
		}
		record.Progress("%s: %s: %.0f ms (worst %.0f), CPU %.0f ms, peak %.0f MiB", m.Side, q.title, stats.Median(wall),
			slices.Max(wall), stats.Median(cpu), slices.Max(peak))
	}
	return nil
}

// answer is what one process took: milliseconds, and MiB.
type answer struct{ wall, cpu, peak float64 }

// ask runs the program, and checks what it says.
func ask(ctx context.Context, program string, args []string, says string) (answer, error) {
	c := exec.CommandContext(ctx, program, args...)
	var stdout, stderr bytes.Buffer
	c.Stdout, c.Stderr = &stdout, &stderr
	began := time.Now()
	err := c.Run()
	wall := time.Since(began)
	if err == nil && !strings.Contains(stdout.String(), says) {
		err = fmt.Errorf("the answer has no %q: %.2000s", says, stdout.String())
	}
	if err != nil {
		return answer{}, fmt.Errorf("%s: %w: %s", strings.Join(args, " "), err, stderr.String())
	}
	use := c.ProcessState
	return answer{
		wall: float64(wall.Microseconds()) / 1000,
		cpu:  float64((use.UserTime() + use.SystemTime()).Microseconds()) / 1000,
		peak: float64(use.SysUsage().(*syscall.Rusage).Maxrss) / 1024, // ru_maxrss is in KiB (getrusage(2))
	}, nil
}
