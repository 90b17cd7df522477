// Package store keeps the volumes and snapshots of one machine in a directory.
//
// # Model
//
//	DIR/lock                    held by the one process that may change the directory
//	DIR/volumes/ID/record.json  what the volume is
//	DIR/volumes/ID/data/        its content, if it is backed by a directory; else
//	DIR/volumes/ID/image        a sparse file: a file system, or the bytes of a block device
//	DIR/snapshots/ID/...        the same for a snapshot
//	DIR/new/ID, DIR/old/ID      what is being made, and what is being removed
//
// An ID is made of a hash of the node's name and a hash of the name in the API. So no text of the API becomes part of a
// path, and the same name always has the same ID.
//
// # Invariants
//
//   - Entries in volumes/ and snapshots/ are complete. An entry is made in new/, flushed, and moved by one rename,
//     record and content together. It is removed by a rename to old/. Open empties new/ and old/. So an entry that a
//     crash left incomplete is never used.
//   - At most one operation changes a volume at a time, and none removes a volume that another one copies: the second
//     operation gets ErrBusy. An operation runs to its end, even if its caller stops waiting.
//   - A program that an operation runs ends with this process, so that it cannot write into an entry that the next
//     process makes.
//   - An operation that freezes a file system also thaws it. If it was killed meanwhile, the next Open does.
//
// core/localvolume decides about backing, size and room, and what may be copied or removed. Where a volume is mounted
// is read from the kernel each time. The package serves no protocol; internal/csi does.
package store

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/plimsoll-dev/plimsoll/internal/core/localvolume"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
	"github.com/plimsoll-dev/plimsoll/internal/host/disk"
	"github.com/plimsoll-dev/plimsoll/internal/host/durable"
	"github.com/plimsoll-dev/plimsoll/internal/host/loop"
	"github.com/plimsoll-dev/plimsoll/internal/host/quota"
)

// Errors that callers distinguish.
var (
	ErrBusy     = errors.New("another operation on it is in progress")
	ErrNotFound = errors.New("there is none")
	ErrOther    = errors.New("it belongs to another node")
	ErrFull     = errors.New("blocks or inodes are used up")
)

// Names in the directory.
const (
	dirVolumes   = "volumes"
	dirSnapshots = "snapshots"
	dirNew       = "new"
	dirOld       = "old"
	fileRecord   = "record.json"
	fileImage    = "image"
	dirData      = "data"
)

// Entry is the record of a volume or a snapshot.
type Entry struct {
	ID      string              `json:"id"`
	Name    string              `json:"name"` // in the API
	Backing localvolume.Backing `json:"backing"`
	Block   bool                `json:"block,omitempty"`
	FSType  string              `json:"fsType,omitempty"`
	Size    unit.Bytes          `json:"size"`
	Source  string              `json:"source,omitempty"` // ID of the volume or snapshot that its content is from
	Created time.Time           `json:"created"`
}

// Plan is what the entry is made of.
func (e Entry) Plan() localvolume.Plan {
	return localvolume.Plan{Backing: e.Backing, Block: e.Block, FSType: e.FSType, Size: e.Size}
}

// Options configure a Store.
type Options struct {
	Dir      string
	Node     string // the name of the node, which is part of all IDs
	Reserved int    // percent of the disk that volumes leave free
}

// Store keeps volumes. Its methods may be called by several goroutines.
type Store struct {
	dir      string   // without symbolic links
	node     string   // the part of an ID that names the node
	reserved int      // percent of the disk that volumes leave free
	quota    bool     // the file system enforces project quota, for volumes that are directories
	reflink  bool     // see canReflink
	formats  []string // file systems that can be made here
	lock     *os.File // held until Close

	mu        sync.Mutex            // guards what follows
	volumes   map[string]Entry      // by ID
	snapshots map[string]Entry      // by ID
	planned   map[string]unit.Bytes // the space for volumes and growth in progress, by ID
	busy      map[string]int        // by ID: how many operations copy it; -1: an operation changes it
}

// Open opens a directory. It creates the directory if it does not exist, and removes or completes what a crash left
// unfinished. The caller must close the Store.
func Open(o Options) (*Store, error) {
	s := &Store{
		node:      "n" + short(o.Node, nodeDigits),
		reserved:  o.Reserved,
		volumes:   map[string]Entry{},
		snapshots: map[string]Entry{},
		planned:   map[string]unit.Bytes{},
		busy:      map[string]int{},
	}
	if err := s.open(o.Dir); err != nil {
		return nil, errors.Join(fmt.Errorf("open volumes in %s: %w", o.Dir, err), s.Close())
	}
	return s, nil
}

