package plane

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/plimsoll-dev/plimsoll/internal/scheduler"
)

// Scheduler starts plimsoll scheduler with its output in log. None of the schedulers here elects a leader, since there
// is only one. When it stops, it is an error if its log says that it forgot a pod. more are further arguments, before
// the standard ones.
func (p *Plane) Scheduler(log string, more ...string) (*Process, error) {
	args := []string{p.Plimsoll, "scheduler", "--kubeconfig", p.Kubeconfig(), "--leader-elect=false", "--secure-port=0"}
	started, err := Start(log, append(args, more...)...)
	if started != nil {
		started.unsaid = scheduler.Forgotten
	}
	return started, err
}

// raisedLimit is the client rate limit of upstream's scheduler_perf, in requests per second and as burst.
const raisedLimit = 5000

// KubeScheduler starts upstream's scheduler with its default configuration, except for the client's limit: 5,000
// requests per second, as in upstream's scheduler_perf, instead of 50; or the default, if limited. more are further
// arguments.
func (p *Plane) KubeScheduler(log, program string, limited bool, more ...string) (*Process, error) {
	connection := fmt.Sprintf("{kubeconfig: %s, qps: %d, burst: %d}", p.Kubeconfig(), raisedLimit, raisedLimit)
	if limited {
		connection = fmt.Sprintf("{kubeconfig: %s}", p.Kubeconfig())
	}
	file := filepath.Join(p.Dir, filepath.Base(log)+".yaml")
	text := "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n" +
		"leaderElection: {leaderElect: false}\nclientConnection: " + connection + "\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		return nil, err
	}
	return Start(log, append([]string{program, "--config", file, "--secure-port=0"}, more...)...)
}
