package staticpods

import (
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/plimsoll-dev/plimsoll/internal/kube/kubelethash"
	"github.com/plimsoll-dev/plimsoll/internal/kube/manifests"
	"github.com/plimsoll-dev/plimsoll/internal/kube/translate"
)

// Annotations of static pods and their mirrors, as upstream spells them. There are two more:
// corev1.MirrorPodAnnotationKey, whose value is the UID of the static pod, and translate.AnnotationSource.
const (
	annotationHash = "kubernetes.io/config.hash"
	annotationSeen = "kubernetes.io/config.seen"
)

// annotationPath is the file that a static pod came from. It exists in memory only.
const annotationPath = "plimsoll.dev/config.path"

// IsMirror reports whether a pod of the API is a mirror pod.
func IsMirror(pod *corev1.Pod) bool {
	_, ok := pod.Annotations[corev1.MirrorPodAnnotationKey]
	return ok
}

// Decode reads a manifest and returns its static pod, as the node of that name runs it.
func Decode(node, path string) (*corev1.Pod, error) {
	body, err := readManifest(path)
	if err != nil {
		return nil, err
	}
	pod, err := manifests.DecodePod(body)
	if err != nil {
		return nil, err
	}
	return complete(pod, node, path)
}

// fileMax bounds a manifest, in bytes: the API server's limit for a request.
const fileMax = 3 << 20

// readManifest reads a regular file of bounded size. It does not wait for a writer of a FIFO or for the end of a
// device.
func readManifest(path string) ([]byte, error) {
	info, err := os.Stat(path) // before opening, since opening a device may have effects
	if err != nil {
		return nil, err
	}
	if err := fits(info); err != nil {
		return nil, err
	}
	file, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0) // it may be another file by now
	if err != nil {
		return nil, err
	}
	defer file.Close()
	if info, err = file.Stat(); err != nil {
		return nil, err
	}
	if err := fits(info); err != nil {
		return nil, err
	}
	body, err := io.ReadAll(io.LimitReader(file, fileMax+1)) // it may grow meanwhile
	if err == nil && len(body) > fileMax {
		err = fmt.Errorf("want a regular file of at most %d bytes, have more", fileMax)
	}
	return body, err
}

func fits(info fs.FileInfo) error {
	if info.Mode().IsRegular() && info.Size() <= fileMax {
		return nil
	}
	kind := "a file"
	if !info.Mode().IsRegular() {
		kind = "a " + info.Mode().Type().String()
	}
	return fmt.Errorf("want a regular file of at most %d bytes, have %s of %d", fileMax, kind, info.Size())
}

// complete completes the pod of a manifest: it is bound to this node, its name ends with the node's, and it has the UID
// that a kubelet would give it. So static pods keep running when this agent takes over from a kubelet, or a kubelet
// from this agent.
func complete(pod *corev1.Pod, node, path string) (*corev1.Pod, error) {
	manifests.DefaultPod(pod)
	pod.UID = kubelethash.StaticPod(pod, node, path)
	pod.Name += "-" + strings.ToLower(node)
	if pod.Namespace == "" {
		pod.Namespace = metav1.NamespaceDefault
	}
	pod.Spec.NodeName = node
	annotations := map[string]string{
		annotationHash:             string(pod.UID),
		translate.AnnotationSource: "file",
		annotationPath:             path,
		annotationSeen:             time.Now().Format(time.RFC3339Nano),
	}
	for k, v := range pod.Annotations {
		if _, ours := annotations[k]; !ours {
			annotations[k] = v
		}
	}
	pod.Annotations = annotations
	pod.CreationTimestamp = metav1.Now()
	// No taint may evict a static pod, since it cannot run on another node.
	pod.Spec.Tolerations = append(
		pod.Spec.Tolerations, corev1.Toleration{Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute},
	)
	if err := manifests.CheckStaticPod(pod); err != nil {
		return nil, err
	}
	return pod, nil
}
