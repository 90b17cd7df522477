package lab

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

// A store keeps things that take long to make, each in a directory named KIND-DIGEST, with the digest of all its
// inputs. Things in a store are complete and never change.
type store struct{ dir string }

// CacheVariable is the environment variable with the directory of images.
const CacheVariable = "PLIMSOLL_LAB_CACHE"

// openStore opens the cache directory: the given one, else that of the environment, else plimsoll-lab in the user's
// cache directory (XDG base directory specification).
func openStore(dir string) (store, error) {
	if dir == "" {
		dir = os.Getenv(CacheVariable)
	}
	if dir == "" {
		base, err := os.UserCacheDir()
		if err != nil {
			return store{}, fmt.Errorf("find the cache directory: %w (set %s)", err, CacheVariable)
		}
		dir = filepath.Join(base, "plimsoll-lab")
	}
	dir, err := filepath.Abs(dir)
	if err != nil {
		return store{}, fmt.Errorf("find the cache directory: %w", err)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return store{}, fmt.Errorf("make the cache directory: %w", err)
	}
	return store{dir}, nil
}

// digest returns the digest of all parts, in their order.
func digest(parts ...string) string {
	sum := sha256.New()
	for _, part := range parts {
		fmt.Fprintf(sum, "%d:%s,", len(part), part)
	}
	return hex.EncodeToString(sum.Sum(nil)[:16])
}

// get returns the directory of a thing; it makes the thing first if the store does not have it. While one process makes
// it, others that need it wait. make gets an empty directory.
func (s store) get(kind, digest string, make func(dir string) error) (string, error) {
	dir := filepath.Join(s.dir, kind+"-"+digest)
	lock, err := os.OpenFile(filepath.Join(s.dir, kind+".lock"), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return "", err
	}
	defer lock.Close()
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		return "", fmt.Errorf("lock %s: %w", lock.Name(), err)
	}
	if _, err := os.Stat(dir); err == nil {
		return dir, s.touch(dir)
	} else if !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	if err := s.prune(kind); err != nil {
		return "", err
	}
	part := filepath.Join(s.dir, kind+".part") // what a crash left there is incomplete
	if err := errors.Join(os.RemoveAll(part), os.Mkdir(part, 0o755)); err != nil {
		return "", err
	}
	if err := make(part); err != nil {
		return "", errors.Join(err, os.RemoveAll(part))
	}
	return dir, os.Rename(part, dir)
}

// touch records that a thing is in use.
func (s store) touch(dir string) error {
	now := time.Now()
	return os.Chtimes(dir, now, now)
}

// Things that were not used for keepUnused are removed when another of their kind is made, except the keepNewest last
// used (chosen: another branch's image is soon needed again; a cargo is 40 MB and useful until the next build).
const (
	keepUnused = 24 * time.Hour
	keepNewest = 3
)

func (s store) prune(kind string) error {
	dirs, err := filepath.Glob(filepath.Join(s.dir, kind+"-*"))
	if err != nil {
		return err
	}
	used := map[string]time.Time{}
	for _, dir := range dirs {
		info, err := os.Stat(dir)
		if err != nil {
			return err
		}
		used[dir] = info.ModTime()
	}
	slices.SortFunc(dirs, func(a, b string) int {
		if byTime := used[b].Compare(used[a]); byTime != 0 {
			return byTime
		}
		return strings.Compare(a, b)
	})
	for _, dir := range dirs[min(keepNewest, len(dirs)):] {
		if time.Since(used[dir]) > keepUnused {
			if err := os.RemoveAll(dir); err != nil {
				return err
			}
		}
	}
	return nil
}
