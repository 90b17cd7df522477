package pods

import (
	"context"
	"errors"
	"strings"
	"testing"

	"google.golang.org/grpc"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/record"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/plimsoll-dev/plimsoll/internal/agent/metrics"
	"github.com/plimsoll-dev/plimsoll/internal/agent/podcert"
	"github.com/plimsoll-dev/plimsoll/internal/agent/podentry"
	"github.com/plimsoll-dev/plimsoll/internal/agent/volume"
	"github.com/plimsoll-dev/plimsoll/internal/core/podlife"
	"github.com/plimsoll-dev/plimsoll/internal/kube/translate"
)

// usernsPod requests a user namespace.
func usernsPod() *corev1.Pod {
	pod, no := testPod(), false
	pod.Spec.HostUsers = &no
	return pod
}

// TestUnsupportedFieldHolds: a pod with a field that the agent does not support gets no sandbox and no further syncs,
// has one Event, can be deleted, and starts as soon as the field is gone.
func TestUnsupportedFieldHolds(t *testing.T) {
	r := testRunner()
	r.Admission, r.Metrics = &room{}, metrics.New("n")
	events := r.Recorder.(*record.FakeRecorder).Events
	e := r.newEntry("uid-1")
	e.Set(usernsPod(), noon)
	for range 3 {
		if workerOf(r, e).mayStart() || e.Snapshot().Hold == nil || e.Snapshot().Hold.Reason != "UnsupportedField" ||
			!e.Snapshot().Hold.Until.IsZero() || e.Snapshot().Stop != nil {
			t.Fatalf("it may start: hold %+v, stop %+v", e.Snapshot().Hold, e.Snapshot().Stop)
		}
	}
	if text := <-events; len(events) > 0 || !strings.HasPrefix(text,
		"Warning UnsupportedField spec.hostUsers: false requests a user namespace") {
		t.Errorf("told %q, and %d more", text, len(events))
	}
	d := workerOf(r, e).life.Step(1, 1, podlife.Observation{Spec: translate.PodlifeSpec(e.Object()),
		Hold: e.Snapshot().Hold})
	if len(d.Actions) > 0 || !d.Wake.IsZero() && d.Wake < 2 || d.Status.Phase != podlife.Pending {
		t.Errorf("held, yet: %+v", d)
	}
	e.Set(testPod(), noon)
	if !workerOf(r, e).mayStart() || e.Snapshot().Hold != nil {
		t.Error("its field is gone, and it is held")
	}
	e.Set(usernsPod(), noon)
	e.Evict(noon, 0, podlife.StopOrder{Remove: true})
	if !workerOf(r, e).mayStart() || e.Snapshot().Hold != nil {
		t.Error("it is being deleted, and held")
	}
}

// TestTrustBundlesNeedTheirGate: a pod with certificates of a ClusterTrustBundle is held while the feature gate is off,
// with a text that names the gate, and starts if it is on.
func TestTrustBundlesNeedTheirGate(t *testing.T) {
	needsGate(t, "ClusterTrustBundleProjection",
		corev1.VolumeProjection{ClusterTrustBundle: &corev1.ClusterTrustBundleProjection{Path: "roots.pem"}},
		func(r *Runner, on bool) { r.TrustBundles = on })
}

// TestPodCertificatesNeedTheirGate: the same holds for a pod with a podCertificate source.
func TestPodCertificatesNeedTheirGate(t *testing.T) {
	needsGate(t, "PodCertificateRequest",
		corev1.VolumeProjection{PodCertificate: &corev1.PodCertificateProjection{SignerName: "example.com/s"}},
		func(r *Runner, on bool) { r.PodCertificates = on })
}

