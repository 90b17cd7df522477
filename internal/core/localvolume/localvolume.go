// Package localvolume decides about volumes that are kept on one machine: what a new volume is made of, how large it
// is, whether it fits, and whether a volume that exists already is the one that is asked for.
//
// # Model
//
// A volume has a backing. A directory is limited by project quota, where the file system that keeps the volumes
// enforces it. An image is a sparse file, which the node presents as a loop device: with a file system of its own, or
// as a block device. A Wish is what is asked for, a Plan what is made for it, and a Machine what the machine can do.
//
// # Invariants
//
//   - A plan can be carried out: its backing is one that the machine can limit, and its size is what the wish allows.
//   - Volumes do not use each other's space. What a volume may still fill counts as used from the moment when it is
//     planned (Space.Free), so that a sparse file can always be filled to its size.
//   - A volume is never given out as a block device if it was made as a file system, and the other way round: whoever
//     can write the bytes of a file system could attack the kernel that mounts it.
//
// The package makes nothing, and knows nothing of CSI: its errors have a kind, which the caller translates. Blocks that
// files share by reflinks count for each of the files. The space that is needed when one of them changes such a block
// does not count.
package localvolume

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

// Backing is what a volume is made of.
type Backing string

const (
	Directory Backing = "directory"
	Image     Backing = "image"
)

// ParameterBacking is the parameter of a StorageClass that names the backing; without it the machine chooses.
const ParameterBacking = "backing"

const (
	ext4 = "ext4"
	xfs  = "xfs"
)

// Granularity is what sizes are multiples of: a page, and a block of the file systems that keep volumes.
const Granularity = 4 * unit.KiB

// sizeDefault is the size of a volume of which no size is asked (chosen; claims always have one).
const sizeDefault = unit.GiB

// sizeMin is the smallest volume. mkfs.ext4 makes no journal on less than 8 MiB; mkfs.xfs refuses less than 300 MiB
// (xfsprogs 5.19).
func sizeMin(backing Backing, fsType string) unit.Bytes {
	switch {
	case backing == Directory, fsType == "":
		return unit.MiB
	case fsType == xfs:
		return 300 * unit.MiB
	}
	return 16 * unit.MiB
}

// Kind says what is wrong with a request.
type Kind int

const (
	Invalid      Kind = iota // it can never be carried out, on no machine
	OutOfRange               // no such size can be made
	Exhausted                // this machine has no room for it now, or lacks what it needs
	Exists                   // there is another volume of that name
	Precondition             // not now: something uses the volume
)

// Error is a request that is refused.
type Error struct {
	Kind Kind
	Text string
}

func (e *Error) Error() string { return e.Text }

// Errorf returns an error of a kind.
func Errorf(kind Kind, format string, args ...any) error {
	return &Error{Kind: kind, Text: fmt.Sprintf(format, args...)}
}

// Wish is what is asked for.
type Wish struct {
	Required   unit.Bytes // 0: not said
	Limit      unit.Bytes // 0: none
	Block      bool       // a block device, not a file system
	FSType     string     // empty: any
	Parameters map[string]string
	Source     *Source // nil: an empty volume
}

// Source is the volume or snapshot whose content a new volume begins with.
type Source struct {
	Name string // in errors
	Plan Plan
}

// Machine is what a machine can do.
type Machine struct {
	Quota   bool     // the file system that keeps volumes enforces project quota
	Formats []string // file systems that can be made here
	Space   Space
}

// Space is the space of the file system that keeps the volumes.
type Space struct {
	Capacity  unit.Bytes
	Available unit.Bytes
	Promised  unit.Bytes // what the volumes that there are may still fill
	Reserved  int        // percent of the capacity that volumes leave free
}

// Free is how large a new volume may be.
func (s Space) Free() unit.Bytes {
	free := s.Available - s.Promised - s.Capacity/100*unit.Bytes(s.Reserved)
	return max(0, free/Granularity*Granularity)
}

// Plan is how a volume is made.
type Plan struct {
	Backing Backing
	Block   bool
	FSType  string // of an image that is no block device; else empty
	Size    unit.Bytes
}

// makeRoom is what a user can do about a volume that does not fit.
const makeRoom = "delete claims, snapshots or files on that disk"

// Decide returns how a volume is made.
func Decide(w Wish, m Machine) (Plan, error) {
	for _, key := range slices.Sorted(maps.Keys(w.Parameters)) {
		if key != ParameterBacking {
			return Plan{}, Errorf(Invalid, "parameter %q of the StorageClass: unknown: want %s", key, ParameterBacking)
		}
	}
	plan, err := chooseBacking(w, m)
	if err != nil {
		return Plan{}, err
	}
	if plan.Size, err = chooseSize(w, plan); err != nil {
		return Plan{}, err
	}
	if free := m.Space.Free(); plan.Size > free {
		return Plan{}, Errorf(Exhausted,
			"no room for %v: %v are free for new volumes (%v on the disk, of which other volumes may still fill %v, "+
				"and %d percent of %v stay free): %s, or ask for less",
			plan.Size, free, m.Space.Available, m.Space.Promised, m.Space.Reserved, m.Space.Capacity, makeRoom)
	}
	return plan, nil
}

