package plane

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/plimsoll-dev/plimsoll/internal/scheduler"
)

// Scheduler starts plimsoll scheduler; its output goes to log. None of those here elects a leader: there is one. When
// it is stopped, it is an error if it had forgotten a pod. More are arguments of its own, which go before those.
func (p *Plane) Scheduler(log string, more ...string) (*Process, error) {
	args := []string{p.Plimsoll, "scheduler", "--kubeconfig", p.Kubeconfig(), "--leader-elect=false", "--secure-port=0"}
	started, err := Start(log, append(args, more...)...)
	if started != nil {
		started.unsaid = scheduler.Forgotten
	}
	return started, err
}

// raisedLimit is how many requests a second upstream's scheduler_perf lets a scheduler send, and at once.
const raisedLimit = 5000

// KubeScheduler starts upstream's, with its default configuration but for the client's limit: 5,000 requests a
// second, as upstream's scheduler_perf has it, in place of 50; or, limited, as it is. More are arguments of its own.
func (p *Plane) KubeScheduler(log, program string, limited bool, more ...string) (*Process, error) {
	connection := fmt.Sprintf("{kubeconfig: %s, qps: %d, burst: %d}", p.Kubeconfig(), raisedLimit, raisedLimit)
	if limited {
		connection = fmt.Sprintf("{kubeconfig: %s}", p.Kubeconfig())
	}
	file := filepath.Join(p.Dir, filepath.Base(log)+".yaml")
	text := "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\nleaderElection: {leaderElect: false}\nclientConnection: " + connection + "\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		return nil, err
	}
	return Start(log, append([]string{program, "--config", file, "--secure-port=0"}, more...)...)
}
