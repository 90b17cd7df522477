package process

import (
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

// TestSetOpenFilesMax sets the limit of a process of its own, for itself and for what it starts.
func TestSetOpenFilesMax(t *testing.T) {
	if os.Getenv("OPEN_FILES_MAX") != "" {
		most, err := strconv.ParseUint(os.Getenv("OPEN_FILES_MAX"), 10, 64)
		if err == nil {
			err = SetOpenFilesMax(most)
		}
		out, failed := exec.Command("sh", "-c", "ulimit -Sn").Output()
		t.Logf("limit %s, %v, %v", strings.TrimSpace(string(out)), err, failed)
		return
	}
	var has syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &has); err != nil {
		t.Fatal(err)
	}
	for most, want := range map[uint64]string{
		100:     "limit 100, <nil>, <nil>",
		1 << 40: "set the limit of open files to 1099511627776", // more than any kernel has (fs.nr_open)
	} {
		child := exec.Command(os.Args[0], "-test.run", "^TestSetOpenFilesMax$", "-test.v")
		child.Env = append(os.Environ(), "OPEN_FILES_MAX="+strconv.FormatUint(most, 10))
		out, err := child.CombinedOutput()
		if err != nil || !strings.Contains(string(out), want) {
			t.Errorf("%d: %v, does not say %q:\n%s", most, err, want, out)
		}
	}
}