// Possible reports whether a machine could make such a volume if it had the room.
func Possible(w Wish, m Machine) bool {
	_, err := chooseBacking(w, m)
	return err == nil
}

func chooseBacking(w Wish, m Machine) (Plan, error) {
	wanted := Backing(w.Parameters[ParameterBacking])
	switch wanted {
	case Directory, Image, "":
	default:
		return Plan{}, Errorf(
			Invalid, "parameter %s of the StorageClass: %q: want %s or %s", ParameterBacking, wanted, Directory, Image)
	}
	if w.Source != nil {
		return likeSource(w, wanted, m)
	}
	switch {
	case w.Block && wanted == Directory:
		return Plan{}, Errorf(
			Invalid, "a block device cannot be a directory: leave out the parameter %s, or set it to %s", ParameterBacking,
			Image)
	case w.Block:
		return Plan{Backing: Image, Block: true}, nil
	case wanted == Directory && w.FSType != "":
		return Plan{}, Errorf(
			Invalid, "a directory has no file system of its own: leave out the file system type %q, or set the parameter "+
				"%s to %s", w.FSType, ParameterBacking, Image)
	case wanted == Directory && !m.Quota:
		return Plan{}, Errorf(Exhausted,
			"no directory can be limited here: the file system that keeps volumes has no project quota "+
				"(ext4 with mkfs.ext4 -O project,quota -E quotatype=prjquota, or xfs, mounted with prjquota): "+
				"set the parameter %s to %s, or leave it out",
			ParameterBacking, Image)
	case wanted == Directory, wanted == "" && w.FSType == "" && m.Quota:
		return Plan{Backing: Directory}, nil
	}
	plan := Plan{Backing: Image, FSType: w.FSType}
	if plan.FSType == "" {
		plan.FSType = ext4
	}
	return plan, m.canFormat(plan.FSType)
}

// likeSource returns the plan of a volume that begins as a copy: it is made as its source is.
func likeSource(w Wish, wanted Backing, m Machine) (Plan, error) {
	source := w.Source.Plan
	switch {
	case w.Block != source.Block:
		return Plan{}, Errorf(Invalid, "%s is %s, and cannot become %s", w.Source.Name, mode(source.Block), mode(w.Block))
	case wanted != "" && wanted != source.Backing:
		return Plan{}, Errorf(
			Invalid, "%s is kept as %s, the parameter %s asks for %s", w.Source.Name, source.Backing, ParameterBacking,
			wanted)
	case w.FSType != "" && w.FSType != source.FSType:
		return Plan{}, Errorf(Invalid, "%s has the file system %q, not %q", w.Source.Name, source.FSType, w.FSType)
	case source.Backing == Directory && !m.Quota:
		return Plan{}, Errorf(
			Exhausted, "%s is a directory, and none can be limited here any more: mount the file system that keeps volumes "+
				"with prjquota", w.Source.Name)
	}
	return Plan{Backing: source.Backing, Block: source.Block, FSType: source.FSType}, nil
}

func mode(block bool) string {
	if block {
		return "a block device"
	}
	return "a file system"
}

func (m Machine) canFormat(fsType string) error {
	switch {
	case slices.Contains(m.Formats, fsType):
		return nil
	case fsType == ext4 || fsType == xfs:
		return Errorf(Exhausted, "file system %s cannot be made on this machine: mkfs.%s is missing", fsType, fsType)
	}
	return Errorf(Invalid, "file system %q: want %s or %s", fsType, ext4, xfs)
}

// chooseSize returns the smallest size that the wish allows.
func chooseSize(w Wish, plan Plan) (unit.Bytes, error) {
	if w.Required < 0 || w.Limit < 0 {
		return 0, Errorf(OutOfRange, "size %d, limit %d: below zero", w.Required, w.Limit)
	}
	size := max(w.Required, sizeMin(plan.Backing, plan.FSType))
	if w.Source != nil {
		size = max(size, w.Source.Plan.Size)
	} else if w.Required == 0 {
		size = sizeDefault
		if w.Limit > 0 {
			size = max(min(size, w.Limit/Granularity*Granularity), sizeMin(plan.Backing, plan.FSType))
		}
	}
	rounded, err := roundUp(size)
	if err != nil {
		return 0, err
	}
	if w.Limit > 0 && rounded > w.Limit {
		why := ""
		if w.Source != nil {
			why = fmt.Sprintf("; %s has %v", w.Source.Name, w.Source.Plan.Size)
		}
		return 0, Errorf(OutOfRange, "no size between %d and %d bytes: sizes are multiples of %v, the smallest is %v%s",
			w.Required, w.Limit, Granularity, sizeMin(plan.Backing, plan.FSType), why)
	}
	return rounded, nil
}

