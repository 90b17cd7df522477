//go:build e2e && lab

package lab

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/plimsoll-dev/plimsoll/lab"
	"github.com/plimsoll-dev/plimsoll/test/e2e/rig"
)

// unusedImage creates and imports an image that no container uses. It has 60 MiB, and unpacked as much again.
const unusedImage = `set -e
mkdir -p /var/lib/unused/layer && cd /var/lib/unused
dd if=/dev/zero of=layer/zeroes bs=1M count=60 2>/dev/null
tar -cf layer.tar -C layer zeroes
digest=$(sha256sum layer.tar | cut -d" " -f1)
printf '{"architecture":"amd64","os":"linux","rootfs":{"type":"layers","diff_ids":["sha256:%s"]},"config":{}}' "$digest" > config.json
printf '[{"Config":"config.json","RepoTags":["example.com/unused:1"],"Layers":["layer.tar"]}]' > manifest.json
tar -cf image.tar manifest.json config.json layer.tar
ctr -n k8s.io images import image.tar
cd / && rm -r /var/lib/unused`

// TestEvictingDisks fills separate disks of a node, one with the agent's files and one with the runtime's: limits of
// volumes, inodes, bytes, and images before pods. A pod that writes nothing must run all the time.
func TestEvictingDisks(t *testing.T) {
	c := rig.Shared(t)
	n := evictingNode{runningNode{t: t, c: c, ns: c.Namespace(t), names: cgroupfsNames}, t}
	guest := lab.Boot(t, "tiny", lab.Options{Name: "filling"})
	guest.Run(t, "sh", "-c", `set -e
modprobe loop
modprobe quota_v2 || true
truncate -s 256M /var/lib/node.disk
truncate -s 700M /var/lib/images.disk
mkfs.ext4 -q -N 3000 -m 0 -O project,quota -E quotatype=prjquota /var/lib/node.disk
mkfs.ext4 -q -m 0 /var/lib/images.disk
mkdir -p /var/lib/kubelet /var/lib/containerd
mount -o loop,prjquota /var/lib/node.disk /var/lib/kubelet
mount -o loop /var/lib/images.disk /var/lib/containerd`)
	n.GuestNode = c.Join(t, guest, rig.JoinOptions{Config: map[string]any{
		"evictionHard": map[string]string{"nodefs.available": "60Mi", "nodefs.inodesFree": "600",
			"imagefs.available": "150Mi"},
		"evictionPressureTransitionPeriod": "5s", "imageMinimumGCAge": "1ns",
	}})
	n.load("steady", "sleep infinity")
	n.run("deleted files count", evictingNode.deletedFiles)
	n.run("inodes", evictingNode.inodes)
	n.run("node's disk", evictingNode.nodeDisk)
	n.run("images before pods", evictingNode.imagesFirst)
}

// volume is the directory of a pod's emptyDir in the guest.
func volume(pod *corev1.Pod) string {
	return fmt.Sprintf("/var/lib/kubelet/pods/%s/volumes/kubernetes.io~empty-dir/data", pod.UID)
}

// presses waits until DiskPressure has the wanted status.
func (n evictingNode) presses(want corev1.ConditionStatus) {
	n.t.Helper()
	n.c.WaitCondition(n.t, n.Name, corev1.NodeDiskPressure, want, podWithin)
}

// deletedFiles: a file of 40 MiB that is deleted but still open counts against a limit of 20 MiB.
func (n evictingNode) deletedFiles() {
	limit := resource.MustParse("20Mi")
	c := sized("c", "10m,16Mi", "")
	pod := n.pod("limited", []corev1.Container{c})
	pod.Spec.Volumes = []corev1.Volume{{Name: "data",
		VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{SizeLimit: &limit}}}}
	pod.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "data", MountPath: "/data"}}
	n.postPod(pod)
	pod = n.until("limited", "is ready", podReady)
	n.Start(n.t, lab.Command{Args: []string{"sh", "-c",
		`exec 9>"$0/big" && fallocate -l 40M "$0/big" && rm "$0/big" && sleep infinity`, volume(pod)}})
	pod = n.until("limited", "is evicted", isEvicted)
	if want := `Usage of EmptyDir volume "data" exceeds the limit "20Mi". `; pod.Status.Message != want {
		n.t.Errorf("its message is %q, want %q", pod.Status.Message, want)
	}
	n.remove("limited")
}

// inodes: one pod makes 2,600 files on a disk for 3,000.
func (n evictingNode) inodes() {
	n.presses(corev1.ConditionFalse)
	n.postLoad("files", "16Mi", 1, "disk --path /data --files 2600 --size 0")
	n.evicted("files", "inodes")
	n.presses(corev1.ConditionTrue)
	n.presses(corev1.ConditionFalse)
	n.remove("files")
}

// nodeDisk: other programs fill the disk. The pod with a volume is evicted. Then the disk is freed, and the condition
// becomes false.
func (n evictingNode) nodeDisk() {
	n.presses(corev1.ConditionFalse)
	pod := n.load("data", "sleep infinity")
	n.Run(n.t, "fallocate", "-l", "100M", volume(pod)+"/big")
	full := n.FillDisk(n.t, "/var/lib/kubelet", 40<<20)
	n.evicted("data", "ephemeral-storage")
	n.presses(corev1.ConditionTrue)
	n.presses(corev1.ConditionFalse)
	n.Run(n.t, "rm", full)
	n.remove("data")
}

// imagesFirst: the disk of images is short. Removing unused images is enough. It is short again, and the pod whose
// container wrote most to its layer is evicted.
func (n evictingNode) imagesFirst() {
	n.presses(corev1.ConditionFalse)
	n.load("layer", "disk --path /big --size 100Mi")
	n.logs("layer", "wrote 104857600 bytes")
	n.Run(n.t, "sh", "-c", unusedImage)
	full := n.FillDisk(n.t, "/var/lib/containerd", 100<<20)
	rig.Eventually(n.t, podWithin, "the image is gone", func(ctx context.Context) error {
		names, err := n.Output(ctx, "ctr", "-n", "k8s.io", "images", "list", "-q")
		if err == nil && strings.Contains(names, "example.com/unused") {
			err = errors.New(names)
		}
		return err
	})
	n.presses(corev1.ConditionFalse)
	n.lives("layer")
	more := "/var/lib/containerd/more"
	n.Run(n.t, "sh", "-c", `fallocate -l $(( $(stat -f -c '%a * %S' /var/lib/containerd) - 120*1024*1024 )) "$0"`, more)
	n.evicted("layer", "ephemeral-storage")
	n.presses(corev1.ConditionTrue)
	n.Run(n.t, "rm", full, more)
	n.presses(corev1.ConditionFalse)
	n.remove("layer")
}
