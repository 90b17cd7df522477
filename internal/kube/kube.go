// Package kube is our client of the Kubernetes API: requests for the kinds that we use, watches into local stores, and
// Events. Package translate, which needs no connection, translates API objects to values of the core.
//
// The client is the REST machinery of k8s.io/client-go over a scheme with only the groups that we use. The generated
// clientset registers every group of Kubernetes, which would add several MiB to a node agent. Objects are protobuf on
// the wire and the k8s.io/api types in memory.
//
// The package makes no decisions. How many writes may be in flight is decided by core/throttle (Throttle). Kubernetes
// types are used here and in the packages that do I/O; the core does not use them.
package kube

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	certificatesv1beta1 "k8s.io/api/certificates/v1beta1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	resourcev1 "k8s.io/api/resource/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"

	"github.com/plimsoll-dev/plimsoll/internal/kube/scheme"
	"github.com/plimsoll-dev/plimsoll/internal/kube/topology"
)

// Kind says where the API serves a Go type: its group, version and resource name.
type Kind struct {
	schema.GroupVersion
	Resource   string
	Namespaced bool
	New        func() runtime.Object
	NewList    func() runtime.Object
}

// object is a pointer to an API type.
type object[T any] interface {
	*T
	runtime.Object
}

// namespaced returns the kind of the objects O, which live in namespaces, with their lists L.
func namespaced[O, L any, PO object[O], PL object[L]](group schema.GroupVersion, resource string) Kind {
	k := clusterWide[O, L, PO, PL](group, resource)
	k.Namespaced = true
	return k
}

// clusterWide returns the kind of the objects O, which live in no namespace, with their lists L.
func clusterWide[O, L any, PO object[O], PL object[L]](group schema.GroupVersion, resource string) Kind {
	k := unlisted[O, PO](group, resource)
	k.NewList = func() runtime.Object { return PL(new(L)) }
	return k
}

// unlisted returns the kind of the objects O, which are created and not kept.
func unlisted[O any, PO object[O]](group schema.GroupVersion, resource string) Kind {
	return Kind{GroupVersion: group, Resource: resource, New: func() runtime.Object { return PO(new(O)) }}
}

// The kinds that we use. A new kind is one entry here and, for a new group, one line in package scheme.
var (
	Pods            = namespaced[corev1.Pod, corev1.PodList](corev1.SchemeGroupVersion, "pods")
	Nodes           = clusterWide[corev1.Node, corev1.NodeList](corev1.SchemeGroupVersion, "nodes")
	Services        = namespaced[corev1.Service, corev1.ServiceList](corev1.SchemeGroupVersion, "services")
	Namespaces      = clusterWide[corev1.Namespace, corev1.NamespaceList](corev1.SchemeGroupVersion, "namespaces")
	ConfigMaps      = namespaced[corev1.ConfigMap, corev1.ConfigMapList](corev1.SchemeGroupVersion, "configmaps")
	Secrets         = namespaced[corev1.Secret, corev1.SecretList](corev1.SchemeGroupVersion, "secrets")
	Events          = namespaced[corev1.Event, corev1.EventList](corev1.SchemeGroupVersion, "events")
	ServiceAccounts = namespaced[corev1.ServiceAccount, corev1.ServiceAccountList](corev1.SchemeGroupVersion,
		"serviceaccounts")
	ReplicationControllers = namespaced[corev1.ReplicationController, corev1.ReplicationControllerList](
		corev1.SchemeGroupVersion, "replicationcontrollers")
	ReplicaSets  = namespaced[appsv1.ReplicaSet, appsv1.ReplicaSetList](appsv1.SchemeGroupVersion, "replicasets")
	StatefulSets = namespaced[appsv1.StatefulSet, appsv1.StatefulSetList](appsv1.SchemeGroupVersion,
		"statefulsets")
	DisruptionBudgets = namespaced[policyv1.PodDisruptionBudget, policyv1.PodDisruptionBudgetList](
		policyv1.SchemeGroupVersion, "poddisruptionbudgets")
	VolumeClaims = namespaced[corev1.PersistentVolumeClaim, corev1.PersistentVolumeClaimList](
		corev1.SchemeGroupVersion, "persistentvolumeclaims")
	Volumes = clusterWide[corev1.PersistentVolume, corev1.PersistentVolumeList](corev1.SchemeGroupVersion,
		"persistentvolumes")
	StorageClasses = clusterWide[storagev1.StorageClass, storagev1.StorageClassList](storagev1.SchemeGroupVersion,
		"storageclasses")
	CSINodes = clusterWide[storagev1.CSINode, storagev1.CSINodeList](storagev1.SchemeGroupVersion,
		"csinodes")
	CSIDrivers = clusterWide[storagev1.CSIDriver, storagev1.CSIDriverList](storagev1.SchemeGroupVersion,
		"csidrivers")
	CSIStorageCapacities = namespaced[storagev1.CSIStorageCapacity, storagev1.CSIStorageCapacityList](
		storagev1.SchemeGroupVersion, "csistoragecapacities")
	VolumeAttachments = clusterWide[storagev1.VolumeAttachment, storagev1.VolumeAttachmentList](
		storagev1.SchemeGroupVersion, "volumeattachments")
	Leases = namespaced[coordinationv1.Lease, coordinationv1.LeaseList](coordinationv1.SchemeGroupVersion,
		"leases")
	TokenReviews        = unlisted[authenticationv1.TokenReview](authenticationv1.SchemeGroupVersion, "tokenreviews")
	Topologies          = clusterWide[topology.Object, topology.List](topology.GroupVersion, topology.Resource)
	ClusterTrustBundles = clusterWide[certificatesv1beta1.ClusterTrustBundle, certificatesv1beta1.ClusterTrustBundleList](
		certificatesv1beta1.SchemeGroupVersion, "clustertrustbundles")
	PodCertificateRequests = namespaced[certificatesv1beta1.PodCertificateRequest,
		certificatesv1beta1.PodCertificateRequestList](
		certificatesv1beta1.SchemeGroupVersion, "podcertificaterequests")
	DeviceClasses = clusterWide[resourcev1.DeviceClass, resourcev1.DeviceClassList](resourcev1.SchemeGroupVersion,
		"deviceclasses")
	CertificateRequests = clusterWide[certificatesv1.CertificateSigningRequest,
		certificatesv1.CertificateSigningRequestList](
		certificatesv1.SchemeGroupVersion,
		"certificatesigningrequests")
	SubjectAccessReviews = unlisted[authorizationv1.SubjectAccessReview](authorizationv1.SchemeGroupVersion,
		"subjectaccessreviews")
)

