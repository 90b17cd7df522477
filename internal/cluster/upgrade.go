package cluster

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	utilversion "k8s.io/apimachinery/pkg/util/version"

	"github.com/plimsoll-dev/plimsoll/internal/cluster/progress"
	"github.com/plimsoll-dev/plimsoll/internal/host/durable"
	"github.com/plimsoll-dev/plimsoll/internal/version"
)

// checkVersion returns an error if this version of Kubernetes must not run on the instance's state. An instance from
// before there was a file of the version is accepted.
func (l layout) checkVersion() error {
	text, err := os.ReadFile(l.version())
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("check version: %w", err)
	}
	kept, err := utilversion.ParseSemantic(strings.TrimSpace(string(text)))
	if err != nil {
		return fmt.Errorf("check version: %s: %w: want the Kubernetes release that ran here last, such as %s", l.version(),
			err, version.Kubernetes)
	}
	if err := checkUpgrade(kept, utilversion.MustParseSemantic(version.Kubernetes)); err != nil {
		return fmt.Errorf("check version: %s: %w", l.o.StateDir, err)
	}
	return nil
}

// checkUpgrade returns an error if a control plane of release `to` must not run on the state of release `from`. The
// rules are kube-apiserver's (https://kubernetes.io/releases/version-skew-policy/): up by one minor release at a time,
// and never down, since an older one may not understand what a newer one has stored. Patch releases may change in both
// directions.
func checkUpgrade(from, to *utilversion.Version) error {
	switch {
	case from.Major() == to.Major() && (from.Minor() == to.Minor() || from.Minor()+1 == to.Minor()):
		return nil
	case from.Major() > to.Major() || from.Major() == to.Major() && from.Minor() > to.Minor():
		return fmt.Errorf("release v%s of Kubernetes ran here, this is v%s: an older one may not understand what is stored "+
			"(run a plimsoll of v%d.%d or newer, or choose another --instance or --state-dir)", from, to, from.Major(),
			from.Minor())
	}
	return fmt.Errorf("release v%s of Kubernetes ran here, this is v%s: it goes up by one minor release at a time "+
		"(run each release between them once)", from, to)
}

// saveVersion stores the version of Kubernetes whose control plane is about to run on the instance's state.
func (l layout) saveVersion() error {
	_, err := durable.WriteIfChanged(l.version(), []byte(version.Kubernetes+"\n"))
	return err
}

// replaceOther asks a supervisor of another build to leave everything to this process. That is how a running instance
// is upgraded. Children whose program changed are replaced in the order in which children start.
func (l layout) replaceOther(sink progress.Sink) error {
	pid, err := lockHolder(l.lock())
	if err != nil || pid == 0 || !otherBuild("/proc", pid) {
		return err
	}
	return progress.Step(sink, "take over", func() (string, error) {
		return fmt.Sprintf("from another build of plimsoll, pid %d", pid), l.askToLeave()
	})
}

// otherBuild reports whether a process is `up` of another build: its program's content differs from this one's. It is
// false for a process that has ended or cannot be read, so that it is left alone.
func otherBuild(proc string, pid int) bool {
	dir := filepath.Join(proc, strconv.Itoa(pid))
	cmdline, err := os.ReadFile(filepath.Join(dir, "cmdline"))
	words := strings.Split(string(cmdline), "\x00")
	if err != nil || !slices.Contains(words, "up") && !slices.Contains(words, "join") {
		return false // `down` holds the lock, too
	}
	same, err := sameContent(filepath.Join(dir, "exe"), filepath.Join(proc, "self", "exe"))
	return err == nil && !same
}

// sameContent compares two files.
func sameContent(a, b string) (bool, error) {
	x, err := os.Open(a)
	if err != nil {
		return false, err
	}
	defer x.Close()
	y, err := os.Open(b)
	if err != nil {
		return false, err
	}
	defer y.Close()
	s, err := x.Stat()
	if err != nil {
		return false, err
	}
	r, err := y.Stat()
	if err != nil || s.Size() != r.Size() {
		return false, err
	}
	if os.SameFile(s, r) {
		return true, nil
	}
	const part = 1 << 20
	p, q := make([]byte, part), make([]byte, part)
	for {
		n, err := x.Read(p)
		if _, errOther := io.ReadFull(y, q[:n]); errOther != nil || !bytes.Equal(p[:n], q[:n]) {
			return false, errOther
		}
		if errors.Is(err, io.EOF) {
			return true, nil
		}
		if err != nil {
			return false, err
		}
	}
}
