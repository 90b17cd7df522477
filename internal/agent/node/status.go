package node

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/plimsoll-dev/plimsoll/internal/agent/runtimehandler"
	"github.com/plimsoll-dev/plimsoll/internal/core/heartbeat"
	"github.com/plimsoll-dev/plimsoll/internal/kube/podfields"
	"github.com/plimsoll-dev/plimsoll/internal/kube/translate"
	"github.com/plimsoll-dev/plimsoll/internal/version"
)

// runtimeAnswer is the runtime's last answer.
type runtimeAnswer struct {
	at       time.Time // zero: none yet
	problems []string  // why it is not ready, in the kubelet's words; none: ready
	version  string    // containerd://1.6.20
	handlers []corev1.NodeRuntimeHandler
	features *corev1.NodeFeatures
	can      podfields.Abilities
}

// askRuntime asks the runtime whether it and the network are ready.
func (k *Reporter) askRuntime(ctx context.Context) (heartbeat.Fact, error) {
	k.mu.Lock()
	answer := runtimeAnswer{version: k.runtime.version}
	k.mu.Unlock()
	status, err := k.o.Runtime.Status(ctx, &runtimeapi.StatusRequest{})
	if err == nil && answer.version == "" {
		var v *runtimeapi.VersionResponse
		if v, err = k.o.Runtime.Version(ctx, &runtimeapi.VersionRequest{}); err == nil {
			answer.version = v.RuntimeName + "://" + v.RuntimeVersion
		}
	}
	if err != nil {
		k.mu.Lock()
		k.runtime.version = "" // it may have been replaced by another release
		k.mu.Unlock()
		return heartbeat.Fact{}, err
	}
	answer.at = k.now()
	answer.problems = runtimeProblems(status.Status)
	users := k.o.UserNamespaces != nil && k.o.UserNamespaces()
	answer.handlers = handlersOf(status.RuntimeHandlers, users)
	name, release, _ := strings.Cut(answer.version, "://")
	answer.can = runtimehandler.Of(name, release, status.RuntimeHandlers).Abilities
	answer.can.UserNamespaces = answer.can.UserNamespaces && users
	if f := status.Features; f != nil {
		answer.features = &corev1.NodeFeatures{SupplementalGroupsPolicy: &f.SupplementalGroupsPolicy}
	}
	k.mu.Lock()
	k.runtime = answer
	k.mu.Unlock()
	return heartbeat.Fact{Ready: len(answer.problems) == 0}, nil
}

func runtimeProblems(s *runtimeapi.RuntimeStatus) []string {
	var problems []string
	for _, want := range []struct{ condition, text string }{
		{runtimeapi.RuntimeReady, "container runtime not ready"},
		{runtimeapi.NetworkReady, "container runtime network not ready"},
	} {
		found := false
		for _, c := range s.GetConditions() {
			if c.Type != want.condition {
				continue
			}
			found = true
			if !c.Status {
				problems = append(problems, fmt.Sprintf("%s: %s=%t reason:%s message:%s", want.text, c.Type, c.Status, c.Reason,
					c.Message))
			}
		}
		if !found {
			problems = append(problems, fmt.Sprintf("%s: the runtime does not report %s", want.text, want.condition))
		}
	}
	return problems
}

// handlersOf translates what the runtime says of its handlers. If the agent or the kernel cannot give pods users of
// their own, the Node must not advertise that the runtime could: other components, such as Pod Security, rely on it.
func handlersOf(handlers []*runtimeapi.RuntimeHandler, userNamespaces bool) []corev1.NodeRuntimeHandler {
	var out []corev1.NodeRuntimeHandler
	for _, h := range handlers {
		f := h.GetFeatures()
		readOnly, users := f.GetRecursiveReadOnlyMounts(), userNamespaces && f.GetUserNamespaces()
		features := &corev1.NodeRuntimeHandlerFeatures{RecursiveReadOnlyMounts: &readOnly, UserNamespaces: &users}
		out = append(out, corev1.NodeRuntimeHandler{Name: h.Name, Features: features})
	}
	slices.SortFunc(out, func(a, b corev1.NodeRuntimeHandler) int { return cmp.Compare(a.Name, b.Name) })
	return out
}

