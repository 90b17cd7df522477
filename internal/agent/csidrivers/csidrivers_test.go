package csidrivers

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/client-go/tools/cache"

	"github.com/plimsoll-dev/plimsoll/internal/core/registration"
	"github.com/plimsoll-dev/plimsoll/internal/host/csi"
	"github.com/plimsoll-dev/plimsoll/internal/kube"
	"github.com/plimsoll-dev/plimsoll/test/csidriver"
)

// server stands for the API server: it has one Node and its CSINode.
type server struct {
	mu      sync.Mutex
	version int
	node    *corev1.Node
	csinode *storagev1.CSINode
	refuse  map[string]error // by verb and resource, once each
	writes  []string
	objects cache.Store
	handler cache.ResourceEventHandler
}

func (s *server) do(what string, f func() error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err, refused := s.refuse[what]; refused {
		delete(s.refuse, what)
		return err
	}
	if !strings.HasPrefix(what, "get") {
		s.writes = append(s.writes, what)
	}
	return f()
}

func missing(k kube.Kind) error {
	return apierrors.NewNotFound(schema.GroupResource{Resource: k.Resource}, "n")
}

func (s *server) Get(_ context.Context, k kube.Kind, _, _ string, out runtime.Object) error {
	return s.do("get "+k.Resource, func() error {
		switch out := out.(type) {
		case *corev1.Node:
			s.node.DeepCopyInto(out)
		case *storagev1.CSINode:
			if s.csinode == nil {
				return missing(k)
			}
			s.csinode.DeepCopyInto(out)
		}
		return nil
	})
}

func (s *server) Create(_ context.Context, k kube.Kind, _, _ string, obj, _ runtime.Object, _ ...string) error {
	return s.do("create "+k.Resource, func() error {
		s.store(obj)
		return nil
	})
}

func (s *server) store(obj runtime.Object) {
	s.version++
	s.csinode = obj.(*storagev1.CSINode).DeepCopy()
	s.csinode.ResourceVersion = strconv.Itoa(s.version)
}

func (s *server) Update(_ context.Context, k kube.Kind, _, name string, obj, out runtime.Object, _ ...string) error {
	return s.do("update "+k.Resource, func() error {
		if obj.(*storagev1.CSINode).ResourceVersion != s.csinode.ResourceVersion {
			return apierrors.NewConflict(schema.GroupResource{Resource: k.Resource}, name, errors.New("changed"))
		}
		if changed := changesEntry(s.csinode.Spec.Drivers, obj.(*storagev1.CSINode).Spec.Drivers); changed != "" {
			return apierrors.NewInvalid(schema.GroupKind{Kind: "CSINode"}, name, field.ErrorList{
				field.Invalid(field.NewPath("spec", "drivers"), changed, "field is immutable"),
			})
		}
		s.store(obj)
		s.csinode.DeepCopyInto(out.(*storagev1.CSINode))
		return nil
	})
}

// changesEntry returns the driver whose entry differs in more than its limit, which the API refuses.
func changesEntry(from, to []storagev1.CSINodeDriver) string {
	for _, old := range from {
		for _, next := range to {
			if old.Name == next.Name && (old.NodeID != next.NodeID || !slices.Equal(old.TopologyKeys, next.TopologyKeys)) {
				return old.Name
			}
		}
	}
	return ""
}

func (s *server) Patch(_ context.Context, k kube.Kind, _, _ string, _ types.PatchType, body []byte, _ runtime.Object,
	sub ...string) error {
	return s.do("patch "+k.Resource+"/"+strings.Join(sub, "/"), func() error {
		old, err := json.Marshal(s.node)
		if err != nil {
			return err
		}
		merged, err := strategicpatch.StrategicMergePatch(old, body, corev1.Node{})
		if err != nil {
			return err
		}
		s.node = &corev1.Node{}
		return json.Unmarshal(merged, s.node)
	})
}