func needsGate(t *testing.T, gate string, source corev1.VolumeProjection, set func(*Runner, bool)) {
	t.Helper()
	for _, on := range []bool{true, false} {
		r := testRunner()
		e := r.newEntry("uid-1")
		set(r, on)
		r.Admission, r.Metrics = &room{}, metrics.New("n")
		pod := testPod()
		pod.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{
			Projected: &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{source}},
		}}}
		e.Set(pod, noon)
		if may := workerOf(r, e).mayStart(); may != on {
			t.Errorf("the gate is on: %t; the pod may start: %t", on, may)
			continue
		}
		if on {
			continue
		}
		if text := e.Snapshot().Hold.Message; !strings.Contains(text, "switch "+gate+" on in featureGates") {
			t.Errorf("held with %q, want the feature gate named", text)
		}
	}
}

// TestHeldIsToldOnce: the next agent does not record the Event again if the status shows the hold already.
func TestHeldIsToldOnce(t *testing.T) {
	for name, mirrored := range map[string]bool{"a pod of the API": false, "a static pod": true} {
		r := testRunner()
		e := r.newEntry("uid-1")
		e.Set(usernsPod(), noon)
		workerOf(r, e).mayStart()
		events := r.Recorder.(*record.FakeRecorder).Events
		<-events
		shown := usernsPod()
		shown.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReadyToStartContainers,
			Status: corev1.ConditionFalse, Reason: e.Snapshot().Hold.Reason, Message: e.Snapshot().Hold.Message}}
		next := r.newEntry("uid-1")
		if mirrored {
			next.Claim(true)
			next.Set(usernsPod(), noon)
			next.SetMirror(shown)
		} else {
			next.Set(shown, noon)
		}
		if workerOf(r, next).mayStart() || next.Snapshot().Hold == nil || len(events) > 0 {
			t.Errorf("%s: hold %+v, %d events", name, next.Snapshot().Hold, len(events))
		}
	}
}

// runtimeOf is a containerd of a release, whose default handler and other handler have user namespaces or not.
type runtimeOf struct {
	release      string
	users, other bool
}

func (r runtimeOf) Status(
	context.Context, *runtimeapi.StatusRequest, ...grpc.CallOption,
) (*runtimeapi.StatusResponse, error) {
	return &runtimeapi.StatusResponse{RuntimeHandlers: []*runtimeapi.RuntimeHandler{
		{Name: "", Features: &runtimeapi.RuntimeHandlerFeatures{UserNamespaces: r.users}},
		{Name: "other", Features: &runtimeapi.RuntimeHandlerFeatures{UserNamespaces: r.other}},
	}}, nil
}

func (r runtimeOf) Version(
	context.Context, *runtimeapi.VersionRequest, ...grpc.CallOption,
) (*runtimeapi.VersionResponse, error) {
	return &runtimeapi.VersionResponse{RuntimeName: "containerd", RuntimeVersion: r.release}, nil
}

// TestHeldForTheNode: pods with user namespaces or image volumes are held if the runtime or the kernel does not support
// them, and start otherwise.
func TestHeldForTheNode(t *testing.T) {
	images := testPod()
	source := corev1.VolumeSource{Image: &corev1.ImageVolumeSource{}}
	images.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: source}}
	for _, c := range []struct {
		name   string
		pod    *corev1.Pod
		kernel bool
		in     runtimeOf
		held   string
	}{
		{"users, an old runtime", usernsPod(), true, runtimeOf{"1.6.20", false, false}, "spec.hostUsers"},
		{"users, an old kernel", usernsPod(), false, runtimeOf{"2.2.0", true, true}, "spec.hostUsers"},
		{"users", usernsPod(), true, runtimeOf{"2.2.0", false, true}, ""},
		{"images, an old runtime", images, true, runtimeOf{"2.0.5", true, true}, "spec.volumes[v].image"},
		{"images", images, false, runtimeOf{"2.1.0", false, false}, ""},
	} {
		r := testRunner()
		e := r.newEntry("uid-1")
		r.Admission = &room{}
		r.Metrics = metrics.New("n")
		r.UserNamespaces = c.kernel
		e.Set(c.pod, noon)
		if _, err := r.handlers.Learn(t.Context(), c.in); err != nil {
			t.Fatal(err)
		}
		started := workerOf(r, e).mayStart()
		if started != (c.held == "") || !started && !strings.HasPrefix(e.Snapshot().Hold.Message, c.held) {
			t.Errorf("%s: may start: %t, hold %+v", c.name, started, e.Snapshot().Hold)
		}
	}
}

