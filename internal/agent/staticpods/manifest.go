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

// Annotations of static pods and their mirrors, as upstream spells them. The others are corev1.MirrorPodAnnotationKey,
// with the uid of the static pod, and translate.AnnotationSource.
const (
	annotationHash = "kubernetes.io/config.hash"
	annotationSeen = "kubernetes.io/config.seen"
)

// annotationPath remembers in memory which file a static pod came from.
const annotationPath = "plimsoll.dev/config.path"

// IsMirror reports whether a pod of the API is a mirror pod.
func IsMirror(pod *corev1.Pod) bool {
	_, ok := pod.Annotations[corev1.MirrorPodAnnotationKey]
	return ok
}

// Decode reads the static pod of a manifest, as the node of that name runs it.
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

// fileMax is the API server's own limit of a request.
const fileMax = 3 << 20

// readManifest reads a regular file of bounded size. What else may be behind a name is not waited for: neither for a
// writer of a FIFO, nor for the end of a device.
func readManifest(path string) ([]byte, error) {
	info, err := os.Stat(path) // a device may do something when it is opened
	if err != nil {
		return nil, err
	}
	if err := fits(info); err != nil {
		return nil, err
	}
	file, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0) // it may be another one by now
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

// complete makes a static pod of a manifest: bound here, named after the node, with the UID that a kubelet gives it. So
// a kubelet's static pod goes on when this agent takes its node over, and the other way round.
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
	// A static pod has nowhere else to go: no taint evicts it.
	pod.Spec.Tolerations = append(
		pod.Spec.Tolerations, corev1.Toleration{Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute},
	)
	if err := manifests.CheckStaticPod(pod); err != nil {
		return nil, err
	}
	return pod, nil
}