var (
	codecs         = serializer.NewCodecFactory(scheme.Scheme)
	parameterCodec = runtime.NewParameterCodec(scheme.Scheme)
)

// Options say how to reach an API server.
type Options struct {
	// path of a kubeconfig; empty, with Master empty too: the configuration of the pod in which this process runs
	Kubeconfig string
	Master     string  // address of the API server, instead of the kubeconfig's; empty: the kubeconfig's
	UserAgent  string  // component name, shown in audit logs
	QPS        float32 // client-side limit in requests per second; negative: none
	Burst      int     // requests that may exceed QPS at once; ignored when QPS is negative
}

// Client sends requests to one API server. It is safe for concurrent use.
type Client struct {
	config *rest.Config
	groups map[schema.GroupVersion]rest.Interface
}

// NewClient reads the kubeconfig and prepares a connection; it does not dial.
func NewClient(o Options) (*Client, error) {
	config, err := clientcmd.BuildConfigFromFlags(o.Master, o.Kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("read kubeconfig: %s: %w", o.Kubeconfig, err)
	}
	config.UserAgent = o.UserAgent
	config.QPS, config.Burst = o.QPS, o.Burst
	return NewClientForConfig(config)
}

// NewClientForConfig prepares a client for a copy of an existing REST configuration.
func NewClientForConfig(config *rest.Config) (*Client, error) {
	config = rest.CopyConfig(config)
	config.NegotiatedSerializer = codecs.WithoutConversion()
	config.ContentType = "application/vnd.kubernetes.protobuf"
	config.AcceptContentTypes = "application/vnd.kubernetes.protobuf,application/json"
	if config.Dial == nil {
		// A peer that vanished without a reset is noticed by TCP keep-alive and by HTTP/2 pings.
		config.Dial = (&net.Dialer{Timeout: 10 * time.Second, KeepAlive: 15 * time.Second}).DialContext
	}
	httpClient, err := rest.HTTPClientFor(config)
	if err != nil {
		return nil, fmt.Errorf("connect to %s: %w", config.Host, err)
	}
	c := &Client{config: config, groups: map[schema.GroupVersion]rest.Interface{}}
	for _, gv := range []schema.GroupVersion{
		corev1.SchemeGroupVersion, appsv1.SchemeGroupVersion, policyv1.SchemeGroupVersion, coordinationv1.SchemeGroupVersion,
		storagev1.SchemeGroupVersion,
		authenticationv1.SchemeGroupVersion, authorizationv1.SchemeGroupVersion, topology.GroupVersion,
		resourcev1.SchemeGroupVersion,
		certificatesv1.SchemeGroupVersion, certificatesv1beta1.SchemeGroupVersion,
	} {
		group := rest.CopyConfig(config)
		if gv == topology.GroupVersion { // custom resources have no protobuf form
			group.ContentType, group.AcceptContentTypes = runtime.ContentTypeJSON, runtime.ContentTypeJSON
		}
		group.GroupVersion = &gv
		group.APIPath = "/apis"
		if gv.Group == "" {
			group.APIPath = "/api"
		}
		if c.groups[gv], err = rest.RESTClientForConfigAndClient(group, httpClient); err != nil {
			return nil, fmt.Errorf("connect to %s: group %s: %w", config.Host, gv, err)
		}
	}
	return c, nil
}