func (s *server) Delete(_ context.Context, k kube.Kind, _, _ string, _ metav1.DeleteOptions) error {
	return s.do("delete "+k.Resource, func() error {
		s.csinode = nil
		return nil
	})
}

// Informer implements API.
func (s *server) Informer(_ kube.Kind, _ kube.Selection, h cache.ResourceEventHandler) (cache.Store, cache.Controller) {
	s.objects = cache.NewStore(cache.MetaNamespaceKeyFunc)
	s.handler = h
	return s.objects, controller{}
}

type controller struct{ cache.Controller }

func (controller) RunWithContext(ctx context.Context) { <-ctx.Done() }
func (controller) HasSynced() bool                    { return true }

// setPeriod changes the CSIDriver object of a driver.
func (s *server) setPeriod(name string, seconds int64) {
	object := &storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: name}}
	object.Spec.NodeAllocatableUpdatePeriodSeconds = &seconds
	_ = s.objects.Update(object)
	s.handler.OnAdd(object, false)
}

func (s *server) present() *corev1.Node {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.node.DeepCopy()
}

// shown returns what is published, as text.
func (s *server) shown() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.csinode == nil {
		return "no CSINode"
	}
	out := fmt.Sprintf("owner %s labels %v ids %s", s.csinode.OwnerReferences[0].UID, s.node.Labels,
		s.node.Annotations[annotationNodeIDs])
	for _, d := range s.csinode.Spec.Drivers {
		out += fmt.Sprintf(", %s %s %v", d.Name, d.NodeID, d.TopologyKeys)
		if d.Allocatable != nil {
			out += fmt.Sprintf(" %d", *d.Allocatable.Count)
		}
	}
	return out
}

// await waits until what is published is want.
func (s *server) await(t *testing.T, want string) {
	t.Helper()
	for end := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		got := s.shown()
		if got == want {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("published:\n got %s\nwant %s", got, want)
		}
	}
}

// begin runs a Registry on a Node.
func begin(t *testing.T) (*Registry, *server, chan csi.Call) {
	s := &server{
		node:   &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", UID: "uid-1", Labels: map[string]string{"rack": "r1"}}},
		refuse: map[string]error{},
	}
	calls := make(chan csi.Call, 1000)
	r := New(Options{NodeName: "n", API: s, Node: s.present, Finished: func(_ string, c csi.Call) { calls <- c }})
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	})
	return r, s, calls
}

func start(t *testing.T, a csidriver.Answers) (*csidriver.Driver, registration.Plugin) {
	t.Helper()
	dir := t.TempDir()
	d, err := csidriver.Start(dir, dir, a)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.Stop)
	return d, registration.Plugin{Kind: registration.CSI, Name: a.Name, Endpoint: d.Endpoint, Version: "1.0.0"}
}

