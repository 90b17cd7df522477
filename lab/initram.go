package lab

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
)

// initRAM returns the initial RAM file system for an image and the guest's program, made once for both.
func initRAM(s store, image Image, program string) (string, error) {
	content, err := os.ReadFile(program)
	if err != nil {
		return "", fmt.Errorf("%w: %w; run make build", ErrCannot, err)
	}
	dir, err := s.get("initrd", digest(image.Dir, string(content)), func(dir string) error {
		return writeInitRAM(filepath.Join(dir, "initrd"), image.drivers, content)
	})
	if err != nil {
		return "", fmt.Errorf("make initial RAM file system: %w", err)
	}
	return filepath.Join(dir, "initrd"), nil
}

// writeInitRAM writes it uncompressed: unpacking would take the guest longer than reading.
func writeInitRAM(path, drivers string, program []byte) error {
	file, err := os.Create(path)
	if err != nil {
		return err
	}
	defer file.Close()
	out := bufio.NewWriter(file)
	a := archive{out: out}
	a.add("init", 0o100755, program)
	a.add("modules", 0o040755, nil)
	entries, err := os.ReadDir(drivers)
	if err != nil {
		return err
	}
	for _, entry := range entries {
		data, err := os.ReadFile(filepath.Join(drivers, entry.Name()))
		if err != nil {
			return err
		}
		a.add("modules/"+entry.Name(), 0o100644, data)
	}
	a.add("TRAILER!!!", 0, nil)
	if a.err != nil {
		return a.err
	}
	if err := out.Flush(); err != nil {
		return err
	}
	return file.Close()
}

// archive writes cpio's "newc" format, the only one that the kernel unpacks
// (Documentation/driver-api/early-userspace/buffer-format.rst): a header of 13 hexadecimal numbers, name and content,
// padded to four bytes.
type archive struct {
	out   io.Writer
	inode int
	err   error
}

func (a *archive) add(name string, mode uint32, data []byte) {
	if a.err != nil {
		return
	}
	a.inode++
	const (
		uid, gid = 0, 0
		links    = 1
		mtime    = 0
		device   = 0 // the numbers of the devices that it is on and that it is
		check    = 0
	)
	var header strings.Builder
	header.WriteString("070701")
	for _, n := range []int{a.inode, int(mode), uid, gid, links, mtime, len(data), device, device, device, device,
		len(name) + 1, check} {
		fmt.Fprintf(&header, "%08X", n)
	}
	header.WriteString(name + "\x00")
	for _, part := range [][]byte{[]byte(header.String()), data} {
		if _, a.err = a.out.Write(append(part, make([]byte, -len(part)&3)...)); a.err != nil {
			return
		}
	}
}
