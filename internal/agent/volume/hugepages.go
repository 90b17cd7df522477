package volume

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// isHugePages reports whether a medium is huge pages, of one size or of the size that the pod requests.
func isHugePages(medium corev1.StorageMedium) bool {
	return medium == corev1.StorageMediumHugePages ||
		strings.HasPrefix(string(medium), string(corev1.StorageMediumHugePagesPrefix))
}

// setUpHugePages mounts a hugetlbfs. Its page size, mode and owner are mount options, so it is ready as soon as it is
// mounted. Like a directory it may be written by every user, where the kubelet's is root's; unlike the kubelet's it has
// the volume's limit, as whole pages. The pages themselves are bounded by the pod's cgroup, too.
func (k *Manager) setUpHugePages(pod *corev1.Pod, source *corev1.EmptyDirVolumeSource, plugin, final string) error {
	page, err := hugePageSize(source.Medium, pod)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(final, dirMode); err != nil {
		return err
	}
	mounted, err := crossesDevice(plugin, final)
	if err != nil || mounted {
		return err
	}
	options := []string{"pagesize=" + strconv.FormatInt(page, 10), "mode=0777"}
	own := ownerOf(pod)
	if own.group != nil {
		options = append(options, "gid="+strconv.FormatInt(*own.group, 10))
	}
	if limit := source.SizeLimit; limit != nil && limit.Value() > 0 {
		pages := (limit.Value()-1)/page + 1
		options = append(options, "size="+strconv.FormatInt(pages*page, 10))
	}
	err = unix.Mount("nodev", final, "hugetlbfs", 0, strings.Join(options, ","))
	switch {
	case errors.Is(err, unix.ENODEV):
		return fmt.Errorf("mount huge pages: %s: the kernel of this node has no hugetlbfs: %w", final, err)
	case err != nil:
		size := resource.NewQuantity(page, resource.BinarySI)
		return fmt.Errorf("mount huge pages: %s: pages of %s, which the node's hardware may lack: %w", final, size, err)
	case own.group != nil:
		return unix.Chmod(final, 0o777|unix.S_ISGID) // hugetlbfs takes no such bit as an option
	}
	return nil
}

// hugePageSize returns the size of a volume's pages in bytes: the medium's, of which the pod must request some, else
// the only size that the pod requests. The errors are the kubelet's.
func hugePageSize(medium corev1.StorageMedium, pod *corev1.Pod) (int64, error) {
	var want int64 // zero: the size that the pod requests
	if text, named := strings.CutPrefix(string(medium), string(corev1.StorageMediumHugePagesPrefix)); named {
		size, err := resource.ParseQuantity(text)
		if err != nil {
			return 0, fmt.Errorf("medium %s: page size %q: %w", medium, text, err)
		}
		want = size.Value()
	}
	found := map[int64]bool{}
	note := func(requests corev1.ResourceList) error {
		for name := range requests {
			text, huge := strings.CutPrefix(string(name), corev1.ResourceHugePagesPrefix)
			if !huge {
				continue
			}
			size, err := resource.ParseQuantity(text)
			if err != nil {
				return fmt.Errorf("medium %s: request of %s: %w", medium, name, err)
			}
			found[size.Value()] = true
		}
		return nil
	}
	if r := pod.Spec.Resources; r != nil {
		if err := note(r.Requests); err != nil {
			return 0, err
		}
	}
	for _, list := range [][]corev1.Container{pod.Spec.Containers, pod.Spec.InitContainers} {
		for i := range list {
			if err := note(list[i].Resources.Requests); err != nil {
				return 0, err
			}
		}
	}
	if want == 0 && len(found) > 1 {
		return 0, fmt.Errorf("medium: %s can't be used if container requests multiple huge page sizes", medium)
	}
	for size := range found {
		if size > 0 && (want == 0 || size == want) {
			return size, nil
		}
	}
	return 0, fmt.Errorf("medium %s: hugePages storage requested, but there is no resource request for huge pages", medium)
}
