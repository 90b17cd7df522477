package bootstrap

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/plimsoll-dev/plimsoll/internal/kube"
	"github.com/plimsoll-dev/plimsoll/internal/kube/certrequest"
)

// A machine that joins claims the name of its node (certrequest.Claim). The claim is of no use once the node is there,
// because others see the node. It must not go before the node does: a machine that has just seen no node would then
// claim the name, too. So the node is made the claim's owner, and upstream's garbage collector deletes the claim after
// the node.

// IsUnbound returns whether a request claims a name that a node may have by now, and belongs to no node yet.
func IsUnbound(r *certificatesv1.CertificateSigningRequest, now time.Time) bool {
	return certrequest.ClaimedNode(r) != "" && len(r.OwnerReferences) == 0 &&
		now.Sub(r.CreationTimestamp.Time) < certrequest.ClaimLife
}

// BindName makes the node own a request that claims its name, if the node is there.
func BindName(ctx context.Context, c *kube.Client, r *certificatesv1.CertificateSigningRequest) error {
	node := &corev1.Node{}
	err := c.Get(ctx, kube.Nodes, "", certrequest.ClaimedNode(r), node)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err == nil {
		err = setOwner(ctx, c, r.Name, node)
	}
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("bind request %s to its node: %w", r.Name, err)
	}
	return nil
}

func setOwner(ctx context.Context, c *kube.Client, request string, node *corev1.Node) error {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"ownerReferences": []metav1.OwnerReference{{
		APIVersion: "v1",
		Kind:       "Node",
		Name:       node.Name,
		UID:        node.UID,
	}}}})
	if err != nil {
		return err
	}
	return c.Patch(ctx, kube.CertificateRequests, "", request, types.MergePatchType, patch, nil)
}

// FreeName deletes the requests that keep machines from joining with the name of a node, and returns how many there
// were.
func FreeName(ctx context.Context, c *kube.Client, node string) (int, error) {
	list := &certificatesv1.CertificateSigningRequestList{}
	if err := c.List(ctx, kube.CertificateRequests, "", metav1.ListOptions{}, list); err != nil {
		return 0, err
	}
	freed := 0
	for i := range list.Items {
		if certrequest.ClaimedNode(&list.Items[i]) != node {
			continue
		}
		err := c.Delete(ctx, kube.CertificateRequests, "", list.Items[i].Name, metav1.DeleteOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			return freed, err
		}
		freed++
	}
	return freed, nil
}
