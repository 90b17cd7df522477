// Package scheme has the Go types of the API groups that we use, by group and version. The client uses it, and so do
// readers of manifest files.
//
// It is not the scheme of client-go, which has every group of Kubernetes and would make each process larger. A kind
// whose group is missing here cannot be decoded; a new group is one line. It has no defaults and no conversions between
// versions: there is one version of each group.
package scheme

import (
	appsv1 "k8s.io/api/apps/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	certificatesv1beta1 "k8s.io/api/certificates/v1beta1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	resourcev1 "k8s.io/api/resource/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/plimsoll-dev/plimsoll/internal/kube/topology"
)

// Scheme is used by all processes. It is complete from the start; types must not be added to it.
var Scheme = complete()

func complete() *runtime.Scheme {
	s := runtime.NewScheme()
	metav1.AddToGroupVersion(s, schema.GroupVersion{Version: "v1"})
	for _, add := range []func(*runtime.Scheme) error{
		corev1.AddToScheme,
		appsv1.AddToScheme,
		policyv1.AddToScheme,
		schedulingv1.AddToScheme,
		coordinationv1.AddToScheme,
		storagev1.AddToScheme,
		authenticationv1.AddToScheme,
		authorizationv1.AddToScheme,
		topology.AddToScheme,
		resourcev1.AddToScheme,
		certificatesv1.AddToScheme,
		certificatesv1beta1.AddToScheme,
	} {
		if err := add(s); err != nil {
			panic(err) // a type is registered twice: a programming error that any test finds
		}
	}
	return s
}
