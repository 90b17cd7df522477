// Package kube is our client of the Kubernetes API: requests for the kinds that we use, watches into local stores, and
// Events. Package translate, which needs no connection, translates API objects to values of the core.
//
// The client is the REST machinery of k8s.io/client-go over a scheme with only the groups that we use. The generated
// clientset registers every group of Kubernetes, which would add several MiB to a node agent. Objects are protobuf on
// the wire and the k8s.io/api types in memory.
//
// The package makes no decisions. How many writes may be in flight is decided by core/throttle (Gate). Kubernetes types
// are used here and in the packages that do I/O; the core does not use them.
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

// The kinds that we use. A new kind is one entry here and, for a new group, one line in package scheme.
var (
	Pods                   = Kind{corev1.SchemeGroupVersion, "pods", true, func() runtime.Object { return &corev1.Pod{} }, func() runtime.Object { return &corev1.PodList{} }}
	Nodes                  = Kind{corev1.SchemeGroupVersion, "nodes", false, func() runtime.Object { return &corev1.Node{} }, func() runtime.Object { return &corev1.NodeList{} }}
	Services               = Kind{corev1.SchemeGroupVersion, "services", true, func() runtime.Object { return &corev1.Service{} }, func() runtime.Object { return &corev1.ServiceList{} }}
	Namespaces             = Kind{corev1.SchemeGroupVersion, "namespaces", false, func() runtime.Object { return &corev1.Namespace{} }, func() runtime.Object { return &corev1.NamespaceList{} }}
	ConfigMaps             = Kind{corev1.SchemeGroupVersion, "configmaps", true, func() runtime.Object { return &corev1.ConfigMap{} }, func() runtime.Object { return &corev1.ConfigMapList{} }}
	Secrets                = Kind{corev1.SchemeGroupVersion, "secrets", true, func() runtime.Object { return &corev1.Secret{} }, func() runtime.Object { return &corev1.SecretList{} }}
	Events                 = Kind{corev1.SchemeGroupVersion, "events", true, func() runtime.Object { return &corev1.Event{} }, func() runtime.Object { return &corev1.EventList{} }}
	ServiceAccounts        = Kind{corev1.SchemeGroupVersion, "serviceaccounts", true, func() runtime.Object { return &corev1.ServiceAccount{} }, func() runtime.Object { return &corev1.ServiceAccountList{} }}
	ReplicationControllers = Kind{corev1.SchemeGroupVersion, "replicationcontrollers", true, func() runtime.Object { return &corev1.ReplicationController{} }, func() runtime.Object { return &corev1.ReplicationControllerList{} }}
	ReplicaSets            = Kind{appsv1.SchemeGroupVersion, "replicasets", true, func() runtime.Object { return &appsv1.ReplicaSet{} }, func() runtime.Object { return &appsv1.ReplicaSetList{} }}
	StatefulSets           = Kind{appsv1.SchemeGroupVersion, "statefulsets", true, func() runtime.Object { return &appsv1.StatefulSet{} }, func() runtime.Object { return &appsv1.StatefulSetList{} }}
	DisruptionBudgets      = Kind{policyv1.SchemeGroupVersion, "poddisruptionbudgets", true, func() runtime.Object { return &policyv1.PodDisruptionBudget{} }, func() runtime.Object { return &policyv1.PodDisruptionBudgetList{} }}
	VolumeClaims           = Kind{corev1.SchemeGroupVersion, "persistentvolumeclaims", true, func() runtime.Object { return &corev1.PersistentVolumeClaim{} }, func() runtime.Object { return &corev1.PersistentVolumeClaimList{} }}
	Volumes                = Kind{corev1.SchemeGroupVersion, "persistentvolumes", false, func() runtime.Object { return &corev1.PersistentVolume{} }, func() runtime.Object { return &corev1.PersistentVolumeList{} }}
	StorageClasses         = Kind{storagev1.SchemeGroupVersion, "storageclasses", false, func() runtime.Object { return &storagev1.StorageClass{} }, func() runtime.Object { return &storagev1.StorageClassList{} }}
	CSINodes               = Kind{storagev1.SchemeGroupVersion, "csinodes", false, func() runtime.Object { return &storagev1.CSINode{} }, func() runtime.Object { return &storagev1.CSINodeList{} }}
	CSIDrivers             = Kind{storagev1.SchemeGroupVersion, "csidrivers", false, func() runtime.Object { return &storagev1.CSIDriver{} }, func() runtime.Object { return &storagev1.CSIDriverList{} }}
	CSIStorageCapacities   = Kind{storagev1.SchemeGroupVersion, "csistoragecapacities", true, func() runtime.Object { return &storagev1.CSIStorageCapacity{} }, func() runtime.Object { return &storagev1.CSIStorageCapacityList{} }}
	VolumeAttachments      = Kind{storagev1.SchemeGroupVersion, "volumeattachments", false, func() runtime.Object { return &storagev1.VolumeAttachment{} }, func() runtime.Object { return &storagev1.VolumeAttachmentList{} }}
	Leases                 = Kind{coordinationv1.SchemeGroupVersion, "leases", true, func() runtime.Object { return &coordinationv1.Lease{} }, func() runtime.Object { return &coordinationv1.LeaseList{} }}
	TokenReviews           = Kind{authenticationv1.SchemeGroupVersion, "tokenreviews", false, func() runtime.Object { return &authenticationv1.TokenReview{} }, nil}
	Topologies             = Kind{topology.GroupVersion, topology.Resource, false, func() runtime.Object { return &topology.Object{} }, func() runtime.Object { return &topology.List{} }}
	DeviceClasses          = Kind{resourcev1.SchemeGroupVersion, "deviceclasses", false, func() runtime.Object { return &resourcev1.DeviceClass{} }, func() runtime.Object { return &resourcev1.DeviceClassList{} }}
	SubjectAccessReviews   = Kind{authorizationv1.SchemeGroupVersion, "subjectaccessreviews", false, func() runtime.Object { return &authorizationv1.SubjectAccessReview{} }, nil}
)