// compute computes the Node's status and whether it differs from the API server's.
func (k *Reporter) compute(ctx context.Context) (heartbeat.Fact, error) {
	k.refresh(ctx)
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.base == nil {
		return heartbeat.Fact{}, nil // deleted meanwhile; register is called next
	}
	node := k.base.DeepCopy()
	k.fill(node)
	k.computed = node
	return heartbeat.Fact{Changed: !same(k.base, node)}, nil
}

// refresh reads what takes time to read, and must not be waited for under the lock.
func (k *Reporter) refresh(ctx context.Context) {
	k.refreshImages(ctx)
	k.mu.Lock()
	fresh := !k.addressesAt.IsZero() && k.now().Sub(k.addressesAt) < addressesEvery
	k.mu.Unlock()
	if fresh {
		return
	}
	found, err := k.o.Addresses()
	if err != nil {
		k.failures.Failed("find node addresses", err)
		return
	}
	k.failures.Succeeded("find node addresses")
	k.mu.Lock()
	defer k.mu.Unlock()
	k.addresses, k.addressesAt = found, k.now()
}

// refreshImages lists images if the last list is old. After a failure the old list stays.
func (k *Reporter) refreshImages(ctx context.Context) {
	k.mu.Lock()
	fresh := k.o.Images == nil || !k.imagesAt.IsZero() && k.now().Sub(k.imagesAt) < imagesEvery
	k.mu.Unlock()
	if fresh {
		return
	}
	list, err := k.o.Images.ListImages(ctx, &runtimeapi.ListImagesRequest{})
	if err != nil {
		k.failures.Failed("list images", err)
		return
	}
	images := imagesOf(list.Images, k.o.MaxImages)
	k.mu.Lock()
	defer k.mu.Unlock()
	k.images, k.imagesAt = images, k.now()
}

// imageNamesMax is how many names of an image a status contains (kubelet: MaxNamesPerImageInNodeStatus).
const imageNamesMax = 5

// imagesOf returns the largest images with their names, digests first. The scheduler scores by the names.
func imagesOf(list []*runtimeapi.Image, most int) []corev1.ContainerImage {
	var images []corev1.ContainerImage
	for _, image := range list {
		names := slices.Concat(image.RepoDigests, image.RepoTags)
		if len(names) == 0 {
			continue // no name by which to recognize it
		}
		images = append(images, corev1.ContainerImage{Names: names[:min(len(names), imageNamesMax)],
			SizeBytes: int64(image.Size)})
	}
	slices.SortFunc(images, func(a, b corev1.ContainerImage) int {
		return cmp.Or(cmp.Compare(b.SizeBytes, a.SizeBytes), cmp.Compare(a.Names[0], b.Names[0]))
	})
	if most >= 0 && len(images) > most {
		images = images[:most]
	}
	return images
}

// fill writes over a Node what the agent knows: the status, the labels that describe the machine, and the annotation
// for a cloud controller.
func (k *Reporter) fill(node *corev1.Node) {
	k.fillMeta(node)
	s := &node.Status
	k.fillAddresses(s)
	k.fillResources(s)
	id := k.o.Machine.Identity
	s.NodeInfo = corev1.NodeSystemInfo{
		MachineID: id.MachineID, SystemUUID: id.SystemUUID, BootID: id.BootID, KernelVersion: id.KernelVersion,
		OSImage:         id.OSImage,
		OperatingSystem: runtime.GOOS, Architecture: id.Architecture, KubeletVersion: kubeletVersion(),
		ContainerRuntimeVersion: cmp.Or(k.runtime.version, s.NodeInfo.ContainerRuntimeVersion, "unknown://unknown"),
	}
	if swap := int64(k.o.Machine.Swap); swap > 0 {
		s.NodeInfo.Swap = &corev1.NodeSwapStatus{Capacity: &swap}
	}
	s.DaemonEndpoints.KubeletEndpoint.Port = k.o.Port
	s.Images = k.images
	s.RuntimeHandlers = k.runtime.handlers
	s.Features = k.runtime.features
	s.DeclaredFeatures = k.o.DeclaredFeatures
	if k.o.VolumesInUse != nil {
		s.VolumesInUse = k.o.VolumesInUse(s.VolumesInUse)
	} else {
		s.VolumesInUse = nil
	}
	k.fillConditions(s)
}

