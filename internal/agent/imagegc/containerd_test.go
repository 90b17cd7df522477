package imagegc

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/plimsoll-dev/plimsoll/internal/core/allocatable"
	"github.com/plimsoll-dev/plimsoll/internal/core/eviction"
	coreimagegc "github.com/plimsoll-dev/plimsoll/internal/core/imagegc"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
	"github.com/plimsoll-dev/plimsoll/internal/host/cri"
	"github.com/plimsoll-dev/plimsoll/internal/host/disk"
)

const (
	diskSize  = 110 * unit.MiB
	imageSize = 10 * unit.MiB // of random bytes, once compressed and once unpacked
	patience  = time.Minute
)

// TestContainerd collects images of a real containerd whose root is on a disk of its own.
func TestContainerd(t *testing.T) {
	dir := smallDisk(t)
	client := startContainerd(t, dir)
	ctx := t.Context()
	for _, name := range []string{"pause", "a", "b"} {
		load(t, dir, name)
	}
	c := New(Options{Runtime: client, Images: client.Images, Config: coreimagegc.Config{High: 50, Low: 25},
		Dir: filepath.Join(dir, "root")})

	// Eviction asks for more than is available, so little that removing one image suffices.
	u := usage(t, dir)
	goal := u.Available + imageSize
	if err := c.Reclaim(ctx, eviction.Reclaim{Step: eviction.UnusedImages, Signal: allocatable.ImageFSAvailable,
		Until: int64(goal)}); err != nil {
		t.Fatal(err)
	}
	if got := usage(t, dir); got.Available < goal {
		t.Errorf("%v is available, want %v", got.Available, goal)
	}
	left := names(t, client)
	if len(left) != 2 || !slices.Contains(left, "test/pause:1") {
		t.Fatalf("left %v, want the image of sandboxes and one other", left)
	}

	// By the thresholds: the disk is above the high one, and gets below the low one.
	for _, name := range []string{"c", "d"} {
		load(t, dir, name)
	}
	if full := usage(t, dir); full.Available*2 > full.Capacity {
		t.Fatalf("%v of %v is available: not above the high mark", full.Available, full.Capacity)
	}
	err := c.Collect(ctx)
	if left := names(t, client); !slices.Contains(left, "test/pause:1") || len(left) > 2 {
		t.Errorf("left %v: %v", left, err)
	}

	// Inodes: no removable image is left, and the sandbox image stays.
	if err := c.Reclaim(ctx, eviction.Reclaim{Step: eviction.UnusedImages, Signal: allocatable.ImageFSInodesFree,
		Until: 1 << 40}); err != nil {
		t.Fatal(err)
	}
	if left := names(t, client); !slices.Equal(left, []string{"test/pause:1"}) {
		t.Errorf("left %v", left)
	}
}

func usage(t *testing.T, dir string) disk.Usage {
	t.Helper()
	u, err := disk.Of(dir)
	if err != nil {
		t.Fatal(err)
	}
	return u
}

func names(t *testing.T, client *cri.Client) []string {
	t.Helper()
	list, err := client.Images.ListImages(t.Context(), &runtimeapi.ListImagesRequest{})
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, image := range list.Images {
		for _, tag := range image.RepoTags {
			out = append(out, strings.TrimPrefix(tag, "docker.io/"))
		}
	}
	slices.Sort(out)
	return out
}

// smallDisk mounts a small file system.
func smallDisk(t *testing.T) string {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: mounts a file system and starts a containerd")
	}
	for _, tool := range []string{"containerd", "ctr", "mkfs.ext4", "mount", "umount"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("needs %s: %v", tool, err)
		}
	}
	base, err := os.MkdirTemp("", "plimsoll-gc") // short: it holds sockets
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(base); err != nil {
			t.Error(err)
		}
	})
	file, dir := filepath.Join(base, "disk"), filepath.Join(base, "m")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(file, int64(diskSize)); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	run(t, "mkfs.ext4", "-q", "-m", "0", file)
	if out, err := exec.Command("mount", "-o", "loop", file, dir).CombinedOutput(); err != nil {
		t.Skipf("needs a loop device: %v: %s", err, out)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return dir
}

func run(t *testing.T, name string, args ...string) {
	t.Helper()
	if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		t.Fatalf("%s %v: %v: %s", name, args, err, out)
	}
}

func startContainerd(t *testing.T, dir string) *cri.Client {
	t.Helper()
	config := filepath.Join(dir, "config.toml")
	text := fmt.Sprintf("version = 2\nroot = %q\nstate = %q\n[grpc]\naddress = %q\n"+
		"[plugins.'io.containerd.grpc.v1.cri']\nsandbox_image = 'docker.io/test/pause:1'\n",
		filepath.Join(dir, "root"), filepath.Join(dir, "state"), filepath.Join(dir, "s"))
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	daemon := exec.Command("containerd", "--config", config)
	var log bytes.Buffer
	daemon.Stderr = &log
	if err := daemon.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := daemon.Process.Signal(syscall.SIGTERM); err != nil {
			t.Error(err)
		}
		_ = daemon.Wait() // returns the signal's status
		if t.Failed() {
			t.Log(log.String())
		}
	})
	client, err := cri.Dial("unix://" + filepath.Join(dir, "s"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for {
		if _, err := client.Images.ListImages(ctx, &runtimeapi.ListImagesRequest{}); err == nil {
			return client
		}
		select {
		case <-ctx.Done():
			t.Fatal("containerd does not answer")
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// load imports an image test/<name>:1 with one layer of random bytes into containerd.
func load(t *testing.T, dir, name string) {
	t.Helper()
	size := imageSize
	if name == "pause" {
		size = unit.MiB
	}
	content := make([]byte, size)
	if _, err := rand.Read(content); err != nil {
		t.Fatal(err)
	}
	layer := archive(t, map[string][]byte{"data": content})
	config := mustJSON(t, map[string]any{"architecture": "amd64", "os": "linux", "config": map[string]any{},
		"rootfs": map[string]any{"type": "layers", "diff_ids": []string{"sha256:" + digest(layer)}}})
	manifest := mustJSON(t, []map[string]any{{"Config": "config.json", "RepoTags": []string{"docker.io/test/" + name +
		":1"}, "Layers": []string{"layer.tar"}}})
	file := filepath.Join(t.TempDir(), name+".tar")
	if err := os.WriteFile(file, archive(t, map[string][]byte{"layer.tar": layer, "config.json": config,
		"manifest.json": manifest}), 0o600); err != nil {
		t.Fatal(err)
	}
	run(t, "ctr", "-a", filepath.Join(dir, "s"), "-n", "k8s.io", "images", "import", file)
}

func digest(data []byte) string { sum := sha256.Sum256(data); return hex.EncodeToString(sum[:]) }

func mustJSON(t *testing.T, v any) []byte {
	t.Helper()
	data, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func archive(t *testing.T, files map[string][]byte) []byte {
	t.Helper()
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for name, data := range files {
		if err := w.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: int64(len(data))}); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(data); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}