// TestHandlerWithoutUsers: no sandbox is created for a pod with a user namespace if its handler does not support them,
// although another handler of the node does.
func TestHandlerWithoutUsers(t *testing.T) {
	for _, c := range []struct {
		pod   *corev1.Pod
		users bool
		want  string
	}{
		{usernsPod(), true, ""},
		{usernsPod(), false, `RuntimeClass handler "" does not support user namespaces`},
		{testPod(), false, ""},
	} {
		r := testRunner()
		if _, err := r.handlers.Learn(t.Context(), runtimeOf{"2.2.0", c.users, true}); err != nil {
			t.Fatal(err)
		}
		_, err := workerOf(r, r.newEntry("uid-1")).handlerFor(t.Context(), c.pod)
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("the handler has user namespaces: %t: %v, want %q", c.users, err, c.want)
		}
	}
}

// TestAdoptedIsLeftRunning: a pod that another agent started runs on, has one Event, and gets no new sandbox when its
// own is gone.
func TestAdoptedIsLeftRunning(t *testing.T) {
	r := testRunner()
	e := r.newEntry("uid-1")
	e.Set(usernsPod(), noon)
	workerOf(r, e).view.Sandboxes["s"] = podlife.Sandbox{ID: "s", State: podlife.SandboxReady}
	for range 2 {
		if !workerOf(r, e).mayStart() || e.Snapshot().Hold != nil || e.Snapshot().Stop != nil {
			t.Fatalf("it does not run on: hold %+v, stop %+v", e.Snapshot().Hold, e.Snapshot().Stop)
		}
	}
	events := r.Recorder.(*record.FakeRecorder).Events
	if text := <-events; len(events) > 0 || !strings.Contains(text, "left running") {
		t.Errorf("told %q, and %d more", text, len(events))
	}
	err := workerOf(r, e).startContainer(t.Context(), e.Object(), podlife.Action{Kind: podlife.StartContainer,
		Container: "zeta", ID: "s"}, nil)
	var known *failure
	if !errors.As(err, &known) || known.reason != "CreateContainerConfigError" ||
		!strings.Contains(err.Error(), "spec.hostUsers") {
		t.Errorf("a container of it is started: %v", err)
	}
	workerOf(r, e).view.Sandboxes["s"] = podlife.Sandbox{ID: "s"}
	if workerOf(r, e).mayStart() || e.Snapshot().Hold == nil {
		t.Error("its sandbox is gone, and it gets another")
	}
}

// TestUnmountableHolds: a pod is also held for a volume that only its set-up finds to be unsupported.
func TestUnmountableHolds(t *testing.T) {
	r := testRunner()
	e := r.newEntry("uid-1")
	e.Set(testPod(), noon)
	w := workerOf(r, e)
	w.unmountable = `MountVolume.SetUp failed for volume "data" : volume type persistentVolumeClaim is not supported by this agent: persistent volume pv-1 is of kind nfs`
	if w.mayStart() || e.Snapshot().Hold == nil || !strings.HasPrefix(e.Snapshot().Hold.Message, w.unmountable) {
		t.Errorf("it may start: %+v", e.Snapshot().Hold)
	}
	refused := &podcert.RefusedError{Phase: "Denied", Text: "the signer says no"}
	r = testRunner()
	e = r.newEntry("uid-2")
	r.Volumes = refusing{err: volume.Failures{{Volume: "v", Err: refused}}}
	e.Set(testPod(), noon)
	w = workerOf(r, e)
	if err := w.setUp(t.Context(), e.Object()); !errors.Is(err, refused) {
		t.Errorf("set up: %v", err)
	}
	if w.mayStart() || e.Snapshot().Hold == nil || e.Snapshot().Hold.Reason != "PodCertificateDenied" ||
		!strings.Contains(e.Snapshot().Hold.Message, refused.Text) {
		t.Errorf("it may start: %+v", e.Snapshot().Hold)
	}
}

