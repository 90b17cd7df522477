package store

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/plimsoll-dev/plimsoll/internal/core/localvolume"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
	"github.com/plimsoll-dev/plimsoll/internal/host/durable"
	"github.com/plimsoll-dev/plimsoll/internal/host/loop"
	"github.com/plimsoll-dev/plimsoll/internal/host/quota"
)

// Create makes a volume with a name. If it exists already and is as wish requests, it returns that. source is the ID of
// the volume or snapshot that it is a copy of; empty: the volume begins empty.
func (s *Store) Create(name string, wish localvolume.Wish, source string) (Entry, error) {
	id := s.VolumeID(name)
	if existing, err := s.Volume(id); err == nil {
		return existing, localvolume.Same(wish, existing.Plan(), existing.Source, source)
	}
	entry, from, end, err := s.planVolume(id, name, wish, source)
	if err != nil {
		return Entry{}, err
	}
	defer end()
	if err := s.make(entry, from); err != nil {
		return Entry{}, fmt.Errorf("make volume %s: %w", id, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.volumes[id] = entry
	return entry, nil
}

// planVolume decides how a volume is made, and claims its ID. from is the entry that it is a copy of; nil: the volume
// begins empty.
func (s *Store) planVolume(
	id, name string, wish localvolume.Wish, source string,
) (entry Entry, from *Entry, end func(), err error) {
	if source != "" {
		found, err := s.source(source)
		if err != nil {
			return Entry{}, nil, nil, err
		}
		from = &found
		wish.Source = &localvolume.Source{Name: source, Plan: found.Plan()}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	machine, err := s.machine()
	if err != nil {
		return Entry{}, nil, nil, err
	}
	plan, err := localvolume.Decide(wish, machine)
	if err != nil {
		return Entry{}, nil, nil, err
	}
	var copies []string
	if source != "" {
		copies = append(copies, source)
	}
	if end, err = s.begin(id, copies...); err != nil {
		return Entry{}, nil, nil, err
	}
	s.planned[id] = plan.Size
	entry = Entry{
		ID:      id,
		Name:    name,
		Backing: plan.Backing,
		Block:   plan.Block,
		FSType:  plan.FSType,
		Size:    plan.Size,
		Source:  source,
		Created: time.Now().UTC(),
	}
	return entry, from, end, nil
}

func (s *Store) source(id string) (Entry, error) {
	if strings.HasPrefix(id, "s-") {
		return s.Snapshot(id)
	}
	return s.Volume(id)
}

// make makes an entry in new/ and moves it to its place.
func (s *Store) make(entry Entry, from *Entry) error {
	workshop := filepath.Join(s.dir, dirNew, entry.ID)
	if err := discard(workshop); err != nil { // an earlier operation that failed may have left it
		return err
	}
	if err := os.Mkdir(workshop, 0o700); err != nil {
		return s.full(err)
	}
	err := s.fill(workshop, entry, from)
	if err == nil {
		err = writeRecord(workshop, entry)
	}
	if err == nil {
		err = flush(contentIn(workshop, entry))
	}
	if err == nil {
		err = durable.Move(workshop, s.home(entry.ID))
	}
	if err != nil {
		return errors.Join(s.full(err), discard(workshop))
	}
	return nil
}

func (s *Store) fill(workshop string, entry Entry, from *Entry) error {
	content := contentIn(workshop, entry)
	if entry.Backing == localvolume.Directory {
		return s.fillDirectory(content, entry, from)
	}
	if from != nil {
		if err := s.copyOf(*from, content); err != nil {
			return err
		}
		return os.Truncate(content, int64(entry.Size)) // the node grows the file system when it mounts it
	}
	f, err := os.OpenFile(content, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	if err := errors.Join(f.Truncate(int64(entry.Size)), f.Close()); err != nil {
		return err
	}
	return format(content, entry.FSType)
}

// volumeMode is the mode of a new volume's root, as that of a new file system.
const volumeMode = 0o755

func (s *Store) fillDirectory(content string, entry Entry, from *Entry) error {
	if err := os.Mkdir(content, volumeMode); err != nil {
		return err
	}
	if err := os.Chmod(content, volumeMode); err != nil { // whatever the umask is
		return err
	}
	err := quota.Begin(content)
	if err == nil && !isSnapshot(entry) {
		err = quota.Limit(content, entry.Size)
	}
	if err != nil || from == nil {
		return err
	}
	return s.copyOf(*from, content)
}

func isSnapshot(e Entry) bool { return strings.HasPrefix(e.ID, "s-") }

// format makes a file system in an image; nothing if fsType is empty.
func format(image, fsType string) error {
	switch fsType {
	case "":
		return nil
	case "ext4":
		// No blocks are reserved for root, so that pods can use the whole size of the volume.
		return run("mkfs.ext4", "-q", "-F", "-m", "0", image)
	}
	return run("mkfs."+fsType, "-q", "-f", image)
}

// formats returns the file systems that can be made here.
func formats() []string {
	return slices.DeleteFunc([]string{"ext4", "xfs"}, func(name string) bool {
		_, err := exec.LookPath("mkfs." + name)
		return err != nil
	})
}

// run runs a program that ends with this process. The kernel kills it when the thread that started it ends, so the
// thread is locked meanwhile. The error of a program that says so is ENOSPC.
func run(name string, args ...string) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	cmd := exec.Command(name, args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: unix.SIGKILL}
	cmd.Env = append(os.Environ(), "LC_ALL=C") // in the kernel's words, for the next lines
	out, err := cmd.CombinedOutput()
	if err == nil {
		return nil
	}
	err = fmt.Errorf("%s: %w: %s", name, err, strings.TrimSpace(string(out)))
	if bytes.Contains(bytes.ToLower(out), []byte(unix.ENOSPC.Error())) {
		err = fmt.Errorf("%w: %w", err, unix.ENOSPC)
	}
	return err
}

// checkRepaired is the code with which e2fsck ends when it has corrected errors (e2fsck(8)).
const checkRepaired = 1

// Check checks and repairs an ext4 that is not mounted, in full, as resize2fs wants it.
func Check(device string) error {
	err := run("e2fsck", "-f", "-p", device)
	var ended *exec.ExitError
	if errors.As(err, &ended) && ended.ExitCode() == checkRepaired {
		return nil
	}
	return err
}

// flush writes the content of an entry to the disk.
func flush(content string) error {
	f, err := os.Open(content)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err == nil && info.IsDir() {
		return unix.Syncfs(int(f.Fd())) // there is no call that flushes only the files of a directory
	}
	return errors.Join(err, f.Sync())
}

// Delete removes a volume, or nothing if there is none.
func (s *Store) Delete(id string) error {
	v, err := s.Volume(id)
	if errors.Is(err, ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	return s.remove(s.volumes, v, func() error {
		use, err := s.Use(v, "")
		if err != nil {
			return err
		}
		return localvolume.Delete(v.Plan(), use)
	})
}

// remove removes an entry if may returns nil.
func (s *Store) remove(in map[string]Entry, e Entry, may func() error) error {
	s.mu.Lock()
	end, err := s.begin(e.ID)
	s.mu.Unlock()
	if err != nil {
		return err
	}
	defer end()
	if err := may(); err != nil {
		return err
	}
	grave := filepath.Join(s.dir, dirOld, e.ID)
	if err := discard(grave); err != nil {
		return err
	}
	if err := durable.Move(s.home(e.ID), grave); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("remove %s: %w", e.ID, err)
	}
	s.mu.Lock()
	delete(in, e.ID)
	s.mu.Unlock()
	return discard(grave)
}

// discard removes an entry that is not in volumes/ or snapshots/, with its limit: a project keeps its limit when its
// directory is removed, and the next directory with that inode number would have it.
func discard(home string) error {
	data := filepath.Join(home, dirData)
	err := quota.Limit(data, 0)
	if err != nil && !errors.Is(err, quota.ErrNone) && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return os.RemoveAll(home)
}

// Expand makes a volume larger and returns it. The node still has to grow the file system of an image.
func (s *Store) Expand(id string, required, limit unit.Bytes) (Entry, error) {
	v, end, err := s.planGrowth(id, required, limit)
	if err != nil || end == nil {
		return v, err
	}
	defer end()
	content := s.Content(v)
	if v.Backing == localvolume.Image {
		if err := growFile(content, int64(v.Size)); err != nil {
			return Entry{}, fmt.Errorf("expand volume %s: %w", id, s.full(err))
		}
	}
	if err := writeRecord(s.home(id), v); err != nil {
		return Entry{}, fmt.Errorf("expand volume %s: %w", id, s.full(err))
	}
	s.mu.Lock()
	s.volumes[id] = v
	s.mu.Unlock()
	if v.Backing == localvolume.Directory {
		return v, quota.Limit(content, v.Size)
	}
	devices, err := loop.Of(content)
	for _, device := range devices {
		err = errors.Join(err, loop.Grow(device))
	}
	return v, err
}

// planGrowth decides how large a volume will be, and claims its ID. It claims nothing if the volume has that size
// already.
func (s *Store) planGrowth(id string, required, limit unit.Bytes) (Entry, func(), error) {
	v, err := s.Volume(id)
	if err != nil {
		return Entry{}, nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	machine, err := s.machine()
	if err != nil {
		return Entry{}, nil, err
	}
	size, more, err := localvolume.Expand(v.Plan(), required, limit, machine.Space)
	if err != nil || !more {
		return v, nil, err
	}
	end, err := s.begin(id)
	if err != nil {
		return Entry{}, nil, err
	}
	s.planned[id] = size - v.Size
	v.Size = size
	return v, end, nil
}

// growFile makes a file larger, never smaller.
func growFile(path string, size int64) error {
	info, err := os.Stat(path)
	if err != nil || info.Size() >= size {
		return err
	}
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	return errors.Join(f.Truncate(size), f.Sync(), f.Close())
}