// Host returns the address of the API server, for messages.
func (c *Client) Host() string { return c.config.Host }

// RESTConfig returns a copy of the configuration, for libraries that make their own connections.
func (c *Client) RESTConfig() *rest.Config { return rest.CopyConfig(c.config) }

// REST returns the raw client of a group and version that is in package scheme.
func (c *Client) REST(gv schema.GroupVersion) rest.Interface { return c.groups[gv] }

func (c *Client) at(r *rest.Request, k Kind, namespace string) *rest.Request {
	return r.NamespaceIfScoped(namespace, k.Namespaced).Resource(k.Resource)
}

// Get fetches one object into out.
func (c *Client) Get(ctx context.Context, k Kind, namespace, name string, out runtime.Object) error {
	return c.at(c.groups[k.GroupVersion].Get(), k, namespace).Name(name).Do(ctx).Into(out)
}

// GetCached fetches one object into out as the API server's watch cache has it, which costs no read of etcd. It may be
// older than the last write: by milliseconds, or as much as that API server lags behind (kubernetes.io, "Kubernetes API
// Concepts", resourceVersion "0").
func (c *Client) GetCached(ctx context.Context, k Kind, namespace, name string, out runtime.Object) error {
	r := c.at(c.groups[k.GroupVersion].Get(), k, namespace).Name(name)
	return r.VersionedParams(&metav1.GetOptions{ResourceVersion: "0"}, parameterCodec).Do(ctx).Into(out)
}

// List fetches the objects that match o into out. An empty namespace means all of them.
func (c *Client) List(ctx context.Context, k Kind, namespace string, o metav1.ListOptions, out runtime.Object) error {
	return c.at(c.groups[k.GroupVersion].Get(), k, namespace).VersionedParams(&o, parameterCodec).Do(ctx).Into(out)
}

// Watch streams changes to the objects that match o.
func (c *Client) Watch(ctx context.Context, k Kind, namespace string, o metav1.ListOptions) (watch.Interface, error) {
	o.Watch = true
	return c.at(c.groups[k.GroupVersion].Get(), k, namespace).VersionedParams(&o, parameterCodec).Watch(ctx)
}

// Create posts obj and reads the server's answer into out, which may be obj. Subresources (token, binding,
// eviction) take the name of their parent as name; ordinary objects leave name empty.
func (c *Client) Create(ctx context.Context, k Kind, namespace, name string, obj, out runtime.Object,
	subresources ...string) error {
	r := c.at(c.groups[k.GroupVersion].Post(), k, namespace)
	if name != "" {
		r = r.Name(name)
	}
	return r.SubResource(subresources...).Body(obj).Do(ctx).Into(out)
}

// Update replaces an object (or its subresource), guarded by its resourceVersion if it has one.
func (c *Client) Update(ctx context.Context, k Kind, namespace, name string, obj, out runtime.Object,
	subresources ...string) error {
	return c.at(c.groups[k.GroupVersion].Put(), k,
		namespace).Name(name).SubResource(subresources...).Body(obj).Do(ctx).Into(out)
}

// Patch applies body to an object or subresource and reads the result into out; a nil out discards it.
func (c *Client) Patch(ctx context.Context, k Kind, namespace, name string, t types.PatchType, body []byte,
	out runtime.Object, subresources ...string) error {
	result := c.at(c.groups[k.GroupVersion].Patch(t), k,
		namespace).Name(name).SubResource(subresources...).Body(body).Do(ctx)
	if out == nil {
		return result.Error()
	}
	return result.Into(out)
}

// Delete deletes an object, subject to the preconditions and the grace period in o.
func (c *Client) Delete(ctx context.Context, k Kind, namespace, name string, o metav1.DeleteOptions) error {
	return c.at(c.groups[k.GroupVersion].Delete(), k, namespace).Name(name).Body(&o).Do(ctx).Error()
}

// Evict requests the eviction of a pod, once. The caller decides whether and when to retry after a PodDisruptionBudget
// refused it.
func (c *Client) Evict(ctx context.Context, e *policyv1.Eviction) error {
	return c.at(c.groups[Pods.GroupVersion].Post(), Pods,
		e.Namespace).Name(e.Name).SubResource("eviction").MaxRetries(0).Body(e).Do(ctx).Error()
}

// Ready asks the API server's /readyz. A nil error means that it answered ok.
func (c *Client) Ready(ctx context.Context) error {
	body, err := c.groups[corev1.SchemeGroupVersion].Get().AbsPath("/readyz").Timeout(5 * time.Second).DoRaw(ctx)
	if err != nil {
		return fmt.Errorf("ask %s/readyz: %w", c.config.Host, err)
	}
	if string(body) != "ok" {
		return fmt.Errorf("ask %s/readyz: answered %.200q", c.config.Host, body)
	}
	return nil
}

// LogToSlog sends what client-go logs through klog to slog, so that a component writes one log.
func LogToSlog() { klog.SetSlogLogger(slog.Default()) }
