package cgroup

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/plimsoll-dev/plimsoll/internal/core/qos"
)

// Apply creates group and its missing parents, and sets v. Values that v does not state stay as they are.
func (t *Tree) Apply(group string, v qos.Values) error {
	if err := t.Create(group); err != nil {
		return err
	}
	return t.Set(group, v)
}

// Create creates group and its missing parents, in every hierarchy, with every controller that the machine has.
func (t *Tree) Create(group string) error {
	if err := check(group); err != nil {
		return fmt.Errorf("create cgroup: %w", err)
	}
	if t.units != nil {
		if err := t.startUnit(group); err != nil {
			return fmt.Errorf("create cgroup %s: %w", group, err)
		}
	}
	for _, h := range t.hierarchies {
		if h.passive {
			continue
		}
		if err := t.create(h, group); err != nil {
			return fmt.Errorf("create cgroup %s: %w", group, err)
		}
	}
	return nil
}

// create creates group in h, from the top down: on v2 a controller must be enabled in each parent, and on v1 a new
// cpuset is empty, and accepts no process, until it is copied from its parent.
func (t *Tree) create(h hierarchy, group string) error {
	if group == "/" {
		return nil
	}
	dir := filepath.Join(h.dir, group)
	if h.unified {
		if err := t.create(h, filepath.Dir(group)); err != nil {
			return err
		}
		if err := enable(filepath.Dir(dir)); err != nil {
			return err
		}
	}
	err := t.makeDir(dir)
	if errors.Is(err, os.ErrNotExist) {
		if err := t.create(h, filepath.Dir(group)); err != nil {
			return err
		}
		err = t.makeDir(dir)
	}
	if err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	if cpuset := t.of["cpuset"]; cpuset != nil && !h.unified && cpuset.dir == h.dir {
		return t.fillCpuset(h.dir, group)
	}
	return nil
}

// fillCpuset copies cpus and mems from the parent into an empty v1 cpuset.
func (t *Tree) fillCpuset(root, group string) error {
	for _, file := range []string{"cpuset.cpus", "cpuset.mems"} {
		own, err := readText(filepath.Join(root, group, file))
		if err != nil {
			return err
		}
		if own != "" {
			continue
		}
		above := filepath.Dir(group)
		inherited, err := readText(filepath.Join(root, above, file))
		if err != nil {
			return err
		}
		if inherited == "" && above != "/" { // an interrupted creation
			if err := t.fillCpuset(root, above); err != nil {
				return err
			}
			if inherited, err = readText(filepath.Join(root, above, file)); err != nil {
				return err
			}
		}
		if err := write(filepath.Join(root, group, file), inherited); err != nil {
			return err
		}
	}
	return nil
}

// enable makes the v2 controllers that dir has available to the groups below it.
func enable(dir string) error {
	available, err := readWords(filepath.Join(dir, "cgroup.controllers"))
	if err != nil {
		return err
	}
	control := filepath.Join(dir, "cgroup.subtree_control")
	enabled, err := readWords(control)
	if err != nil {
		return err
	}
	var add []string
	for _, c := range v2Controllers {
		if slices.Contains(available, c) && !slices.Contains(enabled, c) {
			add = append(add, "+"+c)
		}
	}
	if len(add) == 0 {
		return nil
	}
	err = write(control, strings.Join(add, " "))
	if errors.Is(err, syscall.EBUSY) {
		return fmt.Errorf("%w: the group itself has processes, and v2 allows processes only in groups without children: "+
			"choose another cgroupRoot or move them into a group below it", err)
	}
	return err
}

// Remove removes group and the groups below it, from the bottom up, from every hierarchy. It is no error if group does
// not exist. Groups with processes stay, and so do their parents; the error then wraps ErrBusy.
func (t *Tree) Remove(group string) error {
	if err := check(group); err != nil {
		return fmt.Errorf("remove: %w", err)
	}
	if t.units != nil {
		if err := t.stopUnit(group); err != nil {
			return fmt.Errorf("remove cgroup %s: %w", group, err)
		}
	}
	var problems []error
	for _, h := range t.hierarchies {
		if err := t.remove(filepath.Join(h.dir, group)); err != nil {
			problems = append(problems, fmt.Errorf("remove cgroup %s: %w", group, err))
		}
	}
	return errors.Join(problems...)
}

func (t *Tree) remove(dir string) error {
	err := t.removeDir(dir)
	if err == nil || errors.Is(err, os.ErrNotExist) {
		return nil
	}
	entries, readErr := os.ReadDir(dir)
	if errors.Is(readErr, os.ErrNotExist) {
		return nil
	} else if readErr != nil {
		return readErr
	}
	children := false
	for _, e := range entries {
		if e.IsDir() {
			children = true
			if err := t.remove(filepath.Join(dir, e.Name())); err != nil {
				return err
			}
		}
	}
	if children {
		err = t.removeDir(dir)
	}
	switch {
	case err == nil, errors.Is(err, os.ErrNotExist):
		return nil
	case errors.Is(err, syscall.EBUSY):
		pids, _ := readPIDs(filepath.Join(dir, procsFile), nil)
		return fmt.Errorf("%s: %w: %v", dir, ErrBusy, pids)
	}
	return err
}

func removeDir(dir string) error {
	if err := syscall.Rmdir(dir); err != nil {
		return &os.PathError{Op: "rmdir", Path: dir, Err: err}
	}
	return nil
}
