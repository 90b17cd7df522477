package volume

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

func hugeRequests(names ...string) corev1.ResourceRequirements {
	requests := corev1.ResourceList{"cpu": resource.MustParse("1")}
	for _, name := range names {
		requests[corev1.ResourceName("hugepages-"+name)] = resource.MustParse("1Gi")
	}
	return corev1.ResourceRequirements{Requests: requests}
}

func TestHugePageSize(t *testing.T) {
	const nothing = "there is no resource request for huge pages"
	for _, c := range []struct {
		medium   corev1.StorageMedium
		requests []string
		want     int64
		err      string
	}{
		{"HugePages", []string{"2Mi"}, 2 << 20, ""},
		{"HugePages", nil, 0, nothing},
		{"HugePages", []string{"2Mi", "1Gi"}, 0,
			"medium: HugePages can't be used if container requests multiple huge page sizes"},
		{"HugePages-1Gi", []string{"2Mi", "1Gi"}, 1 << 30, ""},
		{"HugePages-2048Ki", []string{"2Mi"}, 2 << 20, ""},
		{"HugePages-1Gi", []string{"2Mi"}, 0, nothing},
		{"HugePages-0", []string{"0"}, 0, nothing},
		{"HugePages--2Mi", []string{"-2Mi"}, 0, nothing},
		{"HugePages-many", []string{"2Mi"}, 0, `page size "many"`},
		{"HugePages", []string{"many"}, 0, "request of hugepages-many"},
	} {
		for _, where := range []string{"main", "init", "pod"} {
			pod := podWith("u1")
			switch where {
			case "main":
				pod.Spec.Containers[0].Resources = hugeRequests(c.requests...)
			case "init":
				pod.Spec.InitContainers = []corev1.Container{{Name: "i", Resources: hugeRequests(c.requests...)}}
			case "pod":
				all := hugeRequests(c.requests...)
				pod.Spec.Resources = &all
			}
			got, err := hugePageSize(c.medium, pod)
			if got != c.want || (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) {
				t.Errorf("%s with %v in %s: %d, %v; want %d, %q", c.medium, c.requests, where, got, err, c.want, c.err)
			}
		}
	}
}

// TestHugePages mounts huge pages where the kernel has them, once, with the volume's limit in whole pages; elsewhere
// the failure says what is missing.
func TestHugePages(t *testing.T) {
	r := newRig(t)
	group, size := int64(4242), resource.MustParse("3Mi")
	pod := podWith("u1", volumeOf("huge",
		corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{Medium: "HugePages-2Mi", SizeLimit: &size}}))
	pod.Spec.SecurityContext = &corev1.PodSecurityContext{FSGroup: &group}
	pod.Spec.Containers[0].Resources = hugeRequests("2Mi")
	known, err := os.ReadFile("/proc/filesystems")
	must(t, err)
	if _, err := os.Stat("/sys/kernel/mm/hugepages/hugepages-2048kB"); err != nil ||
		!strings.Contains(string(known), "\thugetlbfs\n") {
		if err := r.SetUp(t.Context(), pod); err == nil || !strings.Contains(err.Error(), "mount huge pages: ") {
			t.Errorf("without huge pages: %v", err)
		}
		r.tearDownClean("u1")
		return
	}
	r.mustSetUp(pod)
	dir := filepath.Join(r.root, "pods/u1/volumes/kubernetes.io~empty-dir/huge")
	var fs syscall.Statfs_t
	must(t, syscall.Statfs(dir, &fs))
	const hugetlbfs = 0x958458f6 // HUGETLBFS_MAGIC, linux/magic.h
	if uint32(fs.Type) != hugetlbfs || fs.Bsize != 2<<20 || fs.Blocks != 2 {
		t.Errorf("file system %x of %d pages of %d bytes, want two huge pages", uint32(fs.Type), fs.Blocks, fs.Bsize)
	}
	st, err := os.Stat(dir)
	must(t, err)
	if got := st.Mode().String(); got != "dgrwxrwxrwx" || st.Sys().(*syscall.Stat_t).Gid != 4242 {
		t.Errorf("%s of group %d", got, st.Sys().(*syscall.Stat_t).Gid)
	}
	must(t, os.Chmod(dir, 0o700))
	r.restart()
	r.mustSetUp(pod) // what containers did is kept
	if st, err := os.Stat(dir); err != nil || st.Mode().Perm() != 0o700 {
		t.Errorf("it was mounted again: %v %v", st, err)
	}
	r.tearDownClean("u1")
}