// machineLabels describe the machine. If another client removes or changes them, they are restored.
func (k *Reporter) machineLabels() map[string]string {
	return map[string]string{corev1.LabelOSStable: runtime.GOOS, corev1.LabelArchStable: k.o.Machine.Identity.Architecture}
}

// annotationAttach has the controller manager attach volumes to this node (ControllerManagedAttachAnnotation upstream).
const annotationAttach = "volumes.kubernetes.io/controller-managed-attach-detach"

func (k *Reporter) fillMeta(node *corev1.Node) {
	k.annotatePlugins(node)
	if node.Annotations == nil {
		node.Annotations = map[string]string{}
	}
	can := k.runtime.can
	can.TrustBundles = k.o.TrustBundles
	can.CSIVolumes = k.o.CSIVolumes
	can.NFS = k.o.CSIVolumes // by the same part of the agent
	can.PodCertificates = k.o.PodCertificates
	node.Annotations[translate.AnnotationLacks] = strings.Join(podfields.Codes(can), ",")
	if k.o.VolumesInUse != nil {
		node.Annotations[annotationAttach] = "true"
	}
	if node.Labels == nil {
		node.Labels = map[string]string{}
	}
	for key, value := range k.machineLabels() {
		if _, chosen := k.o.Labels[key]; !chosen {
			node.Labels[key] = value
		}
	}
	if k.o.Cloud == nil || len(k.o.Cloud.NodeIPs) == 0 {
		delete(node.Annotations, annotationNodeIP)
		return
	}
	var ips []string
	for _, ip := range k.o.Cloud.NodeIPs {
		ips = append(ips, ip.String())
	}
	node.Annotations[annotationNodeIP] = strings.Join(ips, ",")
}

// fillAddresses publishes the machine's addresses. A cloud controller's addresses are not touched. Before it has set
// them, only the host name is published, unless --node-ip tells which addresses it will set.
func (k *Reporter) fillAddresses(s *corev1.NodeStatus) {
	switch {
	case k.addresses == nil: // not found; the published ones stay
	case k.o.Cloud == nil:
		s.Addresses = k.addresses
	case len(s.Addresses) > 0:
	case len(k.o.Cloud.NodeIPs) > 0:
		s.Addresses = k.addresses
	default:
		s.Addresses = slices.DeleteFunc(slices.Clone(k.addresses),
			func(a corev1.NodeAddress) bool { return a.Type != corev1.NodeHostName })
	}
}

// fillResources writes capacity and allocatable. As in the kubelet, extended resources that other components put into
// the capacity are entirely allocatable.
func (k *Reporter) fillResources(s *corev1.NodeStatus) {
	if s.Capacity == nil {
		s.Capacity = corev1.ResourceList{}
	}
	if s.Allocatable == nil {
		s.Allocatable = corev1.ResourceList{}
	}
	for name := range s.Capacity {
		if _, huge := translate.HugePageSize(name); huge { // a page size that the kernel no longer has
			delete(s.Capacity, name)
			delete(s.Allocatable, name)
		}
	}
	if k.o.Resources.StorageUncounted { // it may have been published before
		delete(s.Capacity, corev1.ResourceEphemeralStorage)
		delete(s.Allocatable, corev1.ResourceEphemeralStorage)
	}
	capacity, allocatable := translate.NodeResources(k.o.Resources)
	maps.Copy(s.Capacity, capacity)
	maps.Copy(s.Allocatable, allocatable)
	if k.o.Plugins != nil {
		amounts, known := k.o.Plugins.Amounts()
		if !known {
			return // a resource may be a plugin's whose name was not read yet
		}
		setExtendedAllocatable(s)
		fillDevices(s, amounts)
		return
	}
	setExtendedAllocatable(s)
}

