package agent

import (
	"os/exec"
	"strings"
	"testing"
)

// TestMoveInto moves a process into a group that does not exist yet, and leaves one alone that is there.
func TestMoveInto(t *testing.T) {
	tree, root := liveGroup(t)
	cmd := exec.Command("sleep", "60")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	pid := cmd.Process.Pid
	group := strings.TrimPrefix(root, "/") + "/agent/" // as somebody may write it
	for _, want := range []bool{true, false} {
		if moved, err := moveInto(tree, group, pid); moved != want || err != nil {
			t.Errorf("moved: %v, %v, want %v", moved, err, want)
		}
		if in, err := tree.Has(root+"/agent", pid); !in || err != nil {
			t.Errorf("in the group: %v, %v", in, err)
		}
	}
}
