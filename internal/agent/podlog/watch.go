package podlog

import (
	"encoding/binary"
	"log/slog"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// watches is the process's only inotify instance: by default the kernel allows 128 per user
// (fs.inotify.max_user_instances), fewer than a node may have followers.
var watches = &watcher{}

// watchMask is every event that may matter to a reader of a log directory: bytes written, a new file, the writer closed
// the file (the container ended), the directory removed.
const watchMask = unix.IN_MODIFY | unix.IN_CREATE | unix.IN_MOVED_TO | unix.IN_CLOSE_WRITE |
	unix.IN_DELETE_SELF | unix.IN_ONLYDIR

// watcher notifies the followers of files in a directory of changes there. It has an inotify instance and a goroutine
// only while there are followers.
type watcher struct {
	mu    sync.Mutex
	fd    int // of file; valid while file is not nil
	file  *os.File
	dirs  map[string]*watched
	bySig map[int32]*watched // by inotify's watch descriptor
}

type watched struct {
	path string
	wd   int32
	subs map[chan struct{}]bool
}

// join returns a channel that receives a value after every change in dir (several changes may come as one), and a
// function to leave. If the kernel cannot watch, the channel is nil and the caller must poll.
func (w *watcher) join(dir string) (<-chan struct{}, func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	d, err := w.watch(dir)
	if err != nil {
		slog.Warn("logs are polled: the kernel cannot watch the directory; see fs.inotify.max_user_watches", "dir", dir,
			"err", err)
		w.closeIdle()
		return nil, func() {}
	}
	ch := make(chan struct{}, 1)
	d.subs[ch] = true
	return ch, func() { w.leave(d, ch) }
}

func (w *watcher) watch(dir string) (*watched, error) {
	if w.file == nil {
		fd, err := unix.InotifyInit1(unix.IN_NONBLOCK | unix.IN_CLOEXEC)
		if err != nil {
			return nil, os.NewSyscallError("inotify_init1", err)
		}
		w.fd, w.file = fd, os.NewFile(uintptr(fd), "inotify")
		w.dirs, w.bySig = map[string]*watched{}, map[int32]*watched{}
		go w.listen(w.file)
	}
	if d := w.dirs[dir]; d != nil {
		return d, nil
	}
	wd, err := unix.InotifyAddWatch(w.fd, dir, watchMask)
	if err != nil {
		return nil, os.NewSyscallError("inotify_add_watch", err)
	}
	d := &watched{dir, int32(wd), map[chan struct{}]bool{}}
	w.dirs[dir], w.bySig[d.wd] = d, d
	return d, nil
}

func (w *watcher) leave(d *watched, ch chan struct{}) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(d.subs, ch)
	if len(d.subs) > 0 {
		return
	}
	if w.dirs[d.path] == d {
		delete(w.dirs, d.path)
		if w.bySig[d.wd] == d {
			delete(w.bySig, d.wd)
			unix.InotifyRmWatch(w.fd, uint32(d.wd)) // fails only if the directory, and with it the watch, was removed
		}
	}
	w.closeIdle()
}

// closeIdle closes the inotify instance if there are no followers. The caller holds w.mu.
func (w *watcher) closeIdle() {
	if w.file != nil && len(w.dirs) == 0 {
		w.file.Close() // ends listen
		w.file = nil
	}
}

// listen notifies followers of events until file is closed.
//
//	struct inotify_event { int wd; uint32_t mask, cookie, len; char name[len]; }   (inotify(7))
func (w *watcher) listen(file *os.File) {
	buf := make([]byte, 4096)
	for {
		n, err := file.Read(buf)
		if err != nil {
			return
		}
		w.mu.Lock()
		for b := buf[:n]; w.file == file && len(b) >= unix.SizeofInotifyEvent; {
			wd, mask := int32(binary.NativeEndian.Uint32(b)), binary.NativeEndian.Uint32(b[4:])
			b = b[min(len(b), unix.SizeofInotifyEvent+int(binary.NativeEndian.Uint32(b[12:]))):]
			w.dispatch(wd, mask)
		}
		w.mu.Unlock()
	}
}

// dispatch notifies the followers of an event. The caller holds w.mu.
func (w *watcher) dispatch(wd int32, mask uint32) {
	if mask&unix.IN_Q_OVERFLOW != 0 {
		for _, d := range w.dirs {
			d.wake()
		}
		return
	}
	d := w.bySig[wd]
	if d == nil {
		return
	}
	d.wake()
	if mask&unix.IN_IGNORED != 0 { // the directory was removed; another one may get its name
		delete(w.bySig, wd)
		delete(w.dirs, d.path)
	}
}

func (d *watched) wake() {
	for ch := range d.subs {
		select {
		case ch <- struct{}{}:
		default: // an earlier notification was not received yet
		}
	}
}
