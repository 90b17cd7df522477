package store

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"k8s.io/mount-utils"

	"github.com/plimsoll-dev/plimsoll/internal/core/localvolume"
	"github.com/plimsoll-dev/plimsoll/internal/host/loop"
)

// TakeSnapshot makes a snapshot with a name. If it exists already and is of the same volume, it returns that.
func (s *Store) TakeSnapshot(name, volume string) (Entry, error) {
	id := s.SnapshotID(name)
	if existing, err := s.Snapshot(id); err == nil {
		if existing.Source != volume {
			return Entry{}, localvolume.Errorf(
				localvolume.Exists, "a snapshot of this name exists, of volume %s", existing.Source)
		}
		return existing, nil
	}
	v, err := s.Volume(volume)
	if err != nil {
		return Entry{}, err
	}
	entry := v
	entry.ID = id
	entry.Name = name
	entry.Source = volume
	entry.Created = time.Now().UTC()
	end, err := s.planSnapshot(id, v)
	if err != nil {
		return Entry{}, err
	}
	defer end()
	if err := s.make(entry, &v); err != nil {
		return Entry{}, fmt.Errorf("make snapshot %s: %w", id, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.snapshots[id] = entry
	return entry, nil
}

// planSnapshot claims a snapshot and its volume for an operation.
func (s *Store) planSnapshot(id string, v Entry) (func(), error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	machine, err := s.machine()
	if err != nil {
		return nil, err
	}
	needs, err := used(s.Content(v), v)
	if err != nil {
		return nil, err
	}
	if err := localvolume.SnapshotFits(needs, machine.Space, s.reflink); err != nil {
		return nil, err
	}
	end, err := s.begin(id, v.ID)
	if err == nil && !s.reflink {
		s.planned[id] = needs
	}
	return end, err
}

// DeleteSnapshot removes a snapshot, or nothing if there is none.
func (s *Store) DeleteSnapshot(id string) error {
	e, err := s.Snapshot(id)
	if errors.Is(err, ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	return s.remove(s.snapshots, e, func() error { return nil })
}

// copyOf copies the content of an entry as it is at one instant.
func (s *Store) copyOf(from Entry, to string) error {
	how := localvolume.CopyNow
	if !isSnapshot(from) {
		use, err := s.Use(from, "")
		if err != nil {
			return err
		}
		if how, err = localvolume.Snapshot(from.Plan(), use, s.reflink); err != nil {
			return err
		}
	}
	content := s.Content(from)
	if how == localvolume.CopyNow {
		return copyContent(from, content, to)
	}
	thawed, err := freeze(content)
	if err != nil {
		return err
	}
	return errors.Join(copyContent(from, content, to), thawed())
}

// copyContent copies with the system's cp, which shares blocks where the file system can, keeps holes, and keeps
// owners, modes, times, links and attributes of files.
func copyContent(from Entry, content, to string) error {
	if from.Backing == localvolume.Directory {
		return run("cp", "-a", "--reflink=auto", "--", content+"/.", to)
	}
	return run("cp", "--reflink=auto", "--sparse=always", "--", content, to)
}

// Numbers of linux/fs.h that x/sys/unix has no names for.
const (
	ioctlFreeze = 0xC0045877 // FIFREEZE
	ioctlThaw   = 0xC0045878 // FITHAW
)

// freeze stops all writes to the file system of an image and flushes it. The returned function thaws it.
func freeze(image string) (func() error, error) {
	points, err := mountsOf(image)
	if err != nil {
		return nil, err
	}
	if len(points) == 0 {
		return nil, localvolume.Errorf(
			localvolume.Precondition, "its device is attached and not mounted: another operation is in progress")
	}
	dir, err := os.Open(points[0])
	if err != nil {
		return nil, err
	}
	if err := unix.IoctlSetInt(int(dir.Fd()), ioctlFreeze, 0); err != nil {
		return nil, errors.Join(fmt.Errorf("freeze file system at %s: %w", points[0], err), dir.Close())
	}
	return func() error {
		err := unix.IoctlSetInt(int(dir.Fd()), ioctlThaw, 0)
		if err != nil {
			err = fmt.Errorf("thaw file system at %s: %w", points[0], err)
		}
		return errors.Join(err, dir.Close())
	}, nil
}

// thaw ends a freeze that a process left behind. EINVAL: the file system is not frozen.
func thaw(image string) error {
	points, err := mountsOf(image)
	if err != nil || len(points) == 0 {
		return err
	}
	dir, err := os.Open(points[0])
	if err != nil {
		return err
	}
	defer dir.Close()
	if err := unix.IoctlSetInt(int(dir.Fd()), ioctlThaw, 0); err != nil && !errors.Is(err, unix.EINVAL) {
		return fmt.Errorf("thaw file system at %s: %w", points[0], err)
	}
	return nil
}

// mountTable is the kernel's table of mounts (proc_pid_mountinfo(5)).
const mountTable = "/proc/self/mountinfo"

// mountsOf returns where the file system of an image is mounted.
func mountsOf(image string) (points []string, err error) {
	devices, err := loop.Of(image)
	if err != nil {
		return nil, err
	}
	return mountsOfDevices(devices)
}

// mountsOfDevices returns where file systems of devices are mounted.
func mountsOfDevices(devices []string) (points []string, err error) {
	if len(devices) == 0 {
		return nil, nil
	}
	table, err := mount.ParseMountInfo(mountTable)
	if err != nil {
		return nil, fmt.Errorf("read mounts: %w", err)
	}
	for _, device := range devices {
		var st unix.Stat_t
		if err := unix.Stat(device, &st); err != nil {
			return nil, &os.PathError{Op: "stat", Path: device, Err: err}
		}
		for i := range table {
			if m := &table[i]; m.Major == int(unix.Major(st.Rdev)) && m.Minor == int(unix.Minor(st.Rdev)) {
				points = append(points, m.MountPoint)
			}
		}
	}
	return points, nil
}

// bindsOf returns the paths at which a file or directory is bind-mounted. mount-utils has SearchMountPoints for that,
// but it takes the last mount in the table whose mount point contains the path for the path's mount. That may be "/",
// wherever the path is.
func bindsOf(path string) (points []string, err error) {
	var st unix.Statx_t
	if err := unix.Statx(unix.AT_FDCWD, path, unix.AT_SYMLINK_NOFOLLOW, unix.STATX_MNT_ID, &st); err != nil {
		return nil, &os.PathError{Op: "statx", Path: path, Err: err}
	}
	table, err := mount.ParseMountInfo(mountTable)
	if err != nil {
		return nil, fmt.Errorf("read mounts: %w", err)
	}
	i := slices.IndexFunc(table, func(m mount.MountInfo) bool { return uint64(m.ID) == st.Mnt_id })
	if i < 0 {
		return nil, fmt.Errorf("read mounts: %s is on mount %d, which is not in the table", path, st.Mnt_id)
	}
	of := &table[i]
	below, err := filepath.Rel(of.MountPoint, path)
	if err != nil {
		return nil, fmt.Errorf("read mounts: %w", err)
	}
	root := filepath.Join(of.Root, below)
	for i := range table {
		if m := &table[i]; m.ID != of.ID && m.Root == root && m.Major == of.Major && m.Minor == of.Minor {
			points = append(points, m.MountPoint)
		}
	}
	return points, nil
}

// Use returns where a volume is in use now. staging is the path at which the node has mounted its file system for all
// pods; that counts as open, not as published.
func (s *Store) Use(v Entry, staging string) (use localvolume.Use, err error) {
	content := s.Content(v)
	var points []string
	switch {
	case v.Backing == localvolume.Directory:
		if points, err = bindsOf(content); err != nil {
			return use, err
		}
	case v.Block:
		devices, err := loop.Of(content)
		if err != nil {
			return use, err
		}
		use.Open = len(devices) > 0
		for _, device := range devices {
			at, err := bindsOf(device)
			if err != nil {
				return use, err
			}
			points = append(points, at...)
		}
	default:
		devices, err := loop.Of(content)
		if err != nil {
			return use, err
		}
		use.Open = len(devices) > 0
		if points, err = mountsOfDevices(devices); err != nil {
			return use, err
		}
	}
	for _, point := range points {
		if point != staging {
			use.Published = append(use.Published, point)
		}
	}
	return use, nil
}

// canReflink tries whether the file system of the volumes can share blocks between files.
func (s *Store) canReflink() (can bool, err error) {
	var files [2]*os.File
	for i := range files {
		path := filepath.Join(s.dir, dirNew, fmt.Sprintf("reflink%d", i))
		if files[i], err = os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o600); err != nil {
			return false, err
		}
		defer func() { err = errors.Join(err, files[i].Close(), os.Remove(path)) }()
	}
	if _, err := files[0].Write(make([]byte, localvolume.Granularity)); err != nil {
		return false, err
	}
	return unix.IoctlFileClone(int(files[1].Fd()), int(files[0].Fd())) == nil, nil
}
