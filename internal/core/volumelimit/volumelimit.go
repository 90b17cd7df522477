// Package volumelimit says how much of what all pods of a node share one pod may take for the content of its volumes: the
// objects that it names, and the files that are made of them.
//
// # Model
//
// Secrets and tokens of all pods are files on one file system in memory, configMaps are files on the node's disk. An
// object is a mebibyte at most, but a pod may mount it a thousand times, with a thousand paths each, and every empty
// key is a file. What is made for a pod is therefore bounded twice:
//
//   - by itself: PodMax on each medium, which is far above what programs are given;
//   - in memory also by the others: each pod of the node has a *share*, an equal part of half of the file system. Up to
//     it nobody else's content counts. What is more than the share is given as long as half of the file system stays
//     free. So however many pods take all they may, the next one still gets its share, and every pod can be given its
//     next token.
//
// A pod that is refused keeps what it has; only what it asks for in addition is not made.
//
// # What it does not do
//
// It counts nothing and knows no file system: its caller says what content takes (Files) and what is free. What pods
// write themselves is the business of core/eviction.
package volumelimit

import (
	"fmt"

	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

// Use is what content takes of a file system.
type Use struct {
	Bytes  unit.Bytes
	Inodes int64
}

// Plus adds two uses.
func (u Use) Plus(v Use) Use { return Use{u.Bytes + v.Bytes, u.Inodes + v.Inodes} }

// Minus takes v from u; nothing is less than zero.
func (u Use) Minus(v Use) Use { return Use{max(0, u.Bytes-v.Bytes), max(0, u.Inodes-v.Inodes)} }

func (u Use) within(v Use) bool { return u.Bytes <= v.Bytes && u.Inodes <= v.Inodes }

func (u Use) String() string { return fmt.Sprintf("%s in %d files", u.Bytes, u.Inodes) }

// page is what a file's content is rounded up to, in bytes: the page of a tmpfs and the usual block of a disk. Larger
// pages (arm64 has 64 KiB) take more than is counted, on file systems whose size grows alike.
const page = 4096

// File is the use of one file of that many bytes: its pages, its inode and that of the link which programs open.
func File(bytes int) Use {
	return Use{Bytes: unit.Bytes((int64(bytes) + page - 1) / page * page), Inodes: 2}
}

// Medium is where content lies.
type Medium int

// Media.
const (
	Memory Medium = iota // secrets, tokens, and whatever is projected or told of the pod
	Disk                 // configMaps
)

// PodMax returns the most that the content of one pod's volumes may take together on a medium. Chosen: in memory
// sixty-four objects of the greatest size that the API admits (1 MiB), on a disk, where it also counts for eviction,
// four times as many, and thousands of files. Raising it lets a pod take more of the node's memory, which nobody counts
// as the pod's.
func PodMax(m Medium) Use {
	if m == Memory {
		return Use{64 * unit.MiB, 1 << 14}
	}
	return Use{256 * unit.MiB, 1 << 16}
}

// ObjectsMax is the most Secrets and ConfigMaps that one pod may name. Each is one watch at the API server for as long
// as the pod is here (about 40 KiB of memory on each side). Chosen: several times what the largest dashboards mount.
const ObjectsMax = 256

// Objects says why a pod may not name that many objects; empty: it may.
func Objects(n int) string {
	if n <= ObjectsMax {
		return ""
	}
	return fmt.Sprintf("the pod names %d Secrets and ConfigMaps, at most %d are followed for one pod: put more keys into fewer objects", n, ObjectsMax)
}

// Pod says why the content of a pod's volumes may not take that much together on a medium; empty: it may.
func Pod(m Medium, wants Use) string {
	if wants.within(PodMax(m)) {
		return ""
	}
	return fmt.Sprintf("the content of the pod's volumes would take %s, one pod may have %s: mount fewer objects, or name fewer keys in items", wants, PodMax(m))
}

// FS is a file system that pods share.
type FS struct{ Total, Free Use }

// share is what each of so many pods has for sure.
func (fs FS) share(pods int) Use {
	n := int64(max(1, pods))
	return Use{fs.Total.Bytes / 2 / unit.Bytes(n), fs.Total.Inodes / 2 / n}
}

// Shared says why a pod that has some of fs already may not have wants in all; empty: it may. pods is how many the node
// takes.
func Shared(fs FS, pods int, has, wants Use) string {
	more := wants.Minus(has)
	half := Use{fs.Total.Bytes / 2, fs.Total.Inodes / 2}
	share := fs.share(pods)
	if wants.within(share) || more.Plus(half).within(fs.Free) {
		return ""
	}
	return fmt.Sprintf("the content of the pod's volumes would take %s of the node's memory for secrets, of which %s are free; while it is more than half full one pod may have %s", wants, fs.Free, share)
}
