package supervise

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"time"
)

// record is the file by which a later supervisor, and `plimsoll status`, find the children.
type record struct {
	BootID   string `json:"bootID"`
	Children []row  `json:"children"`
}

// row is one child. PID is 0 while the child waits for a restart.
type row struct {
	Name       string   `json:"name"`
	PID        int      `json:"pid"`
	StartTicks uint64   `json:"startTicks"`
	Digest     string   `json:"digest"`
	Argv       []string `json:"argv"`
	Log        string   `json:"log"`
	Restarts   int      `json:"restarts"`
	LastExit   string   `json:"lastExit,omitempty"`
}

// Status is the state of a child.
type Status struct {
	Name          string        `json:"name"`
	PID           int           `json:"pid"` // 0: not running
	Uptime        time.Duration `json:"-"`
	UptimeSeconds float64       `json:"uptimeSeconds"`
	Restarts      int           `json:"restarts"`
	ResidentBytes int64         `json:"residentBytes"`
	LastExit      string        `json:"lastExit,omitempty"` // how the previous process ended
	Log           string        `json:"log"`
}

// Read returns the state of the children in a record, without supervising them. Without a record there are no children.
func Read(path string) ([]Status, error) {
	r, err := readRecord(path)
	if err != nil {
		return nil, err
	}
	bootID, err := readBootID()
	if err != nil {
		return nil, err
	}
	out := make([]Status, len(r.Children))
	for i, row := range r.Children {
		out[i] = row.status(r.BootID, bootID)
	}
	return out, nil
}

func readRecord(path string) (record, error) {
	var r record
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return r, nil
	}
	if err == nil {
		err = json.Unmarshal(text, &r)
	}
	if err != nil {
		return record{}, fmt.Errorf("read %s: %w", path, err)
	}
	return r, nil
}

// write replaces the record. The record need not be flushed to disk: after a crash of the machine there are no
// children.
func (r record) write(path string) error {
	text, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	next := path + ".new"
	err = os.WriteFile(next, append(text, '\n'), 0o600)
	if err == nil {
		err = os.Rename(next, path)
	}
	if err != nil {
		_ = os.Remove(next) // an incomplete record would only use space
	}
	return err
}

func (r row) status(recordBoot, boot string) Status {
	s := Status{Name: r.Name, Restarts: r.Restarts, LastExit: r.LastExit, Log: r.Log}
	if ticks, err := readStartTicks(r.PID); r.PID == 0 || recordBoot != boot || err != nil || ticks != r.StartTicks {
		return s
	}
	s.PID = r.PID
	s.ResidentBytes = readResident(r.PID)
	if up, err := os.ReadFile("/proc/uptime"); err == nil {
		if seconds, err := strconv.ParseFloat(strings.Fields(string(up))[0], 64); err == nil {
			s.UptimeSeconds = max(0, seconds-float64(r.StartTicks)/ticksPerSecond)
			s.Uptime = time.Duration(s.UptimeSeconds * float64(time.Second))
		}
	}
	return s
}

// ticksPerSecond is USER_HZ (sysconf(_SC_CLK_TCK)), which is 100 on every Linux architecture that Go supports.
const ticksPerSecond = 100

// readResident returns the resident memory of a process in bytes, 0 if it cannot be read (proc_pid_statm(5)).
func readResident(pid int) int64 {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
	if err != nil {
		return 0
	}
	fields := strings.Fields(string(text))
	if len(fields) < 2 {
		return 0
	}
	pages, err := strconv.ParseInt(fields[1], 10, 64)
	if err != nil {
		return 0
	}
	return pages * int64(os.Getpagesize())
}
