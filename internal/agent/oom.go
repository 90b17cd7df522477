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

// oomEvery is how often the scores are looked at again: the runtime may have been restarted. Upstream looks at its own
// as often.
const oomEvery = 5 * time.Minute

// keepOOMScores keeps the agent and the runtime alive when memory runs out.
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

// giveOOMScores gives the agent and the runtime theirs, once.
func (a *Agent) giveOOMScores(scores *oomScores) {
	scores.keep("agent", os.Getpid(), int(*a.o.Config.OOMScoreAdj), true)
	socket := strings.TrimPrefix(a.runtime.Endpoint, "unix://")
	if pid, err := process.Listener(socket); err != nil {
		slog.Debug("container runtime's process not found", "err", err)
	} else if pid > 1 { // systemd listens in the place of one that it starts on demand
		scores.keep("container runtime", pid, qos.OOMScoreAgent, false)
	}
}

// oomScores sets scores, and says once that it may not.
type oomScores struct {
	get     func(pid int) (int, error)
	set     func(pid, score int) error
	refused bool
}

// keep gives process pid its score; unless exact, one that is lower already stays.
func (s *oomScores) keep(who string, pid, score int, exact bool) {
	now, err := s.get(pid)
	if err != nil || now == score || now < score && !exact {
		return // one that has just ended has no score
	}
	err = s.set(pid, score)
	switch {
	case err == nil:
		slog.Info("oom_score_adj set", "of", who, "pid", pid, "score", score)
	case s.refused:
	case errors.Is(err, os.ErrPermission):
		s.refused = true
		slog.Warn("the kernel refuses to lower oom_score_adj without CAP_SYS_RESOURCE; when memory runs out, "+who+" may be killed before pods. Going on",
			"pid", pid, "score", now, "wanted", score, "err", err)
	case !errors.Is(err, os.ErrNotExist):
		s.refused = true
		slog.Warn("oom_score_adj not set", "of", who, "pid", pid, "score", now, "wanted", score, "err", err)
	}
}