// refusing sets no volume up.
type refusing struct {
	Volumes
	err error
}

func (v refusing) SetUp(context.Context, *corev1.Pod) error { return v.err }

// TestVolumesAreCompleted: if some volumes of a running pod could not be set up again after a restart of the agent,
// that is tried before each start of one of its containers until it succeeds, and at no other time.
func TestVolumesAreCompleted(t *testing.T) {
	r := testRunner()
	e := r.newEntry("uid-1")
	e.Set(testPod(), noon)
	w := workerOf(r, e)
	away := errors.New("the node's labels are not known")
	running := podlife.Observation{Containers: []podlife.Container{{Name: "zeta"}}}
	for i, c := range []struct {
		err, want error
		asked     bool
		do        func() error
	}{
		{away, nil, true, func() error { w.adopt(t.Context(), e.Object(), running); return nil }},
		{away, nil, false, func() error { w.adopt(t.Context(), e.Object(), running); return nil }},
		{away, away, true, func() error { return w.completeVolumes(t.Context(), e.Object(), r.starts.Slot()) }},
		{nil, nil, true, func() error { return w.completeVolumes(t.Context(), e.Object(), r.starts.Slot()) }},
		{away, nil, false, func() error { return w.completeVolumes(t.Context(), e.Object(), r.starts.Slot()) }},
	} {
		asked := false
		r.Volumes = answering{err: c.err, asked: &asked}
		if err := c.do(); !errors.Is(err, c.want) || asked != c.asked {
			t.Errorf("step %d: %v, want %v; asked: %t", i, err, c.want, asked)
		}
	}
}

// answering counts the calls of SetUp.
type answering struct {
	Volumes
	err   error
	asked *bool
}

func (v answering) SetUp(context.Context, *corev1.Pod) error {
	*v.asked = true
	return v.err
}

// TestUnsuitedIsRejected: a pod that cannot run on this system is rejected before it is held for anything, unless
// something of it is on the node.
func TestUnsuitedIsRejected(t *testing.T) {
	for name, c := range map[string]struct {
		admitted, sandbox, want bool
	}{"new": {want: true}, "admitted before": {admitted: true}, "it ran here": {sandbox: true}} {
		t.Run(name, func(t *testing.T) {
			r := testRunner()
			e := r.newEntry("uid-1")
			r.Admission, r.Metrics = &room{}, metrics.New("n")
			r.Suits = func(*corev1.Pod) *Rejection {
				return &Rejection{Reason: "SysctlForbidden", Message: "forbidden sysctl: x"}
			}
			e.Set(usernsPod(), noon)
			if c.admitted {
				e.SetPhase(podentry.PhaseAdmitted)
			}
			if c.sandbox {
				workerOf(r, e).view.Sandboxes["s"] = podlife.Sandbox{ID: "s"}
			}
			if workerOf(r, e).mayStart() {
				t.Error("it may start")
			}
			if rejected := e.Snapshot().Stop != nil && e.Snapshot().Stop.Phase == podlife.Failed &&
				e.Snapshot().Stop.Reason == "SysctlForbidden" &&
				e.Snapshot().Stop.Message == "Pod was rejected: forbidden sysctl: x"; rejected != c.want {
				t.Errorf("stop order %+v", e.Snapshot().Stop)
			}
			if (e.Snapshot().Hold != nil) == c.want {
				t.Errorf("hold %+v", e.Snapshot().Hold)
			}
		})
	}
}
