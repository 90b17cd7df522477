package pullsecret

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
)

const (
	// filesLife is how long the node's files are cached, as in upstream's defaultDockerConfigProvider.
	filesLife = 5 * time.Minute

	// fileMax bounds such a file, in bytes. Chosen: the largest size of a secret.
	fileMax = 1 << 20
)

// Files are the docker configuration of the node, whose credentials all pods may use. As the kubelet, it looks for
// config.json in the root directory, in the working directory, in $HOME/.docker and in /.docker, and then for the old
// .dockercfg in the root directory, the working directory, $HOME and /. The first file that can be read is used.
type Files struct {
	paths []configPath
	now   func() time.Time

	mu    sync.Mutex // guards everything that follows
	until time.Time  // when the files are read again
	ring  *Keyring   // the content as read last
}

// configPath is where a configuration may be, and the key of its form.
type configPath struct{ path, form string }

// NewFiles returns the Files of a node. home is $HOME; empty: nothing is read there.
func NewFiles(rootDir, home string) *Files {
	f := &Files{now: time.Now}
	add := func(dir, name, form string) {
		f.paths = append(f.paths, configPath{path: filepath.Join(dir, name), form: form})
	}
	for _, dir := range []string{rootDir, ".", inHome(home, ".docker"), "/.docker"} {
		if dir != "" {
			add(dir, "config.json", corev1.DockerConfigJsonKey)
		}
	}
	for _, dir := range []string{rootDir, ".", home, "/"} {
		if dir != "" {
			add(dir, ".dockercfg", corev1.DockerConfigKey)
		}
	}
	return f
}

func inHome(home, dir string) string {
	if home == "" {
		return ""
	}
	return filepath.Join(home, dir)
}

// Keyring returns the credentials of the node's files, as of at most filesLife ago. The caller must not change it. The
// error names the files that exist and cannot be read; the Keyring has the credentials of the others.
func (f *Files) Keyring() (*Keyring, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	now := f.now()
	if f.ring != nil && now.Before(f.until) {
		return f.ring, nil
	}
	f.ring, f.until = &Keyring{}, now.Add(filesLife)
	var errs []error
	for _, at := range f.paths {
		text, err := readBounded(at.path)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err == nil {
			err = f.ring.addText(at.form, text, nil)
		}
		if err == nil {
			break
		}
		errs = append(errs, fmt.Errorf("read the node's credentials: %s: %w", at.path, err))
	}
	return f.ring, errors.Join(errs...)
}

func readBounded(path string) ([]byte, error) {
	file, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0) // opening a FIFO must not wait
	if err != nil {
		return nil, err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() || info.Size() > fileMax {
		return nil, fmt.Errorf("%s of %d bytes: want a regular file of at most %d", info.Mode().Type(), info.Size(), fileMax)
	}
	return io.ReadAll(io.LimitReader(file, fileMax))
}
