//go:build e2e

package lab

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
	"github.com/plimsoll-dev/plimsoll/lab"
)

// TestGuestObeys tests in one guest everything that package lab promises.
func TestGuestObeys(t *testing.T) {
	g := lab.Boot(t, "tiny", lab.Options{Name: "obedient", Time: time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC)})
	t.Run("commands", func(t *testing.T) { commands(t, g) })
	t.Run("copies", func(t *testing.T) { copies(t, g) })
	t.Run("clock", func(t *testing.T) {
		if year := g.Run(t, "date", "-u", "+%Y-%m-%dT%H"); year != "2030-01-02T03" {
			t.Errorf("the guest was booted in another time: %s", year)
		}
		hosts := time.Now()
		before := uptime(t, g)
		g.Run(t, "sleep", "2")
		if there, here := uptime(t, g)-before, time.Since(hosts); there < 2*time.Second || there > 2*here {
			t.Errorf("%v passed in the guest while %v passed here", there, here)
		}
		g.SetClock(t, time.Unix(4e9, 0))
		if now := g.Run(t, "date", "+%s"); !strings.HasPrefix(now, "40000000") {
			t.Errorf("its clock says %s after it was set to 4000000000", now)
		}
	})
	t.Run("cpus", func(t *testing.T) {
		g.OfflineCPU(t, 1)
		if online := g.Run(t, "cat", "/sys/devices/system/cpu/online"); online != "0" {
			t.Errorf("CPUs %s are online", online)
		}
		g.OnlineCPU(t, 1)
	})
	t.Run("disk", func(t *testing.T) {
		path := g.FillDisk(t, "/var/lib", 8*unit.MiB)
		if out, err := g.Output(t.Context(), "dd", "if=/dev/zero", "of=/var/lib/more", "bs=1M", "count=16"); err == nil ||
			!strings.Contains(err.Error(), "No space left") {
			t.Errorf("16 MiB fit in what was left: %s %v", out, err)
		}
		g.Run(t, "rm", path, "/var/lib/more")
	})
	t.Run("frozen", func(t *testing.T) { frozen(t, g) })
	t.Run("crash", func(t *testing.T) {
		g.Run(t, "sh", "-c", "echo kept > /var/lib/kept && sync && echo lost > /run/lost")
		g.Kill()
		if _, err := g.Output(t.Context(), "true"); err == nil {
			t.Error("a dead guest runs commands")
		}
		g.Restart(t)
		if text := g.Run(t, "sh", "-c", "cat /var/lib/kept; ls /run/lost || true"); text != "kept" {
			t.Errorf("after a crash: %q", text)
		}
	})
}

// uptime is a clock of the guest that cannot be set.
func uptime(t *testing.T, g *lab.Guest) time.Duration {
	t.Helper()
	seconds, err := strconv.ParseFloat(strings.Fields(g.Run(t, "cat", "/proc/uptime"))[0], 64)
	if err != nil {
		t.Fatal(err)
	}
	return time.Duration(seconds * float64(time.Second))
}

func commands(t *testing.T, g *lab.Guest) {
	if host := g.Run(t, "hostname"); host != "obedient" {
		t.Errorf("host name %q", host)
	}
	var out, complaint strings.Builder
	err := g.Exec(t.Context(), lab.Command{
		Args: []string{"sh", "-c", "cat; echo $X; pwd; echo bad >&2; exit 7"}, Env: []string{"X=y"}, Dir: "/usr",
		Stdin: strings.NewReader("in\n"), Stdout: &out, Stderr: &complaint,
	})
	var exit *lab.ExitError
	if !errors.As(err, &exit) || exit.Exit.Code != 7 || out.String() != "in\ny\n/usr\n" || complaint.String() != "bad\n" {
		t.Errorf("%v, %q, %q", err, out.String(), complaint.String())
	}
	for script, want := range map[string]string{"echo why >&2; exit 1": "exit status 1: why",
		"kill -9 $$": "killed by signal 9"} {
		if _, err := g.Output(t.Context(), "sh", "-c", script); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", script, err, want)
		}
	}
	if _, err := g.Output(t.Context(), "no-such-program"); err == nil || !strings.Contains(err.Error(), "not found") {
		t.Errorf("a program that is not there: %v", err)
	}
	endless, input := io.Pipe()
	defer input.Close()
	if err := g.Exec(t.Context(), lab.Command{Args: []string{"true"}, Stdin: endless}); err != nil {
		t.Errorf("a command whose input goes on: %v", err)
	}
	sleeper := g.Start(t, lab.Command{Args: []string{"sleep", "1000"}})
	sleeper.Stop()
	if out, err := g.Output(t.Context(), "pgrep", "sleep"); err == nil {
		t.Errorf("a stopped command runs on as %s", out)
	}
	if version := g.Run(t, "plimsoll", "version"); !strings.HasPrefix(version, "plimsoll ") {
		t.Errorf("our program says %q", version)
	}
}

func copies(t *testing.T, g *lab.Guest) {
	dir := t.TempDir()
	want := strings.Repeat("0123456789abcdef", 1<<16) // 1 MiB: more than one frame, window or pipe
	if err := os.WriteFile(filepath.Join(dir, "there"), []byte(want), 0o751); err != nil {
		t.Fatal(err)
	}
	g.CopyIn(t, filepath.Join(dir, "there"), "/srv/new/file")
	if mode := g.Run(t, "stat", "-c", "%a", "/srv/new/file"); mode != "751" {
		t.Errorf("mode %s", mode)
	}
	g.CopyOut(t, "/srv/new/file", filepath.Join(dir, "back"))
	if got, err := os.ReadFile(filepath.Join(dir, "back")); err != nil || string(got) != want {
		t.Errorf("%d bytes came back, %v", len(got), err)
	}
}

// frozen: nothing happens in a frozen guest, and everything continues afterwards.
func frozen(t *testing.T, g *lab.Guest) {
	g.Freeze(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if _, err := g.Output(ctx, "true"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a frozen guest answered: %v", err)
	}
	g.Thaw(t)
	g.Run(t, "true")
}
