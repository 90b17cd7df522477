package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	manifest "k8s.io/kubernetes/test/utils/image"
)

// Some tests pull an image although it is on the node already. The run's own registry has these images, and the node's
// runtime asks it instead of the registry that the images' names have (mirrored). It has no other images, so that a
// pull of a missing image fails at once.
const (
	mirrored        = "registry.k8s.io"
	registryPort    = "5055" // chosen; tests use 5000 themselves
	registryAddress = "127.0.0.1:" + registryPort
	registryListens = "0.0.0.0:" + registryPort // in the run's network namespace, for its other nodes too
	registryTimeout = 20 * time.Second          // chosen: it listens within a second

	// pushes is how often one image is pushed at most. ctr 1.6 sometimes fails with gRPC's "unexpected EOF" (CI saw it
	// once; reported without a cause in containerd/containerd#5734).
	pushes = 3
)

// pulled returns the names of the images that tests pull.
func pulled() []string {
	return []string{manifest.GetE2EImage(manifest.Agnhost), manifest.GetE2EImage(manifest.Kitten)}
}

// registryConfig is the registry's configuration (distribution's docs/content/about/configuration.md). Names of files
// are quoted with %q, which also gives valid YAML.
const registryConfig = `version: 0.1
log: {level: warn}
storage: {filesystem: {rootdirectory: %q}}
http: {addr: %q}
`

// registry is the registry's process.
type registry struct{ *exec.Cmd }

// startRegistry starts the registry with its files in dir, and returns when it answers.
func startRegistry(ctx context.Context, c config, dir string) (*registry, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	file := filepath.Join(dir, "config.yaml")
	text := fmt.Sprintf(registryConfig, filepath.Join(dir, "images"), registryListens)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		return nil, err
	}
	log, err := os.Create(filepath.Join(c.logs, "registry.log"))
	if err != nil {
		return nil, err
	}
	defer log.Close() // the process has its own
	r := &registry{exec.Command(c.registry, "serve", file)}
	r.Stdout, r.Stderr = log, log
	r.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if err := r.Start(); err != nil {
		return nil, fmt.Errorf("start the registry of the tests: %w (make bin/registry builds it)", err)
	}
	ctx, cancel := context.WithTimeout(ctx, registryTimeout)
	defer cancel()
	for {
		connection, err := new(net.Dialer).DialContext(ctx, "tcp", registryAddress)
		if err == nil {
			return r, connection.Close()
		}
		select {
		case <-ctx.Done():
			_ = r.stop() // the time-out is the error
			return nil, fmt.Errorf("start the registry of the tests: no answer within %v: %w (%s says why)",
				registryTimeout, err, log.Name())
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// stop ends the process. The files are in the cluster's directory, which is removed.
func (r *registry) stop() error {
	if err := r.Process.Kill(); err != nil {
		return fmt.Errorf("stop the registry of the tests: %w", err)
	}
	_ = r.Wait() // it says that it was killed
	return nil
}

// push copies the images that tests pull from the node's runtime to the registry.
func (k *cluster) push(ctx context.Context) error {
	progress("push images")
	for _, name := range pulled() {
		to := registryAddress + strings.TrimPrefix(name, mirrored)
		for push := 1; ; push++ {
			err := k.ctr(ctx, k.runtime(), "images", "push", "--plain-http", to, name)
			if err == nil {
				break
			}
			if push == pushes {
				return err
			}
			progress("push again, after push %d of %d failed: %v", push, pushes, err)
		}
	}
	return nil
}
