// Package pluginregistry is the node's side of the plugin registration API v1: it watches the directory of the plugins'
// sockets, and calls the plugins there.
//
// # Model
//
// A plugin makes a socket in the directory or below it. There it answers what it is (Ask), and is told whether it was
// registered (Tell). Watch passes on the complete list of sockets whenever it may have changed.
//
// # Invariants
//
//   - A socket that was removed and made again is another Socket, even if both happened before the directory was read
//     again.
//   - A symbolic link is listed, so that its plugin can be refused by name, and never followed.
//   - Files whose names begin with a dot are ignored, as in the kubelet. Other files that are no sockets are passed on
//     apart from the sockets, so that they can be reported.
//   - Answers have a bounded size; every call ends with its context.
//
// The package decides nothing (core/registration does), and the registered services are called by others (host/csi,
// host/deviceplugin).
package pluginregistry

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"

	"github.com/fsnotify/fsnotify"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/plimsoll-dev/plimsoll/internal/core/registration"
	"github.com/plimsoll-dev/plimsoll/internal/host/socket"
)

// dirMode is the mode of the directory, as the kubelet's: a program that can make a socket there can offer devices and
// volumes to any pod.
const dirMode = 0o750

// answerMax bounds an answer, and the headers with the text of an error, in bytes (chosen). Honest answers have a few
// hundred bytes.
const answerMax = 64 << 10

// watch is the state of Watch.
type watch struct {
	dir     string
	watcher *fsnotify.Watcher
	made    map[string]uint64 // how often something was created at a path, since Watch began
	lost    uint64            // how often the kernel dropped events
}

// Watch creates the directory if it does not exist. It calls changed with the sockets in it and the paths of files that
// are none, at the start and whenever they may have changed, until ctx ends or the directory cannot be watched any
// more.
func Watch(ctx context.Context, dir string, changed func(sockets []registration.Socket, others []string)) error {
	if err := os.MkdirAll(dir, dirMode); err != nil {
		return fmt.Errorf("watch for plugins: %w", err)
	}
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		return fmt.Errorf("watch for plugins: %s: %w", dir, err)
	}
	defer func() { _ = watcher.Close() }() // nothing to lose
	w := &watch{dir: dir, watcher: watcher, made: map[string]uint64{}}
	for {
		sockets, others, err := w.list()
		if err != nil {
			return fmt.Errorf("watch for plugins: %w", err)
		}
		changed(sockets, others)
		if err := w.wait(ctx); err != nil {
			return err
		}
	}
}

// wait waits until something may have changed.
func (w *watch) wait(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case e, ok := <-w.watcher.Events:
			if !ok {
				return fmt.Errorf("watch for plugins: %s: the watch has ended", w.dir)
			}
			if e.Has(fsnotify.Create) {
				w.made[e.Name]++
			}
			if e.Has(fsnotify.Create) || e.Has(fsnotify.Remove) || e.Has(fsnotify.Rename) {
				return nil
			}
		case err := <-w.watcher.Errors:
			if !errors.Is(err, fsnotify.ErrEventOverflow) {
				return fmt.Errorf("watch for plugins: %s: %w", w.dir, err)
			}
			w.lost++ // any socket may have been made again since
			return nil
		}
	}
}

// list returns the sockets and the paths of files that are none, and watches directories that are new.
func (w *watch) list() (sockets []registration.Socket, others []string, err error) {
	err = filepath.WalkDir(w.dir, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil && path == w.dir:
			return err
		case err != nil:
			return nil // it is gone, or its directory is
		case path != w.dir && strings.HasPrefix(d.Name(), "."):
			if d.IsDir() {
				return filepath.SkipDir
			}
		case d.IsDir():
			// The watch begins before the directory is read, so that nothing is missed. It is no error if it is watched already.
			if err := w.watcher.Add(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return fmt.Errorf("%s: %w", path, err)
			}
		case d.Type()&(fs.ModeSocket|fs.ModeSymlink) != 0:
			sockets = append(sockets, registration.Socket{Path: path, Made: w.made[path] + w.lost})
		default:
			others = append(others, path)
		}
		return nil
	})
	return sockets, others, err
}

// connect calls do with a connection to the plugin at path.
func connect(path string, do func(registerapi.RegistrationClient) error) error {
	conn, err := grpc.NewClient("passthrough:///"+path,
		grpc.WithAuthority("localhost"),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(answerMax)),
		grpc.WithMaxHeaderListSize(answerMax),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return socket.Connect(ctx, path) }),
	)
	if err != nil {
		return err
	}
	return errors.Join(do(registerapi.NewRegistrationClient(conn)), conn.Close())
}

// Ask asks the plugin at path what it is.
func Ask(ctx context.Context, path string) (registration.Answer, error) {
	var out registration.Answer
	err := connect(path, func(api registerapi.RegistrationClient) error {
		info, err := api.GetInfo(ctx, &registerapi.InfoRequest{})
		if err != nil {
			return err
		}
		out = registration.Answer{
			Kind:     registration.Kind(info.GetType()),
			Name:     info.GetName(),
			Endpoint: info.GetEndpoint(),
			Versions: info.GetSupportedVersions(),
		}
		return nil
	})
	if err != nil {
		return registration.Answer{}, fmt.Errorf("ask the plugin at %s what it is (GetInfo): %w", path, err)
	}
	return out, nil
}

// Tell tells the plugin at path whether it was registered, and if not, why.
func Tell(ctx context.Context, path string, registered bool, why string) error {
	err := connect(path, func(api registerapi.RegistrationClient) error {
		_, err := api.NotifyRegistrationStatus(ctx, &registerapi.RegistrationStatus{PluginRegistered: registered, Error: why})
		return err
	})
	if err != nil {
		return fmt.Errorf("tell the plugin at %s about its registration (NotifyRegistrationStatus): %w", path, err)
	}
	return nil
}
