package manifests

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	podresource "k8s.io/component-helpers/resource"
)

// DefaultPod sets all defaults that the API server would have set (Kubernetes 1.36). None may be missing, because the
// UID of a static pod depends on each (kube/kubelethash).
func DefaultPod(pod *corev1.Pod) {
	s := &pod.Spec
	for _, list := range [][]corev1.Container{s.Containers, s.InitContainers} {
		for i := range list {
			defaultRequests(&list[i].Resources)
		}
	}
	defaultPodResources(pod)
	setPointer(&s.EnableServiceLinks, corev1.DefaultEnableServiceLinks)
	setDefault(&s.RestartPolicy, corev1.RestartPolicyAlways)
	setDefault(&s.DNSPolicy, corev1.DNSClusterFirst)
	setDefault(&s.SchedulerName, corev1.DefaultSchedulerName)
	setPointer(&s.TerminationGracePeriodSeconds, corev1.DefaultTerminationGracePeriodSeconds)
	if s.SecurityContext == nil {
		s.SecurityContext = &corev1.PodSecurityContext{}
	}
	for _, list := range [][]corev1.Container{s.InitContainers, s.Containers} {
		for i := range list {
			defaultContainer(&list[i], s.HostNetwork)
		}
	}
	for i := range s.Volumes {
		defaultVolume(&s.Volumes[i])
	}
	roundUp(s.Overhead)
	if s.Resources != nil {
		roundUp(s.Resources.Limits, s.Resources.Requests)
	}
}

// defaultRequests sets requests that are missing to their limits.
func defaultRequests(r *corev1.ResourceRequirements) {
	if r.Limits != nil && r.Requests == nil {
		r.Requests = corev1.ResourceList{}
	}
	for name, limit := range r.Limits {
		if _, requested := r.Requests[name]; !requested {
			r.Requests[name] = limit.DeepCopy()
		}
	}
}

// defaultPodResources sets missing resources of the pod as a whole (KEP-2837). Missing requests, and missing limits of
// huge pages, become the sums of the containers'; without such a sum, requests become the limits.
func defaultPodResources(pod *corev1.Pod) {
	r := pod.Spec.Resources
	if r == nil || len(r.Limits) == 0 && len(r.Requests) == 0 {
		return
	}
	for name, limit := range podresource.AggregateContainerLimits(pod, podresource.PodResourcesOptions{}) {
		if _, requested := r.Requests[name]; requested || !isHugePages(name) {
			continue
		}
		r.Limits = withDefault(r.Limits, name, limit)
	}
	if len(r.Limits) == 0 {
		return
	}
	for name, request := range podresource.AggregateContainerRequests(pod, podresource.PodResourcesOptions{}) {
		if podresource.IsSupportedPodLevelResource(name) && !isHugePages(name) {
			r.Requests = withDefault(r.Requests, name, request)
		}
	}
	for name, limit := range r.Limits {
		if podresource.IsSupportedPodLevelResource(name) {
			r.Requests = withDefault(r.Requests, name, limit)
		}
	}
}

func isHugePages(name corev1.ResourceName) bool {
	return strings.HasPrefix(string(name), corev1.ResourceHugePagesPrefix)
}

func withDefault(list corev1.ResourceList, name corev1.ResourceName, q resource.Quantity) corev1.ResourceList {
	if _, has := list[name]; has {
		return list
	}
	if list == nil {
		list = corev1.ResourceList{}
	}
	list[name] = q.DeepCopy()
	return list
}

// roundUp rounds amounts up to thousandths, the API's precision.
func roundUp(lists ...corev1.ResourceList) {
	for _, list := range lists {
		for name, q := range list {
			q.RoundUp(resource.Milli)
			list[name] = q
		}
	}
}

func defaultContainer(c *corev1.Container, hostNetwork bool) {
	setDefault(&c.TerminationMessagePath, corev1.TerminationMessagePathDefault)
	setDefault(&c.TerminationMessagePolicy, corev1.TerminationMessageReadFile)
	setDefault(&c.ImagePullPolicy, pullPolicy(c.Image))
	for i := range c.Ports {
		setDefault(&c.Ports[i].Protocol, corev1.ProtocolTCP)
		if hostNetwork {
			setDefault(&c.Ports[i].HostPort, c.Ports[i].ContainerPort)
		}
	}
	roundUp(c.Resources.Limits, c.Resources.Requests)
	for i := range c.Env {
		from := c.Env[i].ValueFrom
		if from == nil {
			continue
		}
		defaultFieldRef(from.FieldRef)
		if from.FileKeyRef != nil {
			setPointer(&from.FileKeyRef.Optional, false)
		}
	}
	for _, p := range []*corev1.Probe{c.LivenessProbe, c.ReadinessProbe, c.StartupProbe} {
		if p != nil {
			defaultProbe(p)
		}
	}
	if c.Lifecycle == nil {
		return
	}
	for _, hook := range []*corev1.LifecycleHandler{c.Lifecycle.PostStart, c.Lifecycle.PreStop} {
		if hook != nil {
			defaultHTTPGet(hook.HTTPGet)
		}
	}
}

