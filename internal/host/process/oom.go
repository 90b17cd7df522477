package process

import (
	"fmt"
	"os"
	"strconv"
	"strings"
)

// OOMScoreAdj returns the preference of process pid when memory runs out: -1000 is never killed, 1000 first
// (proc_pid_oom_score_adj(5)).
func OOMScoreAdj(pid int) (int, error) {
	text, err := os.ReadFile(oomFile(pid))
	if err != nil {
		return 0, fmt.Errorf("read oom_score_adj: %w", err)
	}
	score, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		return 0, fmt.Errorf("read oom_score_adj: %s: %.20q: not a number", oomFile(pid), text)
	}
	return score, nil
}

// SetOOMScoreAdj sets it. Setting a value below the one that a process with CAP_SYS_RESOURCE set last needs that
// capability; without it the error is os.ErrPermission.
func SetOOMScoreAdj(pid, score int) error {
	if err := os.WriteFile(oomFile(pid), []byte(strconv.Itoa(score)), 0); err != nil {
		return fmt.Errorf("set oom_score_adj to %d: %w", score, err)
	}
	return nil
}

func oomFile(pid int) string { return fmt.Sprintf("/proc/%d/oom_score_adj", pid) }