// sizeMax is the largest size of a file on ext4 with blocks of 4 KiB.
const sizeMax = 16 * unit.TiB

func roundUp(size unit.Bytes) (unit.Bytes, error) {
	if size > sizeMax-Granularity {
		return 0, Errorf(OutOfRange, "size %v: more than %v in one volume", size, sizeMax-Granularity)
	}
	return (size + Granularity - 1) / Granularity * Granularity, nil
}

// Same returns an error unless a volume that exists is what a wish of its name asks for.
func Same(w Wish, plan Plan, madeFrom, wantedFrom string) error {
	wanted := Backing(w.Parameters[ParameterBacking])
	var differs []string
	add := func(differ bool, format string, args ...any) {
		if differ {
			differs = append(differs, fmt.Sprintf(format, args...))
		}
	}
	add(w.Required > plan.Size || w.Limit > 0 && w.Limit < plan.Size, "it has %v", plan.Size)
	add(w.Block != plan.Block, "it is %s", mode(plan.Block))
	add(wanted != "" && wanted != plan.Backing, "it is kept as %s", plan.Backing)
	add(!w.Block && w.FSType != "" && w.FSType != plan.FSType, "its file system is %q", plan.FSType)
	add(madeFrom != wantedFrom, "it was made from %q", madeFrom)
	if differs == nil {
		return nil
	}
	return Errorf(Exists, "a volume of this name exists and is another one: %s", strings.Join(differs, ", "))
}

// Expand returns the size that a volume is to have, and whether that is more than it has.
func Expand(plan Plan, required, limit unit.Bytes, space Space) (unit.Bytes, bool, error) {
	if required < 0 || limit < 0 {
		return 0, false, Errorf(OutOfRange, "size %d, limit %d: below zero", required, limit)
	}
	size, err := roundUp(max(required, plan.Size))
	switch {
	case err != nil:
		return 0, false, err
	case limit > 0 && size > limit:
		return 0, false, Errorf(
			OutOfRange, "no size between %d and %d bytes: the volume has %v, and sizes are multiples of %v", required, limit,
			plan.Size, Granularity)
	case size == plan.Size:
		return size, false, nil
	case size-plan.Size > space.Free():
		return 0, false, Errorf(Exhausted, "no room for %v more: %v are free for volumes: %s, or ask for less",
			size-plan.Size, space.Free(), makeRoom)
	}
	return size, true, nil
}

// Use is who has a volume now.
type Use struct {
	Published []string // paths at which pods have it
	Open      bool     // the node holds it ready: its file system is mounted, or its device attached
}

// Publish returns an error if a volume for a single pod has another one already.
func Publish(single bool, use Use, target string) error {
	if !single {
		return nil
	}
	for _, path := range use.Published {
		if path != target {
			return Errorf(Precondition, "the volume is for a single pod, and another one has it at %s", path)
		}
	}
	return nil
}

// Delete returns an error if a volume may not be removed. A device whose file system is mounted nowhere on the node
// does not prevent it: either the device goes soon, or a mount namespace that was copied meanwhile holds it. Its space
// on the disk is freed when it goes.
func Delete(plan Plan, use Use) error {
	if len(use.Published) > 0 || use.Open && plan.Block {
		return Errorf(Precondition, "the volume is in use on this node%s", at(use))
	}
	return nil
}

func at(use Use) string {
	if len(use.Published) == 0 {
		return ""
	}
	return " at " + strings.Join(use.Published, ", ")
}

// Copy says how the content of a volume may be copied.
type Copy int

const (
	CopyNow    Copy = iota // nothing writes it, or the copy is made at one instant
	CopyFrozen             // its file system is to be frozen meanwhile
)

// Snapshot returns how the content of a volume is copied so that the copy is of one instant; an error if that is not
// possible. reflink: the file system that keeps volumes can share blocks between files.
func Snapshot(plan Plan, use Use, reflink bool) (Copy, error) {
	inUse := use.Open || len(use.Published) > 0
	switch {
	case !inUse:
		return CopyNow, nil
	case plan.Backing == Image && !plan.Block:
		return CopyFrozen, nil
	case plan.Backing == Image && reflink:
		return CopyNow, nil
	case plan.Block:
		return CopyNow, Errorf(
			Precondition,
			"a block device that is in use cannot be copied at one instant%s: the file system that keeps volumes "+
				"has no reflinks; stop the pods that use it", at(use))
	}
	return CopyNow, Errorf(
		Precondition,
		"a directory that is in use cannot be copied at one instant%s: stop the pods that use it, or use a "+
			"StorageClass with the parameter %s: %s", at(use), ParameterBacking, Image)
}

// SnapshotFits returns an error if there is no room for a snapshot of a volume that fills so much.
func SnapshotFits(fills unit.Bytes, space Space, reflink bool) error {
	if reflink || fills <= space.Free() {
		return nil
	}
	return Errorf(Exhausted, "no room for a snapshot: the volume fills %v, and %v are free: %s", fills, space.Free(),
		makeRoom)
}
