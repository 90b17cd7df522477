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

// writeOrReduce writes the status. If the server refuses it, writeOrReduce writes what other clients wait for most:
// phase, reason and conditions. It leaves out the new containers' statuses, since users determine their texts. It
// returns the error of the first write in any case.
func (r *Reporter) writeOrReduce(ctx context.Context, p *Pod, object *corev1.Pod, status corev1.PodStatus) error {
	err := r.patch(ctx, p, object, status)
	if !refused(err) {
		return err
	}
	known := p.known(object)
	status.InitContainerStatuses = known.InitContainerStatuses
	status.ContainerStatuses = known.ContainerStatuses
	status.EphemeralContainerStatuses = known.EphemeralContainerStatuses
	if again := r.patch(ctx, p, object, status); again != nil {
		logOf(p, object).Debug("the API server refuses the status without its containers too", "err", again)
	}
	return err
}

// patch writes the status, unless the server is known to have it already.
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

// Delete deletes the object of a pod that has ended, with a grace period of 0. Before that, it writes the pod's last
// status, if it says more about the end than the API's. If the server refuses that status, the pod is deleted without.
func (r *Reporter) Delete(ctx context.Context, p *Pod, object *corev1.Pod) error {
	if err := p.awaitWrite(ctx); err != nil {
		return err
	}
	defer r.endWrite(p)
	if target, status := p.latest(); target != nil && status.Phase != "" && tellsMore(*p.known(target), status) {
		switch err := r.writeOrReduce(ctx, p, target, status); {
		case refused(err):
			logOf(p, target).Error("the API server refuses the last status; the pod is deleted without it", "err", err)
		case err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err):
			return err
		}
	}
	return r.DeleteObject(ctx, object)
}

// tellsMore reports whether the last status of a pod says how the pod or its containers ended and the API's does not.
// Conditions do not count, since the pod is about to be deleted anyway.
func tellsMore(known, status corev1.PodStatus) bool {
	known.Conditions = nil
	status.Conditions = nil
	return !sameStatus(known, status)
}

// DeleteObject deletes a pod of this node with a grace period of 0, and returns nil once the server no longer has it.
//
// For a node, the answer "not found" is not enough. The admission plugin NodeRestriction looks the pod up in a cache,
// which is behind while kube-apiserver or etcd start, and answers "not found" for a pod that it does not know yet. So
// the pods of the node are listed then.
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
			"delete pod %s/%s: it exists, but the API server answers: %w", object.Namespace, object.Name, err,
		)
	}
	return nil
}

// hasObject reports whether the API has the pod with that UID. It lists the pods of this node, which the Node
// authorizer always allows. It would forbid to get a pod that is gone, because no pod of that name is bound to the node
// any more.
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