// TestPublish: a driver's life, with conflicts, an API server that refuses, and a Node that is made again.
func TestPublish(t *testing.T) {
	r, s, calls := begin(t)
	s.refuse["create csinodes"] = apierrors.NewInternalError(errors.New("etcd"))
	r.NodeExists()
	s.await(t, "owner uid-1 labels map[rack:r1] ids ")
	if got := s.csinode.Annotations[corev1.MigratedPluginsAnnotationKey]; got != strings.Join(migrated, ",") ||
		len(migrated) != 7 {
		t.Errorf("migrated %q", got)
	}

	a, pluginA := start(t, csidriver.Answers{
		Name: "a.example.com", NodeID: "vol-1", VolumesMax: 10, Topology: map[string]string{"zone": "z", "rack": "r1"},
		Capabilities: []csipb.NodeServiceCapability_RPC_Type{csipb.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME},
	})
	s.refuse["update csinodes"] = apierrors.NewConflict(schema.GroupResource{}, "n", errors.New("changed"))
	if err := r.Register(t.Context(), pluginA); err != nil {
		t.Fatal(err)
	}
	s.await(t, `owner uid-1 labels map[rack:r1 zone:z] ids {"a.example.com":"vol-1"}, a.example.com vol-1 [rack zone] 10`)
	d, ok := r.Driver("a.example.com")
	if !ok || d.NodeID != "vol-1" || d.Client.Endpoint != a.Endpoint {
		t.Errorf("driver %+v", d)
	}
	if !d.Can(csipb.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME) ||
		d.Can(csipb.NodeServiceCapability_RPC_EXPAND_VOLUME) {
		t.Error("capabilities", d.capabilities)
	}
	methods := map[string]bool{}
	for len(calls) > 0 {
		methods[(<-calls).Method] = true
	}
	if want := (map[string]bool{
		"/csi.v1.Identity/GetPluginInfo": true, "/csi.v1.Node/NodeGetInfo": true, "/csi.v1.Node/NodeGetCapabilities": true,
	}); !reflect.DeepEqual(methods, want) {
		t.Errorf("called %v", methods)
	}

	_, pluginB := start(t, csidriver.Answers{Name: "b.example.com", NodeID: "vol-2"})
	if err := r.Register(t.Context(), pluginB); err != nil {
		t.Fatal(err)
	}
	s.await(t,
		`owner uid-1 labels map[rack:r1 zone:z] ids {"a.example.com":"vol-1","b.example.com":"vol-2"}, a.example.com vol-1 [rack zone] 10, b.example.com vol-2 []`)

	// The Node is made again: the CSINode of the old one is not kept.
	s.mu.Lock()
	s.node = &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", UID: "uid-2"}}
	s.mu.Unlock()
	r.NodeExists()
	s.await(t,
		`owner uid-2 labels map[rack:r1 zone:z] ids {"a.example.com":"vol-1","b.example.com":"vol-2"}, a.example.com vol-1 [rack zone] 10, b.example.com vol-2 []`)

	r.Unregister(pluginA)
	s.await(t, `owner uid-2 labels map[rack:r1 zone:z] ids {"b.example.com":"vol-2"}, b.example.com vol-2 []`)
	if _, ok := r.Driver("a.example.com"); ok {
		t.Error("a driver that left is there")
	}
	r.Unregister(pluginB)
	s.await(t, "owner uid-2 labels map[rack:r1 zone:z] ids ")
}

// TestRestart: entries that another agent process wrote stay until their driver registers, and nothing equal is
// written.
func TestRestart(t *testing.T) {
	r, s, _ := begin(t)
	count := int32(10)
	s.store(&storagev1.CSINode{
		ObjectMeta: metav1.ObjectMeta{
			Name: "n", OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: "n", UID: "uid-1"}},
			Annotations: map[string]string{corev1.MigratedPluginsAnnotationKey: strings.Join(migrated, ",")},
		},
		Spec: storagev1.CSINodeSpec{Drivers: []storagev1.CSINodeDriver{
			{Name: "late", NodeID: "l"},
			{Name: "a", NodeID: "vol-1", Allocatable: &storagev1.VolumeNodeResources{Count: &count}},
		}},
	})
	s.node.Annotations = map[string]string{annotationNodeIDs: `{"a":"vol-1","late":"l"}`}
	_, plugin := start(t, csidriver.Answers{Name: "a", NodeID: "vol-1", VolumesMax: 10})
	if err := r.Register(t.Context(), plugin); err != nil {
		t.Fatal(err)
	}
	r.NodeExists()
	_, other := start(t, csidriver.Answers{Name: "b", NodeID: "vol-2"})
	if err := r.Register(t.Context(), other); err != nil {
		t.Fatal(err)
	}
	s.await(t,
		`owner uid-1 labels map[rack:r1] ids {"a":"vol-1","b":"vol-2","late":"l"}, late l [], a vol-1 [] 10, b vol-2 []`)
	s.mu.Lock()
	defer s.mu.Unlock()
	if want := []string{"patch nodes/status", "update csinodes"}; !reflect.DeepEqual(s.writes, want) {
		t.Errorf("writes %q, want %q", s.writes, want)
	}
}

