// Command registry is the distribution project's registry with what our tests need and no more: images in files, and
// accounts in an htpasswd file. It is a separate module so that the registry's dependencies do not become ours.
// `make bin/registry` builds it; `registry serve CONFIG` runs it.
package main

import (
	"os"

	"github.com/distribution/distribution/v3/registry"
	_ "github.com/distribution/distribution/v3/registry/auth/htpasswd"
	_ "github.com/distribution/distribution/v3/registry/storage/driver/filesystem"
)

func main() {
	if err := registry.RootCmd.Execute(); err != nil {
		os.Exit(1) // cobra has printed it
	}
}