// fillConditions writes the agent's four conditions and leaves the others. Ready is last, as in the kubelet.
func (k *Reporter) fillConditions(s *corev1.NodeStatus) {
	p := k.o.Pressure()
	k.setCondition(s, translate.NodePressure(corev1.NodeMemoryPressure, p.Memory))
	k.setCondition(s, translate.NodePressure(corev1.NodeDiskPressure, p.Disk))
	k.setCondition(s, translate.NodePressure(corev1.NodePIDPressure, p.PID))
	ready := translate.NodeReady(k.problems()...)
	k.setCondition(s, ready)
	k.reported = ready.Status
}

// problems returns why the node is not ready.
func (k *Reporter) problems() []string {
	var problems []string
	switch r := k.runtime; {
	case r.at.IsZero():
		problems = []string{"container runtime status check may not have completed yet"}
	case k.now().Sub(r.at) > runtimeDownAfter:
		problems = []string{translate.RuntimeDown}
	default:
		problems = slices.Clone(r.problems)
	}
	if k.o.MainLoop != nil {
		if turned := k.o.MainLoop(); !turned.IsZero() && k.now().Sub(turned) > mainLoopDownAfter {
			problems = append(problems, "containers were last read from the runtime at "+turned.UTC().Format(time.RFC3339))
		}
	}
	if k.o.ShuttingDown != nil && k.o.ShuttingDown() {
		problems = append(problems, "node is shutting down") // the kubelet's words
	}
	return problems
}

// setCondition sets c in s, with the time of its last transition.
func (k *Reporter) setCondition(s *corev1.NodeStatus, c corev1.NodeCondition) {
	now := metav1.NewTime(k.now()).Rfc3339Copy() // the API stores seconds
	c.LastHeartbeatTime, c.LastTransitionTime = now, now
	i := slices.IndexFunc(s.Conditions, func(old corev1.NodeCondition) bool { return old.Type == c.Type })
	if i < 0 {
		s.Conditions = append(s.Conditions, c)
		return
	}
	if s.Conditions[i].Status == c.Status {
		c.LastTransitionTime = s.Conditions[i].LastTransitionTime
	}
	s.Conditions[i] = c
}

// same compares the parts of two Nodes that the agent writes, except for the heartbeat times.
func same(a, b *corev1.Node) bool {
	return maps.Equal(a.Labels, b.Labels) && maps.Equal(a.Annotations, b.Annotations) && sameStatus(&a.Status, &b.Status)
}

func sameStatus(a, b *corev1.NodeStatus) bool {
	if len(a.Conditions) != len(b.Conditions) {
		return false
	}
	for i := range a.Conditions {
		x, y := a.Conditions[i], b.Conditions[i]
		x.LastHeartbeatTime, y.LastHeartbeatTime = metav1.Time{}, metav1.Time{}
		if !equality.Semantic.DeepEqual(x, y) {
			return false
		}
	}
	x, y := *a, *b
	x.Conditions, y.Conditions = nil, nil
	return equality.Semantic.DeepEqual(x, y)
}

// kubeletVersion returns a semantic version that version-skew checks read as the compatible Kubernetes release. The
// agent's own version is the build metadata.
func kubeletVersion() string {
	own := strings.Map(func(r rune) rune {
		if r == '.' || r == '-' || r >= '0' && r <= '9' || r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' {
			return r
		}
		return '-'
	}, version.Plimsoll())
	return version.Kubernetes + translate.AgentVersionMark + own
}