// TestLimitChanges: with a period in the CSIDriver object, a failed attachment makes the agent ask again.
func TestLimitChanges(t *testing.T) {
	r, s, _ := begin(t)
	r.NodeExists()
	a, plugin := start(t, csidriver.Answers{Name: "a", NodeID: "vol-1", VolumesMax: 10})
	s.setPeriod("a", 1) // the API has at least 10
	if err := r.Register(t.Context(), plugin); err != nil {
		t.Fatal(err)
	}
	s.await(t, `owner uid-1 labels map[rack:r1] ids {"a":"vol-1"}, a vol-1 [] 10`)
	a.Set(func(a *csidriver.Answers) { a.VolumesMax = 7 })
	s.await(t, `owner uid-1 labels map[rack:r1] ids {"a":"vol-1"}, a vol-1 [] 7`)
	if d, _ := r.Driver("a"); d.VolumesMax != 7 {
		t.Errorf("limit %d", d.VolumesMax)
	}
	if object, ok := r.Object("a"); !ok || object.Name != "a" || !r.ObjectsKnown() {
		t.Errorf("object %v", object)
	}
}

// TestChanges: a driver registers again with another name of the node and more topology, which the CSINode object
// follows, and then with another value of a topology key, which is refused until it is the Node's again.
func TestChanges(t *testing.T) {
	r, s, _ := begin(t)
	r.NodeExists()
	register := func(node string, topology map[string]string) (registration.Plugin, error) {
		_, plugin := start(t, csidriver.Answers{Name: "a", NodeID: node, Topology: topology})
		return plugin, r.Register(t.Context(), plugin)
	}
	for _, step := range []struct {
		node     string
		topology map[string]string
		err      string
		want     string
	}{
		{node: "1", topology: map[string]string{"zone": "z1"}, want: `labels map[rack:r1 zone:z1] ids {"a":"1"}, a 1 [zone]`},
		{node: "2", topology: map[string]string{"zone": "z1", "row": "5"},
			want: `labels map[rack:r1 row:5 zone:z1] ids {"a":"2"}, a 2 [row zone]`},
		{node: "2", topology: map[string]string{"zone": "z2"}, err: "detected topology value collision",
			want: "labels map[rack:r1 row:5 zone:z1] ids "},
		{node: "2", topology: map[string]string{"zone": "z1"},
			want: `labels map[rack:r1 row:5 zone:z1] ids {"a":"2"}, a 2 [zone]`},
	} {
		plugin, err := register(step.node, step.topology)
		if step.err == "" && err != nil || step.err != "" && (err == nil || !strings.Contains(err.Error(), step.err)) {
			t.Errorf("node %s, topology %v: %v, want an error with %q", step.node, step.topology, err, step.err)
		}
		s.await(t, "owner uid-1 "+step.want)
		if err == nil {
			r.Unregister(plugin)
			labels, _, _ := strings.Cut(step.want, " ids ")
			s.await(t, "owner uid-1 "+labels+" ids ")
		}
	}
}

// TestMoves: a driver has another name of the node and other topology keys than in the entry that an earlier agent
// wrote, and again other ones while it runs. Its entry follows, and so does that of a driver that registers beside it.
func TestMoves(t *testing.T) {
	r, s, _ := begin(t)
	s.store(&storagev1.CSINode{
		ObjectMeta: metav1.ObjectMeta{
			Name: "n", OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: "n", UID: "uid-1"}},
		},
		Spec: storagev1.CSINodeSpec{Drivers: []storagev1.CSINodeDriver{
			{Name: "late", NodeID: "l"},
			{Name: "a", NodeID: "1", TopologyKeys: []string{"row"}},
		}},
	})
	r.NodeExists()
	a, plugin := start(t, csidriver.Answers{Name: "a", NodeID: "2", Topology: map[string]string{"zone": "z"}})
	s.setPeriod("a", 1) // the API has at least 10
	_, other := start(t, csidriver.Answers{Name: "b", NodeID: "b1"})
	for _, p := range []registration.Plugin{plugin, other} {
		if err := r.Register(t.Context(), p); err != nil {
			t.Fatal(err)
		}
	}
	s.awaitDrivers(t, "late l [], a 2 [zone], b b1 []")
	a.Set(func(a *csidriver.Answers) { a.NodeID = "3"; a.Topology["floor"] = "f" })
	s.awaitDrivers(t, "late l [], a 3 [floor zone], b b1 []")
}

