package volume

import (
	"math"
	"path"

	corev1 "k8s.io/api/core/v1"

	"github.com/plimsoll-dev/plimsoll/internal/core/volumelimit"
	"github.com/plimsoll-dev/plimsoll/internal/host/disk"
)

// add adds a file at path, replacing an existing one, unless the sum would exceed the limits of one pod.
func (p payload) add(use *volumelimit.Use, medium volumelimit.Medium, path string, f file) error {
	if had, ok := p[path]; ok {
		*use = use.Minus(volumelimit.File(len(had.data)))
	}
	*use = use.Plus(volumelimit.File(len(f.data)))
	if why := volumelimit.Pod(medium, *use); why != "" {
		return &TooLargeError{why}
	}
	p[path] = f
	return nil
}

// use returns what p takes, including its directories. While it replaces another payload, twice as much is used for a
// moment.
func (p payload) use() (use volumelimit.Use) {
	dirs := map[string]bool{}
	for name, f := range p {
		use = use.Plus(volumelimit.File(len(f.data)))
		for dir := path.Dir(name); dir != "." && !dirs[dir]; dir = path.Dir(dir) {
			dirs[dir] = true
		}
	}
	return use.Plus(volumelimit.Use{Inodes: int64(len(dirs)) + 3}) // the volume, its payload and ..data
}

// mediumOf returns the medium on which v's content is stored.
func mediumOf(v *corev1.Volume) volumelimit.Medium {
	if kind, _ := kindOf(v); kind.memory {
		return volumelimit.Memory
	}
	return volumelimit.Disk
}

// fits returns an error if content is too large for v, given what the pod's other volumes contain.
func (k *Manager) fits(s *podState, v *corev1.Volume, content payload) error {
	medium := mediumOf(v)
	had, wants := s.uses[v.Name], content.use()
	var others volumelimit.Use
	for i := range s.pod.Spec.Volumes {
		if o := &s.pod.Spec.Volumes[i]; o.Name != v.Name && readOnly(o) && mediumOf(o) == medium {
			others = others.Plus(s.uses[o.Name])
		}
	}
	why := volumelimit.Pod(medium, others.Plus(wants))
	if why == "" && medium == volumelimit.Memory {
		u, err := disk.Of(k.memory)
		if err != nil {
			return err
		}
		fs := volumelimit.FS{Total: volumelimit.Use{Bytes: u.Capacity, Inodes: u.Inodes},
			Free: volumelimit.Use{Bytes: u.Available, Inodes: u.InodesFree}}
		if u.Inodes == 0 { // mounted by another program with nr_inodes=0: unlimited
			fs.Total.Inodes, fs.Free.Inodes = math.MaxInt32, math.MaxInt32
		}
		why = volumelimit.Shared(fs, k.MaxPods, others.Plus(had), others.Plus(wants))
	}
	if why != "" {
		return &TooLargeError{why}
	}
	return nil
}
