package volume

import (
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/plimsoll-dev/plimsoll/internal/host/untrusted"
)

// Names inside a content volume, as in the kubelet: tools in containers watch the first one.
const (
	dataLink    = "..data"
	newDataLink = "..data_tmp"
)

// write replaces the content of dir, atomically for readers, and returns the payload directory that it replaced.
//
//  1. A new payload directory is filled. No reader knows its name.
//  2. ..data is replaced by rename(2) and now points to it. From here on every opened name is in the new payload.
//  3. Links for new names are made, links for names that no longer exist are removed.
//
// A crash between any two steps leaves a volume that readers can use and that the next write completes. The caller
// removes the replaced payload a little later. A reader may be between reading the link ..data and entering the
// directory that it names; and a reader that opens ..data itself first, as Kubernetes documents, sees one payload
// throughout. (The kubelet removes it at once, and such readers fail.) The cost is one more copy of the content for
// that time. If fresh is true, dir is known to be empty. After an error before step 2 nothing of the new payload stays,
// since another try on a full disk must not fill it further. replaced is returned with an error of step 3 too.
func write(dir string, content payload, own owner, fresh bool) (replaced string, err error) {
	name := time.Now().UTC().Format("..2006_01_02_15_04_05.") + fmt.Sprintf("%09d", rand.IntN(1e9))
	err = fill(filepath.Join(dir, name), content, own)
	if err == nil {
		replaced, err = swap(dir, name, fresh)
	}
	if err != nil {
		_ = removeTree(filepath.Join(dir, name)) // what remains is removed when the volume is next set up
		return "", err
	}
	if err := makeLinks(dir, content, own); err != nil || fresh {
		return replaced, err
	}
	return replaced, removeLinks(dir, content)
}

// swap points ..data to the payload name, and returns the payload that it pointed to before.
func swap(dir, name string, fresh bool) (replaced string, err error) {
	data := filepath.Join(dir, dataLink)
	if fresh {
		return "", os.Symlink(name, data)
	}
	replaced, err = os.Readlink(data)
	if err != nil && !os.IsNotExist(err) {
		return "", err
	}
	next := filepath.Join(dir, newDataLink)
	if err := os.Remove(next); err != nil && !os.IsNotExist(err) {
		return "", err
	}
	if err := os.Symlink(name, next); err != nil {
		return "", err
	}
	return replaced, os.Rename(next, data)
}

// fill writes the files of content below a new directory.
func fill(dir string, content payload, own owner) error {
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	if err := setOwnerReadOnly(dir, payloadDirMode, own); err != nil {
		return err
	}
	made := map[string]bool{".": true}
	for _, name := range content.names() {
		if err := fillDirs(dir, path.Dir(name), made, own); err != nil {
			return err
		}
		if err := fillFile(filepath.Join(dir, name), content[name], own); err != nil {
			return fmt.Errorf("write %s: %w", name, err)
		}
	}
	return nil
}

func fillDirs(dir, sub string, made map[string]bool, own owner) error {
	if made[sub] {
		return nil
	}
	if err := fillDirs(dir, path.Dir(sub), made, own); err != nil {
		return err
	}
	made[sub] = true
	full := filepath.Join(dir, sub)
	if err := os.Mkdir(full, 0o700); err != nil {
		return err
	}
	return setOwnerReadOnly(full, payloadDirMode, own)
}

// fillFile creates one file. It uses system calls directly, since os.File would register each file with the poller.
func fillFile(name string, f file, own owner) (err error) {
	fd, err := unix.Open(name, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, unix.Close(fd)) }()
	for data := f.data; len(data) > 0; {
		n, err := unix.Write(fd, data)
		if err != nil && err != unix.EINTR {
			return err
		}
		data = data[max(n, 0):]
	}
	mode := f.mode
	user, group := -1, -1
	if f.user != nil {
		user = int(*f.user)
	}
	if own.group != nil {
		group = int(*own.group)
		mode |= 0o440
	}
	if user >= 0 || group >= 0 {
		if err := unix.Fchown(fd, user, group); err != nil {
			return err
		}
	}
	return unix.Fchmod(fd, mode)
}