// awaitDrivers waits until the CSINode object has these entries, in any order.
func (s *server) awaitDrivers(t *testing.T, want string) {
	t.Helper()
	sorted := func(entries string) string {
		all := strings.Split(entries, ", ")
		slices.Sort(all)
		return strings.Join(all, ", ")
	}
	for end := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		_, got, _ := strings.Cut(s.shown(), "}, ")
		if sorted(got) == sorted(want) {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("entries %s, want %s", got, want)
		}
	}
}

// TestOtherName: a driver that says another name than it registered with is used, as by the kubelet, and what it said
// is known. One that does not answer that question is used, too.
func TestOtherName(t *testing.T) {
	r, _, _ := begin(t)
	refuse := func(_ context.Context, call string) error {
		if call == "GetPluginInfo" {
			return os.ErrPermission
		}
		return nil
	}
	for _, test := range []struct {
		registered, said string
		fail             func(context.Context, string) error
	}{
		{registered: "csi.example.com", said: "csi.example.org"},
		{registered: "csi.example.net", said: "", fail: refuse},
	} {
		_, plugin := start(t, csidriver.Answers{Name: cmp.Or(test.said, test.registered), NodeID: "n", Fail: test.fail})
		plugin.Name = test.registered
		if err := r.Register(t.Context(), plugin); err != nil {
			t.Fatal(err)
		}
		if d, ok := r.Driver(test.registered); !ok || d.Said != test.said || d.NodeID != "n" {
			t.Errorf("%s: %t, says %q, node %q", test.registered, ok, d.Said, d.NodeID)
		}
	}
}

// TestRefuses: what a driver says wrongly is its registration's error.
func TestRefuses(t *testing.T) {
	r, s, _ := begin(t)
	r.NodeExists()
	hang := func(ctx context.Context, call string) error {
		if call != "NodeGetInfo" {
			return nil
		}
		<-ctx.Done()
		return ctx.Err()
	}
	for _, test := range []struct {
		a    csidriver.Answers
		want string
	}{
		{csidriver.Answers{}, "NodeGetInfo: node_id is empty"},
		{csidriver.Answers{NodeID: "n", Topology: map[string]string{"rack": "r2"}}, "detected topology value collision"},
		{csidriver.Answers{NodeID: "n", Topology: map[string]string{"a b": "c"}}, "NodeGetInfo: accessible_topology key"},
		{csidriver.Answers{NodeID: "n", Fail: func(context.Context, string) error { return os.ErrPermission }},
			"NodeGetInfo: rpc error: code = Unknown desc = permission denied"},
		{csidriver.Answers{NodeID: "n", Fail: hang}, "NodeGetInfo: rpc error: code = DeadlineExceeded"},
	} {
		test.a.Name = "x"
		_, plugin := start(t, test.a)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		err := r.Register(ctx, plugin)
		cancel()
		if err == nil || !strings.HasPrefix(err.Error(), test.want) {
			t.Errorf("%v, want %s", err, test.want)
		}
	}
	err := r.Register(t.Context(), registration.Plugin{Name: "x", Endpoint: filepath.Join(t.TempDir(), "none.sock")})
	if err == nil || !strings.Contains(err.Error(), "none.sock: no such file or directory") {
		t.Error(err)
	}
	if len(r.Drivers()) != 0 {
		t.Errorf("registered: %v", maps.Keys(r.Drivers()))
	}
	s.await(t, "owner uid-1 labels map[rack:r1] ids ")
}
