package main

import (
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// annotationSelectedNode is what a scheduler sets on a claim when it has chosen a node (upstream's name): provisioners
// make the volume then. Claims have it from the beginning here, so that no volume is made while pods are measured.
const annotationSelectedNode = "volume.kubernetes.io/selected-node"

// claimSize is the size of a claim: the least that the driver makes. All volumes of a round exist at once, and the
// driver makes none that the disk could not hold when all are full.
var claimSize = resource.MustParse("16Mi")

// provideTimeout bounds the making of all volumes. Chosen: a thousand take minutes, because each is a file system.
const provideTimeout = 30 * time.Minute

// claimNames returns the names of the claims of a pod.
func (c config) claimNames(pod string) []string {
	var names []string
	for i := range c.claims {
		names = append(names, fmt.Sprintf("%s-%d", pod, i))
	}
	return names
}

// addClaims adds the pod's claims, which its container mounts.
func (c config) addClaims(pod *corev1.Pod) {
	for _, name := range c.claimNames(pod.Name) {
		source := &corev1.PersistentVolumeClaimVolumeSource{ClaimName: name}
		pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{
			Name:         name,
			VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: source},
		})
		container := &pod.Spec.Containers[0]
		mount := corev1.VolumeMount{Name: name, MountPath: "/claims/" + name}
		container.VolumeMounts = append(container.VolumeMounts, mount)
	}
}

// allPods returns the names of all pods of a round.
func (c config) allPods() []string {
	var names []string
	for i := range c.singles + 1 { // the first warms up
		names = append(names, singleName(i))
	}
	for _, n := range c.batches {
		names = append(names, batchNames(n)...)
	}
	return names
}

// provide makes the claims of all pods, and waits until they have volumes.
func (r *rig) provide(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, provideTimeout)
	defer cancel()
	api := r.client.CoreV1().PersistentVolumeClaims(namespace)
	var claims []string
	for _, pod := range r.allPods() {
		claims = append(claims, r.claimNames(pod)...)
	}
	if err := each(creators, claims, func(name string) error {
		claim := &corev1.PersistentVolumeClaim{
			ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{annotationSelectedNode: nodeName}},
			Spec: corev1.PersistentVolumeClaimSpec{
				AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
				Resources: corev1.VolumeResourceRequirements{
					Requests: corev1.ResourceList{corev1.ResourceStorage: claimSize},
				},
			},
		}
		_, err := api.Create(ctx, claim, metav1.CreateOptions{})
		return err
	}); err != nil {
		return fmt.Errorf("create claims: %w", err)
	}
	tick := time.NewTicker(time.Second) // it is not measured
	defer tick.Stop()
	for {
		list, err := api.List(ctx, metav1.ListOptions{})
		if err != nil {
			return fmt.Errorf("wait for volumes: %w", err)
		}
		waiting := slices.DeleteFunc(list.Items, func(c corev1.PersistentVolumeClaim) bool {
			return c.Status.Phase == corev1.ClaimBound
		})
		if len(waiting) == 0 && len(list.Items) > 0 {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("wait for volumes: %d of %d claims have none: %w", len(waiting), len(claims), context.Cause(ctx))
		}
	}
}
