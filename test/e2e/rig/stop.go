//go:build e2e

package rig

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"

	"github.com/google/nftables"

	"github.com/plimsoll-dev/plimsoll/internal/host/loop"
	"github.com/plimsoll-dev/plimsoll/internal/host/mount"
	"github.com/plimsoll-dev/plimsoll/internal/scheduler"
)

// Stop takes the instance down, twice, and checks for remains, and for pods that its scheduler had forgotten.
func (c *Cluster) Stop() error {
	problems := []error{Forgotten(c.LogFile("scheduler"))}
	if c.guard != nil {
		problems = append(problems, c.guard.Close())
		for range 2 {
			if _, err := c.Plimsoll("down"); err != nil {
				problems = append(problems, err)
			}
		}
		if _, err := c.Plimsoll("down", "--purge", "--run-dir", c.RunDir); err != nil {
			problems = append(problems, err)
		}
	}
	problems = append(problems, c.Traces())
	if errors.Join(problems...) == nil {
		problems = append(problems, os.RemoveAll(c.Dir))
	}
	return errors.Join(problems...)
}

// Forgotten returns an error if the log of a scheduler says that it had forgotten a pod, which only its periodic check
// of long-waiting pods finds. A missing log is no error.
func Forgotten(log string) error {
	text, err := os.ReadFile(log)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if i := bytes.Index(text, []byte(scheduler.Forgotten)); err == nil && i >= 0 {
		line, _, _ := bytes.Cut(text[i:], []byte{'\n'})
		err = fmt.Errorf("%s: %s", log, line)
	}
	return err
}

// Traces returns an error with all remains of the instance on this machine. Call it only when the instance is down.
func (c *Cluster) Traces() error {
	var found []string
	add := func(kind string, what ...any) { found = append(found, kind+" "+fmt.Sprint(what...)) }
	for _, file := range []string{"cmdline", "environ"} {
		paths, _ := filepath.Glob("/proc/[0-9]*/" + file)
		for _, path := range paths {
			if c.guard != nil && path == fmt.Sprintf("/proc/%d/%s", c.guard.guard.Process.Pid, file) {
				continue
			}
			if text, err := os.ReadFile(path); err == nil && bytes.Contains(text, []byte(c.Dir+"/")) {
				add("process", path, ": ", string(bytes.ReplaceAll(text, []byte{0}, []byte{' '})))
			}
		}
	}
	points, err := mount.Below(c.Dir)
	if err != nil {
		return err
	}
	for _, point := range points {
		add("mount", point)
	}
	devices, err := loop.Below(c.Dir)
	if err != nil {
		return err
	}
	for _, device := range devices {
		add("loop device", device)
	}
	groups, _ := filepath.Glob("/sys/fs/cgroup/*" + c.CgroupRoot())
	for _, group := range append(groups, "/sys/fs/cgroup"+c.CgroupRoot()) {
		if _, err := os.Stat(group); err == nil {
			add("cgroup", group)
		}
	}
	if _, err := net.InterfaceByName(c.Bridge()); err == nil {
		add("link", c.Bridge())
	}
	if os.Geteuid() == 0 {
		conn, err := nftables.New()
		if err != nil {
			return err
		}
		tables, err := conn.ListTables()
		if err != nil {
			return err
		}
		for _, table := range tables {
			if table.Name == c.Bridge() || c.services && table.Name == "kube-proxy" {
				add("nftables table", table.Name)
			}
		}
	}
	for _, dir := range []string{c.StateDir, c.RunDir} {
		if _, err := os.Stat(dir); err == nil {
			add("directory", dir)
		}
	}
	if found == nil {
		return nil
	}
	return fmt.Errorf("left of instance %s:\n  %s", c.Name, strings.Join(found, "\n  "))
}