func (s *Store) open(dir string) (err error) {
	for _, sub := range []string{"", dirVolumes, dirSnapshots, dirNew, dirOld} {
		if err := os.MkdirAll(filepath.Join(dir, sub), 0o700); err != nil {
			return err
		}
	}
	if s.dir, err = filepath.EvalSymlinks(dir); err != nil {
		return err
	}
	if s.dir, err = filepath.Abs(s.dir); err != nil {
		return err
	}
	if err := os.Chmod(s.dir, 0o700); err != nil {
		return err
	}
	if err := s.takeLock(); err != nil {
		return err
	}
	if err := s.clean(); err != nil {
		return err
	}
	if s.quota, err = quota.Enforced(s.dir); err != nil {
		return err
	}
	if s.reflink, err = s.canReflink(); err != nil {
		return err
	}
	s.formats = formats()
	if s.volumes, err = s.load(dirVolumes); err != nil {
		return err
	}
	if s.snapshots, err = s.load(dirSnapshots); err != nil {
		return err
	}
	return s.restore()
}

// lockWait is how long Open waits for the lock, and lockPoll is how often it tries. After a process was killed, a child
// that it had just forked keeps the lock until it executes its own program or ends. Chosen: far longer than that takes
// on a busy machine.
const (
	lockWait = 5 * time.Second
	lockPoll = 10 * time.Millisecond
)

func (s *Store) takeLock() error {
	f, err := os.OpenFile(filepath.Join(s.dir, "lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	for until := time.Now().Add(lockWait); ; time.Sleep(lockPoll) {
		err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			s.lock = f
			return nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) || time.Now().After(until) {
			f.Close()
			return fmt.Errorf("another process keeps the volumes there (%w): end it, or choose another directory", err)
		}
	}
}

// Close releases the directory.
func (s *Store) Close() error {
	if s.lock == nil {
		return nil
	}
	return s.lock.Close()
}

// clean removes entries that were being made or removed when the last process ended.
func (s *Store) clean() error {
	for _, sub := range []string{dirNew, dirOld} {
		dir := filepath.Join(s.dir, sub)
		if err := loop.DetachBelow(dir); err != nil {
			return err
		}
		entries, err := os.ReadDir(dir)
		if err != nil {
			return err
		}
		for _, e := range entries {
			if err := discard(filepath.Join(dir, e.Name())); err != nil {
				return err
			}
		}
	}
	return nil
}

// load reads the records. A record that cannot be read is logged and left as it is. The other volumes are not affected,
// and the content can be saved by hand.
func (s *Store) load(sub string) (map[string]Entry, error) {
	found, err := os.ReadDir(filepath.Join(s.dir, sub))
	if err != nil {
		return nil, err
	}
	entries := map[string]Entry{}
	for _, f := range found {
		path := filepath.Join(s.dir, sub, f.Name(), fileRecord)
		entry, err := readRecord(path)
		if err == nil && entry.ID != f.Name() {
			err = fmt.Errorf("it is the record of %q", entry.ID)
		}
		if err != nil {
			slog.Error("a volume cannot be used: read its record", "path", path, "err", err)
			continue
		}
		entries[entry.ID] = entry
	}
	return entries, nil
}

func readRecord(path string) (entry Entry, err error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return entry, err
	}
	return entry, json.Unmarshal(text, &entry)
}

func writeRecord(dir string, entry Entry) error {
	text, err := json.Marshal(entry)
	if err != nil {
		return err
	}
	return durable.Write(filepath.Join(dir, fileRecord), text)
}

// restore corrects the kernel's state by the records: a crash may have left a file system frozen, or a limit that is
// older than its record.
func (s *Store) restore() error {
	for _, v := range s.volumes {
		if v.Backing == localvolume.Directory {
			if err := quota.Limit(s.Content(v), v.Size); err != nil {
				slog.Error("a volume is not limited to its size", "volume", v.ID, "err", err)
			}
			continue
		}
		if err := thaw(s.Content(v)); err != nil {
			return err
		}
	}
	return nil
}

// The hexadecimal digits of a SHA-256 in an ID (chosen). With nameDigits nobody can make two names that collide.
// nodeDigits distinguish the nodes of a cluster, where a collision only makes an error less clear.
const (
	nodeDigits = 8
	nameDigits = 32
)

func short(text string, digits int) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:])[:digits]
}

// idShape is the shape of every ID.
var idShape = regexp.MustCompile(`^[vs]-(n[0-9a-f]{8})-[0-9a-f]{32}$`)

// VolumeID returns the ID of the volume with a name.
func (s *Store) VolumeID(name string) string { return "v-" + s.node + "-" + short(name, nameDigits) }

// SnapshotID returns the ID of the snapshot with a name.
func (s *Store) SnapshotID(name string) string { return "s-" + s.node + "-" + short(name, nameDigits) }

