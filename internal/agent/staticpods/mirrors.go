package staticpods

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/plimsoll-dev/plimsoll/internal/kube"
)

// callTimeout bounds a call to the API server; a failed one is repeated after retryDelay (both chosen).
const (
	callTimeout = 30 * time.Second
	retryDelay  = 5 * time.Second
)

// MirrorSeen is called when the watch has delivered a mirror pod.
func (s *Source) MirrorSeen(mirror *corev1.Pod) {
	s.mu.Lock()
	s.mirrors[key(mirror)] = mirror
	s.mu.Unlock()
	s.Resync()
}

// MirrorGone is called when a mirror pod was deleted.
func (s *Source) MirrorGone(mirror *corev1.Pod) {
	s.mu.Lock()
	if m := s.mirrors[key(mirror)]; m != nil && m.UID == mirror.UID {
		delete(s.mirrors, key(mirror))
	}
	s.mu.Unlock()
	s.Resync()
}

// MirrorsSynced is called when the watch has delivered every mirror pod. Until then none is created or deleted.
func (s *Source) MirrorsSynced() {
	s.mu.Lock()
	s.mirrorsRead = true
	s.mu.Unlock()
	s.Resync()
}

// keepMirrors keeps the mirror pods equal to the static pods. It waits for the API server, unlike the goroutine that
// starts and ends static pods.
func (s *Source) keepMirrors(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.reflect:
		}
		wanted := s.pods()
		s.reconcileMirrors(ctx, wanted, s.live(wanted))
	}
}

// reconcileMirrors creates missing mirrors, and deletes those with another content and those of pods that are gone.
// live are the static pods that are still on the node: the mirror of a pod that is ending stays and shows its end.
func (s *Source) reconcileMirrors(ctx context.Context, wanted map[string]*corev1.Pod, live map[string]types.UID) {
	s.mu.Lock()
	synced, mirrors := s.mirrorsRead, maps.Clone(s.mirrors)
	s.mu.Unlock()
	if !synced {
		return
	}
	retry := false
	for k, m := range mirrors {
		pod := wanted[k]
		if pod != nil && m.Annotations[corev1.MirrorPodAnnotationKey] == string(pod.UID) && m.DeletionTimestamp == nil {
			s.Runner.Mirrored(pod.UID, m)
			continue
		}
		if uid, here := live[k]; here && m.Annotations[corev1.MirrorPodAnnotationKey] == string(uid) &&
			m.DeletionTimestamp == nil {
			continue
		}
		if err := s.Runner.DeleteMirror(ctx, m); err != nil {
			slog.Warn("static pods: mirror not deleted, trying again", "pod", k, "err", err)
			retry = true
		}
	}
	for k, pod := range wanted {
		if mirrors[k] != nil {
			continue
		}
		if err := s.createMirror(ctx, pod); err != nil {
			slog.Warn("static pods: mirror not created, trying again", "pod", k, "err", err)
			retry = true
		}
	}
	if retry {
		time.AfterFunc(retryDelay, s.Resync)
	}
}

// createMirror creates the mirror of a static pod. The API server admits it only if the Node is its owner.
func (s *Source) createMirror(ctx context.Context, pod *corev1.Pod) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	node := &corev1.Node{}
	if err := s.Client.Get(ctx, kube.Nodes, "", s.Node, node); err != nil {
		return fmt.Errorf("read node %s: %w", s.Node, err)
	}
	mirror := pod.DeepCopy()
	mirror.UID = ""
	mirror.ResourceVersion = ""
	mirror.CreationTimestamp = metav1.Time{}
	mirror.Status = corev1.PodStatus{}
	delete(mirror.Annotations, annotationPath)
	mirror.Annotations[corev1.MirrorPodAnnotationKey] = string(pod.UID)
	controller := true
	mirror.OwnerReferences = []metav1.OwnerReference{{
		APIVersion: "v1",
		Kind:       "Node",
		Name:       node.Name,
		UID:        node.UID,
		Controller: &controller,
	}}
	err := s.Client.Create(ctx, kube.Pods, mirror.Namespace, "", mirror, &corev1.Pod{})
	if apierrors.IsAlreadyExists(err) {
		return nil // the watch will deliver it
	}
	return err
}
