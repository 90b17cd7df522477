package lab

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
)

// cargoFiles are the files of `make build` that guests get. The control plane stays on the host, unless Options.Cargo
// has it.
var cargoFiles = []string{"plimsoll", "cni/plimsoll-hostport", "images/pause.tar", "images/workload.tar"}

// guestProgram is the program that package lab runs in guests, relative to the directory of `make build`.
const guestProgram = "lab/guest"

// cargo returns the image of a file system with the built binaries and container images, and more of them.
func cargo(ctx context.Context, s store, bin string, more []string) (string, error) {
	parts := []string{}
	for _, name := range slices.Concat(cargoFiles, more) {
		content, err := os.ReadFile(filepath.Join(bin, name))
		if err != nil {
			return "", fmt.Errorf("%w: %w; run make build", ErrCannot, err)
		}
		parts = append(parts, name, string(content))
	}
	dir, err := s.get("cargo", digest(parts...), func(dir string) error {
		tree := filepath.Join(dir, "tree")
		for i := 0; i < len(parts); i += 2 {
			path := filepath.Join(tree, parts[i])
			if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
				return err
			}
			if err := os.WriteFile(path, []byte(parts[i+1]), 0o755); err != nil {
				return err
			}
		}
		if err := makeExt4(ctx, filepath.Join(dir, "cargo.ext4"), tree, "cargo"); err != nil {
			return err
		}
		return os.RemoveAll(tree)
	})
	if err != nil {
		return "", fmt.Errorf("make cargo: %w", err)
	}
	return filepath.Join(dir, "cargo.ext4"), nil
}
