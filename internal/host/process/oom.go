package process

import (
	"fmt"
	"os"
	"strconv"
	"strings"
)

// OOMScoreAdj returns how much process pid is preferred when memory runs out: -1000 never, 1000 first
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

// SetOOMScoreAdj sets it. To go below what a process with that right set last, the kernel asks for CAP_SYS_RESOURCE; without
// it the error is os.ErrPermission.
func SetOOMScoreAdj(pid, score int) error {
	if err := os.WriteFile(oomFile(pid), []byte(strconv.Itoa(score)), 0); err != nil {
		return fmt.Errorf("set oom_score_adj to %d: %w", score, err)
	}
	return nil
}

func oomFile(pid int) string { return fmt.Sprintf("/proc/%d/oom_score_adj", pid) }
