// Package volumelimit limits how much space the contents of one pod's volumes may take of what all pods of a node
// share: the objects that the pod names, and the files that are made from them.
//
// # Model
//
// Secrets and tokens of all pods are files on one file system in memory. ConfigMaps are files on the node's disk. An
// object has at most one mebibyte, but a pod may mount it a thousand times, with a thousand paths each, and every empty
// key is a file. Therefore the contents for a pod have two limits:
//
//   - an absolute limit: PodMax on each medium, which is far above what programs usually need;
//   - in memory also a limit that depends on the other pods: each pod of the node has a *share*, an equal part of half
//     of the file system. Within its share a pod does not depend on other pods. A pod may use more than its share as
//     long as half of the file system stays free. So however much space the other pods take, the next pod still gets
//     its share, and every pod can get its next token.
//
// A pod that is refused more space keeps the contents that it has; only the additional contents are not made.
//
// # What it does not do
//
// It measures nothing and knows no file system: the caller passes what contents take (File) and what is free.
// core/eviction deals with files that pods write themselves.
package volumelimit

import (
	"fmt"

	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

// Use is what contents take of a file system.
type Use struct {
	Bytes  unit.Bytes
	Inodes int64
}

// Plus returns the sum.
func (u Use) Plus(v Use) Use { return Use{u.Bytes + v.Bytes, u.Inodes + v.Inodes} }

// Minus returns u minus v, in no part less than zero.
func (u Use) Minus(v Use) Use { return Use{max(0, u.Bytes-v.Bytes), max(0, u.Inodes-v.Inodes)} }

func (u Use) within(v Use) bool { return u.Bytes <= v.Bytes && u.Inodes <= v.Inodes }

func (u Use) String() string { return fmt.Sprintf("%s in %d files", u.Bytes, u.Inodes) }

// page is what the size of a file is rounded up to, in bytes: the page size of a tmpfs and the usual block size of a
// disk. With larger pages (arm64 has 64 KiB) files take more than is counted, but such file systems are larger in
// proportion.
const page = 4096

// File returns the use of one file with that many bytes: its pages, its inode, and the inode of the link that programs
// open.
func File(bytes int) Use {
	return Use{Bytes: unit.Bytes((int64(bytes) + page - 1) / page * page), Inodes: 2}
}

// Medium is where contents are stored.
type Medium int

// The media.
const (
	Memory Medium = iota // secrets, tokens, projected volumes and the downward API
	Disk                 // configMaps
)

// PodMax returns how much the contents of all volumes of one pod may take on a medium. Chosen: in memory sixty-four
// objects of the largest size that the API accepts (1 MiB); on disk, where the contents also count for eviction, four
// times as much; and thousands of files. A higher limit lets a pod use more of the node's memory that is not counted as
// the pod's.
func PodMax(m Medium) Use {
	if m == Memory {
		return Use{64 * unit.MiB, 1 << 14}
	}
	return Use{256 * unit.MiB, 1 << 16}
}

// ObjectsMax is how many Secrets and ConfigMaps one pod may name. Each is a watch at the API server for as long as the
// pod is on the node (about 40 KiB of memory on each side). Chosen: several times what the largest dashboards mount.
const ObjectsMax = 256

// Objects says why a pod may not name that many objects; empty: it may.
func Objects(n int) string {
	if n <= ObjectsMax {
		return ""
	}
	return fmt.Sprintf("the pod names %d Secrets and ConfigMaps, the limit for one pod is %d: put more keys into fewer "+
		"objects", n, ObjectsMax)
}

// Pod says why the contents of a pod's volumes may not take that much on a medium; empty: they may.
func Pod(m Medium, wants Use) string {
	if wants.within(PodMax(m)) {
		return ""
	}
	return fmt.Sprintf("the content of the pod's volumes would take %s, the limit for one pod is %s: mount fewer "+
		"objects, or name fewer keys in items", wants, PodMax(m))
}

// FS is a file system that all pods share.
type FS struct{ Total, Free Use }

// share returns the part that each of so many pods can always use.
func (fs FS) share(pods int) Use {
	n := int64(max(1, pods))
	return Use{fs.Total.Bytes / 2 / unit.Bytes(n), fs.Total.Inodes / 2 / n}
}

// Shared says why a pod that uses has of fs may not use wants in total; empty: it may. pods is the maximum number of
// pods on the node.
func Shared(fs FS, pods int, has, wants Use) string {
	more := wants.Minus(has)
	half := Use{fs.Total.Bytes / 2, fs.Total.Inodes / 2}
	share := fs.share(pods)
	if wants.within(share) || more.Plus(half).within(fs.Free) {
		return ""
	}
	return fmt.Sprintf("the content of the pod's volumes would take %s of the node's memory for secrets, of which %s "+
		"are free; while more than half of it is in use, the limit for one pod is %s", wants, fs.Free, share)
}