var (
	codecs         = serializer.NewCodecFactory(scheme.Scheme)
	parameterCodec = runtime.NewParameterCodec(scheme.Scheme)
)

// Options say how to reach an API server.
type Options struct {
	Kubeconfig string  // path of a kubeconfig; empty, with Master empty too: the configuration of the pod in which this process runs
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
		corev1.SchemeGroupVersion, appsv1.SchemeGroupVersion, policyv1.SchemeGroupVersion, coordinationv1.SchemeGroupVersion, storagev1.SchemeGroupVersion,
		authenticationv1.SchemeGroupVersion, authorizationv1.SchemeGroupVersion, topology.GroupVersion, resourcev1.SchemeGroupVersion,
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
func (c *Client) Create(ctx context.Context, k Kind, namespace, name string, obj, out runtime.Object, subresources ...string) error {
	r := c.at(c.groups[k.GroupVersion].Post(), k, namespace)
	if name != "" {
		r = r.Name(name)
	}
	return r.SubResource(subresources...).Body(obj).Do(ctx).Into(out)
}

// Update replaces an object (or its subresource), guarded by its resourceVersion if it has one.
func (c *Client) Update(ctx context.Context, k Kind, namespace, name string, obj, out runtime.Object, subresources ...string) error {
	return c.at(c.groups[k.GroupVersion].Put(), k, namespace).Name(name).SubResource(subresources...).Body(obj).Do(ctx).Into(out)
}

// Patch applies body to an object or subresource and reads the result into out; a nil out discards it.
func (c *Client) Patch(ctx context.Context, k Kind, namespace, name string, t types.PatchType, body []byte, out runtime.Object, subresources ...string) error {
	result := c.at(c.groups[k.GroupVersion].Patch(t), k, namespace).Name(name).SubResource(subresources...).Body(body).Do(ctx)
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
	return c.at(c.groups[Pods.GroupVersion].Post(), Pods, e.Namespace).Name(e.Name).SubResource("eviction").MaxRetries(0).Body(e).Do(ctx).Error()
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
