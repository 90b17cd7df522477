package store

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
)

// Places in the superblock of an ext4, which begins at byte 1,024 and is little-endian (the kernel's
// Documentation/filesystems/ext4/super.rst).
const (
	superAt          = 1024
	superSize        = 1024
	superBlocks      = 0x4   // s_blocks_count_lo
	superLogBlock    = 0x18  // s_log_block_size: a block has 1,024 << this bytes
	superMagic       = 0x38  // s_magic
	superIncompat    = 0x60  // s_feature_incompat
	superBlocksHigh  = 0x150 // s_blocks_count_hi, with incompat64bit
	ext4Magic        = 0xEF53
	incompat64bit    = 0x80
	logBlockSizeMax  = 6 // 64 KiB
	superBlockUnit   = 1024
	blocksHighShifts = 32
)

// Fills reports whether a device or image has an ext4 that is as large as it is, except for less than one block: then
// there is nothing to grow. It reports false for other file systems.
func Fills(path string) (bool, error) {
	f, err := os.Open(path)
	if err != nil {
		return false, err
	}
	defer f.Close()
	size, err := f.Seek(0, io.SeekEnd)
	if err != nil {
		return false, err
	}
	super := make([]byte, superSize)
	if _, err := f.ReadAt(super, superAt); errors.Is(err, io.EOF) {
		return false, nil
	} else if err != nil {
		return false, fmt.Errorf("read the superblock: %w", err)
	}
	return fills(super, size), nil
}

func fills(super []byte, size int64) bool {
	little := binary.LittleEndian
	log := little.Uint32(super[superLogBlock:])
	if little.Uint16(super[superMagic:]) != ext4Magic || log > logBlockSizeMax {
		return false
	}
	blocks := uint64(little.Uint32(super[superBlocks:]))
	if little.Uint32(super[superIncompat:])&incompat64bit != 0 {
		blocks |= uint64(little.Uint32(super[superBlocksHigh:])) << blocksHighShifts
	}
	return blocks >= uint64(size)/(superBlockUnit<<log)
}