// setOwnerReadOnly sets the mode of a directory and, with an fsGroup, lets the group read.
func setOwnerReadOnly(dir string, mode uint32, own owner) error {
	if own.group != nil {
		if err := os.Lchown(dir, -1, int(*own.group)); err != nil {
			return err
		}
		mode |= 0o550 | unix.S_ISGID
	}
	return unix.Chmod(dir, mode)
}

// topLevel returns the first elements of content's paths.
func (p payload) topLevel() map[string]bool {
	out := make(map[string]bool, len(p))
	for name := range p {
		first, _, _ := strings.Cut(name, "/")
		out[first] = true
	}
	return out
}

// makeLinks makes the missing links for content's names.
func makeLinks(dir string, content payload, own owner) error {
	for name := range content.topLevel() {
		link := filepath.Join(dir, name)
		if err := os.Symlink(path.Join(dataLink, name), link); err != nil {
			if os.IsExist(err) {
				continue // from before, or a mount point of another volume, which then is visible
			}
			return err
		}
		if own.group != nil {
			if err := os.Lchown(link, -1, int(*own.group)); err != nil {
				return err
			}
		}
	}
	return nil
}

// removeLinks removes the links for names that content no longer has.
func removeLinks(dir string, content payload) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	keep := content.topLevel()
	for _, e := range entries {
		name := e.Name()
		if e.Type() != fs.ModeSymlink || keep[name] || name == dataLink {
			continue
		}
		full := filepath.Join(dir, name)
		if target, err := os.Readlink(full); err != nil || target != path.Join(dataLink, name) {
			continue
		}
		if err := os.Remove(full); err != nil {
			return err
		}
	}
	return nil
}

// removePayloads removes every payload directory except the current one: replaced ones, and those that a crash left
// incomplete.
func removePayloads(dir string) error {
	current, err := os.Readlink(filepath.Join(dir, dataLink))
	if err != nil {
		return err
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if name := e.Name(); e.IsDir() && strings.HasPrefix(name, "..") && name != current {
			if err := removeTree(filepath.Join(dir, name)); err != nil {
				return err
			}
		}
	}
	return nil
}

// hasContent reports whether an earlier agent left a complete payload in dir.
func hasContent(dir string) bool {
	_, err := os.Stat(filepath.Join(dir, dataLink))
	return err == nil
}

// holds reports whether dir already contains exactly content. That is so after a restart of the agent, and then nothing
// needs to be written. In any doubt it returns false.
func holds(dir string, content payload, own owner) bool {
	current, err := os.Readlink(filepath.Join(dir, dataLink))
	if err != nil || strings.Contains(current, "/") {
		return false
	}
	root := filepath.Join(dir, current)
	files := 0
	err = filepath.WalkDir(root, func(name string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			files++
		}
		return err
	})
	if err != nil || files != len(content) {
		return false
	}
	for name, f := range content {
		if !holdsFile(filepath.Join(root, name), f, own) {
			return false
		}
	}
	for name := range content.topLevel() {
		if _, err := os.Lstat(filepath.Join(dir, name)); err != nil {
			return false
		}
	}
	return true
}

func holdsFile(name string, f file, own owner) bool {
	var st unix.Stat_t
	if err := unix.Lstat(name, &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFREG {
		return false
	}
	mode := f.mode
	user := int64(0)
	group := int64(0)
	if f.user != nil {
		user = *f.user
	}
	if own.group != nil {
		mode, group = mode|0o440, *own.group
	}
	if st.Mode&0o7777 != mode || int64(st.Uid) != user && os.Getuid() == 0 || int64(st.Gid) != group && os.Getuid() == 0 {
		return false
	}
	return untrusted.HasContent(name, f.data)
}

// clearUnfinished removes directories of emptyDirs that a crash left incomplete.
func clearUnfinished(plugin string) error {
	entries, err := os.ReadDir(plugin)
	if os.IsNotExist(err) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), unfinished) {
			if err := removeTree(filepath.Join(plugin, e.Name())); err != nil {
				return err
			}
		}
	}
	return nil
}
