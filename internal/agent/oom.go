package agent

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"strings"
	"time"

	"github.com/plimsoll-dev/plimsoll/internal/core/qos"
	"github.com/plimsoll-dev/plimsoll/internal/host/process"
)

// oomEvery is the interval at which the scores are checked again, since the runtime may have been restarted. The
// kubelet uses the same interval for its own process.
const oomEvery = 5 * time.Minute

// keepOOMScores keeps the OOM scores of the agent and of the runtime low, so that the kernel kills pods' processes
// first when memory runs out.
func (a *Agent) keepOOMScores(ctx context.Context) error {
	scores := &oomScores{get: process.OOMScoreAdj, set: process.SetOOMScoreAdj}
	for {
		a.giveOOMScores(scores)
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(oomEvery):
		}
	}
}

// giveOOMScores sets both scores once.
func (a *Agent) giveOOMScores(scores *oomScores) {
	scores.keep("agent", os.Getpid(), int(*a.o.Config.OOMScoreAdj), true)
	socket := strings.TrimPrefix(a.runtime.Endpoint, "unix://")
	if pid, err := process.Listener(socket); err != nil {
		slog.Debug("container runtime's process not found", "err", err)
	} else if pid > 1 { // PID 1: systemd listens for a runtime that it starts on demand
		scores.keep("container runtime", pid, qos.OOMScoreAgent, false)
	}
}

// oomScores sets OOM scores, and logs once that the kernel refused.
type oomScores struct {
	get     func(pid int) (int, error)
	set     func(pid, score int) error
	refused bool
}

// keep sets the score of process pid. Unless exact is set, a lower score stays.
func (s *oomScores) keep(who string, pid, score int, exact bool) {
	now, err := s.get(pid)
	if err != nil || now == score || now < score && !exact {
		return // a process that has just ended has no score
	}
	err = s.set(pid, score)
	switch {
	case err == nil:
		slog.Info("oom_score_adj set", "of", who, "pid", pid, "score", score)
	case s.refused:
	case errors.Is(err, os.ErrPermission):
		s.refused = true
		slog.Warn("the kernel refuses to lower oom_score_adj without CAP_SYS_RESOURCE; when memory runs out, "+who+
			" may be killed before pods",
			"pid", pid, "score", now, "wanted", score, "err", err)
	case !errors.Is(err, os.ErrNotExist):
		s.refused = true
		slog.Warn("oom_score_adj not set", "of", who, "pid", pid, "score", now, "wanted", score, "err", err)
	}
}