// Volume returns a volume.
func (s *Store) Volume(id string) (Entry, error) { return s.find(s.volumes, "volume", id) }

// Snapshot returns a snapshot.
func (s *Store) Snapshot(id string) (Entry, error) { return s.find(s.snapshots, "snapshot", id) }

func (s *Store) find(in map[string]Entry, what, id string) (Entry, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if entry, ok := in[id]; ok {
		return entry, nil
	}
	if shape := idShape.FindStringSubmatch(id); shape != nil && shape[1] != s.node {
		return Entry{}, fmt.Errorf("%s %q: %w", what, id, ErrOther)
	}
	return Entry{}, fmt.Errorf("%s %q: %w", what, id, ErrNotFound)
}

// Volumes returns all volumes in the order of their IDs.
func (s *Store) Volumes() []Entry { return s.list(s.volumes) }

// Snapshots returns all snapshots in the order of their IDs.
func (s *Store) Snapshots() []Entry { return s.list(s.snapshots) }

func (s *Store) list(in map[string]Entry) []Entry {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := make([]Entry, 0, len(in))
	for _, entry := range in {
		all = append(all, entry)
	}
	slices.SortFunc(all, func(a, b Entry) int { return strings.Compare(a.ID, b.ID) })
	return all
}

// Content returns the path of the image or of the directory of a volume.
func (s *Store) Content(v Entry) string { return contentIn(s.home(v.ID), v) }

// home returns the directory of a volume or a snapshot.
func (s *Store) home(id string) string {
	if strings.HasPrefix(id, "s-") {
		return filepath.Join(s.dir, dirSnapshots, id)
	}
	return filepath.Join(s.dir, dirVolumes, id)
}

func contentIn(home string, e Entry) string {
	if e.Backing == localvolume.Directory {
		return filepath.Join(home, dirData)
	}
	return filepath.Join(home, fileImage)
}

// Machine returns what the machine can do now.
func (s *Store) Machine() (localvolume.Machine, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.machine()
}

func (s *Store) machine() (localvolume.Machine, error) {
	usage, err := disk.Of(s.dir)
	if err != nil {
		return localvolume.Machine{}, err
	}
	space := localvolume.Space{
		Capacity:  usage.Capacity,
		Available: usage.Available,
		Reserved:  s.reserved,
	}
	for _, v := range s.volumes {
		used, err := used(s.Content(v), v)
		if err != nil {
			return localvolume.Machine{}, err
		}
		space.Promised += max(0, v.Size-used)
	}
	for _, size := range s.planned {
		space.Promised += size
	}
	return localvolume.Machine{Quota: s.quota, Formats: s.formats, Space: space}, nil
}

// used returns how much of the disk a volume occupies.
func used(content string, e Entry) (unit.Bytes, error) {
	if e.Backing == localvolume.Directory {
		usage, err := quota.Of(content)
		if errors.Is(err, quota.ErrNone) {
			return 0, nil // without quota the use is not known: its whole size counts as still to be used
		}
		return usage.Bytes, err
	}
	var st unix.Stat_t
	if err := unix.Stat(content, &st); err != nil {
		return 0, &os.PathError{Op: "stat", Path: content, Err: err}
	}
	return unit.Bytes(st.Blocks) * statBlock, nil
}

// full adds ErrFull to an error of a full file system, and what to do.
func (s *Store) full(err error) error {
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
		return fmt.Errorf("%w: %w: free some in the file system of %s", err, ErrFull, s.dir)
	}
	return err
}

// statBlock is the unit of st_blocks (stat(2)).
const statBlock = 512 * unit.Bytes(1)

// begin claims an ID for an operation that changes it, and the IDs that it copies. The returned function releases them.
// A volume is copied by one operation at a time, because its file system is frozen meanwhile; snapshots by any number.
func (s *Store) begin(id string, copies ...string) (func(), error) {
	if s.busy[id] != 0 {
		return nil, fmt.Errorf("%s: %w", id, ErrBusy)
	}
	for _, c := range copies {
		if s.busy[c] < 0 || s.busy[c] > 0 && !strings.HasPrefix(c, "s-") {
			return nil, fmt.Errorf("%s: %w", c, ErrBusy)
		}
	}
	s.busy[id] = -1
	for _, c := range copies {
		s.busy[c]++
	}
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.busy, id)
		delete(s.planned, id)
		for _, c := range copies {
			if s.busy[c]--; s.busy[c] == 0 {
				delete(s.busy, c)
			}
		}
	}, nil
}

// During calls do. No other operation changes or copies the volume meanwhile.
func (s *Store) During(id string, do func() error) error {
	s.mu.Lock()
	end, err := s.begin(id)
	s.mu.Unlock()
	if err != nil {
		return err
	}
	defer end()
	return do()
}