// pullPolicy returns the policy for an image: without a tag, or with the tag latest, it may change under its name.
func pullPolicy(image string) corev1.PullPolicy {
	name, _, digested := strings.Cut(image, "@")
	name = name[strings.LastIndex(name, "/")+1:]
	if _, tag, tagged := strings.Cut(name, ":"); tag == "latest" || !tagged && !digested {
		return corev1.PullAlways
	}
	return corev1.PullIfNotPresent
}

func defaultFieldRef(r *corev1.ObjectFieldSelector) {
	if r != nil {
		setDefault(&r.APIVersion, "v1")
	}
}

func defaultProbe(p *corev1.Probe) {
	setDefault(&p.TimeoutSeconds, 1)
	setDefault(&p.PeriodSeconds, 10)
	setDefault(&p.SuccessThreshold, 1)
	setDefault(&p.FailureThreshold, 3)
	defaultHTTPGet(p.HTTPGet)
	if p.GRPC != nil {
		setPointer(&p.GRPC.Service, "")
	}
}

func defaultHTTPGet(g *corev1.HTTPGetAction) {
	if g != nil {
		setDefault(&g.Path, "/")
		setDefault(&g.Scheme, corev1.URISchemeHTTP)
	}
}

func defaultVolume(v *corev1.Volume) {
	if v.VolumeSource == (corev1.VolumeSource{}) {
		v.EmptyDir = &corev1.EmptyDirVolumeSource{}
	}
	if v.Image != nil {
		setDefault(&v.Image.PullPolicy, pullPolicy(v.Image.Reference))
	}
	if v.HostPath != nil {
		setPointer(&v.HostPath.Type, corev1.HostPathUnset)
	}
	if v.Secret != nil {
		setPointer(&v.Secret.DefaultMode, corev1.SecretVolumeSourceDefaultMode)
	}
	if v.ConfigMap != nil {
		setPointer(&v.ConfigMap.DefaultMode, corev1.ConfigMapVolumeSourceDefaultMode)
	}
	if v.DownwardAPI != nil {
		setPointer(&v.DownwardAPI.DefaultMode, corev1.DownwardAPIVolumeSourceDefaultMode)
		defaultItems(v.DownwardAPI.Items)
	}
	if v.Projected != nil {
		setPointer(&v.Projected.DefaultMode, corev1.ProjectedVolumeSourceDefaultMode)
		for _, source := range v.Projected.Sources {
			if source.DownwardAPI != nil {
				defaultItems(source.DownwardAPI.Items)
			}
			if source.ServiceAccountToken != nil {
				setPointer(&source.ServiceAccountToken.ExpirationSeconds, 3600)
			}
		}
	}
	if v.Ephemeral != nil && v.Ephemeral.VolumeClaimTemplate != nil {
		claim := &v.Ephemeral.VolumeClaimTemplate.Spec
		setPointer(&claim.VolumeMode, corev1.PersistentVolumeFilesystem)
		roundUp(claim.Resources.Limits, claim.Resources.Requests)
	}
	defaultDriver(&v.VolumeSource)
}

func defaultItems(items []corev1.DownwardAPIVolumeFile) {
	for i := range items {
		defaultFieldRef(items[i].FieldRef)
	}
}

// defaultDriver sets the defaults of volumes that need a driver.
func defaultDriver(v *corev1.VolumeSource) {
	if v.ISCSI != nil {
		setDefault(&v.ISCSI.ISCSIInterface, "default")
	}
	if v.RBD != nil {
		setDefault(&v.RBD.RBDPool, "rbd")
		setDefault(&v.RBD.RadosUser, "admin")
		setDefault(&v.RBD.Keyring, "/etc/ceph/keyring")
	}
	if v.AzureDisk != nil {
		setPointer(&v.AzureDisk.CachingMode, corev1.AzureDataDiskCachingReadWrite)
		setPointer(&v.AzureDisk.FSType, "ext4")
		setPointer(&v.AzureDisk.ReadOnly, false)
		setPointer(&v.AzureDisk.Kind, corev1.AzureSharedBlobDisk)
	}
	if v.ScaleIO != nil {
		setDefault(&v.ScaleIO.StorageMode, "ThinProvisioned")
		setDefault(&v.ScaleIO.FSType, "xfs")
	}
}

func setDefault[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

func setPointer[T any](field **T, value T) {
	if *field == nil {
		*field = &value
	}
}
