package statusreport

import (
	"context"
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"

	"github.com/plimsoll-dev/plimsoll/internal/kube"
)

// say writes the status, and where the server refuses it, what others wait for most: phase, reason and conditions,
// without what is new of containers, whose texts are users'. That the whole was refused is an error all the same.
func (r *Reporter) say(ctx context.Context, p *Pod, object *corev1.Pod, status corev1.PodStatus) error {
	err := r.patch(ctx, p, object, status)
	if !refused(err) {
		return err
	}
	known := p.known(object)
	status.InitContainerStatuses = known.InitContainerStatuses
	status.ContainerStatuses = known.ContainerStatuses
	status.EphemeralContainerStatuses = known.EphemeralContainerStatuses
	if again := r.patch(ctx, p, object, status); again != nil {
		logOf(p, object).Debug("nor does the API server take the status without its containers", "err", again)
	}
	return err
}

// patch writes the status unless the server is known to have it.
func (r *Reporter) patch(ctx context.Context, p *Pod, object *corev1.Pod, status corev1.PodStatus) error {
	known := p.known(object)
	if sameStatus(*known, status) {
		return nil
	}
	body, err := patchBody(object, *known, status)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	answer := &corev1.Pod{}
	err = r.client.Patch(
		ctx, kube.Pods, object.Namespace, object.Name, types.StrategicMergePatchType, body, answer, "status",
	)
	if err != nil {
		return fmt.Errorf("write status of %s/%s: %w", object.Namespace, object.Name, err)
	}
	p.wrote(answer)
	return nil
}

// Delete writes the last status of a pod that has ended here, if it tells more of the end than the API has, and deletes
// the object with no grace. A status that the server refuses must not keep the pod for ever.
func (r *Reporter) Delete(ctx context.Context, p *Pod, object *corev1.Pod) error {
	if err := p.awaitWrite(ctx); err != nil {
		return err
	}
	defer r.endWrite(p)
	if target, status := p.latest(); target != nil && status.Phase != "" && tellsMore(*p.known(target), status) {
		switch err := r.say(ctx, p, target, status); {
		case refused(err):
			logOf(p, target).Error("the API server refuses the last status; the pod goes without it", "err", err)
		case err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err):
			return err
		}
	}
	return r.DeleteObject(ctx, object)
}

// tellsMore reports whether a status tells of a pod that is deleted in the same breath what the API does not have: how
// it or its containers ended. Conditions are left out: that its sandbox is gone, the deletion says.
func tellsMore(known, status corev1.PodStatus) bool {
	known.Conditions = nil
	status.Conditions = nil
	return !sameStatus(known, status)
}

// DeleteObject deletes a pod of this node with no grace, and returns nil once the server no longer has it.
//
// For a node, "not found" alone does not mean that. Admission (NodeRestriction) looks the pod up in a cache that is
// behind while kube-apiserver or etcd start, and says of a pod that it does not know yet that there is none. So the
// pods of the node are listed.
func (r *Reporter) DeleteObject(ctx context.Context, object *corev1.Pod) error {
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	zero := int64(0)
	err := r.client.Delete(ctx, kube.Pods, object.Namespace, object.Name, metav1.DeleteOptions{
		GracePeriodSeconds: &zero,
		Preconditions:      &metav1.Preconditions{UID: &object.UID},
	})
	if err == nil || !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		return err
	}
	has, listErr := r.hasObject(ctx, object)
	if listErr != nil {
		return errors.Join(err, listErr)
	}
	if has {
		return fmt.Errorf(
			"delete pod %s/%s: it is there, yet the API server says: %w", object.Namespace, object.Name, err,
		)
	}
	return nil
}

// hasObject reports whether the API has that very pod. It lists the pods of this node, which the Node authorizer always
// allows a node: a get of a pod that is gone is forbidden, because nothing relates the node to it any more.
func (r *Reporter) hasObject(ctx context.Context, object *corev1.Pod) (bool, error) {
	which := fields.AndSelectors(
		fields.OneTermEqualSelector("spec.nodeName", r.node), fields.OneTermEqualSelector("metadata.name", object.Name),
	)
	list := &corev1.PodList{}
	err := r.client.List(ctx, kube.Pods, object.Namespace, metav1.ListOptions{FieldSelector: which.String()}, list)
	if err != nil {
		return false, err
	}
	return slices.ContainsFunc(list.Items, func(pod corev1.Pod) bool { return pod.UID == object.UID }), nil
}
