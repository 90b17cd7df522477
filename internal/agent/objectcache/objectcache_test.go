package objectcache

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/plimsoll-dev/plimsoll/internal/core/volumelimit"
	"github.com/plimsoll-dev/plimsoll/internal/kube"
)

// server is an API server of ConfigMaps that can be away, refuse, and compact its history.
type server struct {
	t *testing.T

	mu      sync.Mutex
	version int
	oldest  int // watches from before this version are expired
	objects map[string]*corev1.ConfigMap
	watches map[*stream]bool
	down    error
	lists   []time.Time
	opens   []time.Time
	busy    int // requests in flight
	busyMax int
}

type stream struct {
	s      *server
	name   string
	events chan watch.Event
	once   sync.Once
}

func (w *stream) ResultChan() <-chan watch.Event { return w.events }
func (w *stream) Stop() {
	w.s.mu.Lock()
	defer w.s.mu.Unlock()
	w.close()
}

func (w *stream) close() {
	w.once.Do(func() { close(w.events) })
	delete(w.s.watches, w)
}

func newServer(t *testing.T) *server {
	return &server{t: t, objects: map[string]*corev1.ConfigMap{}, watches: map[*stream]bool{}, version: 100}
}

func (s *server) request() error {
	s.mu.Lock()
	s.busy++
	s.busyMax = max(s.busyMax, s.busy)
	s.mu.Unlock()
	time.Sleep(time.Millisecond) // a round trip, in the bubble's clock
	s.mu.Lock()
	s.busy--
	return s.down // the caller unlocks
}

func (s *server) List(_ context.Context, k kube.Kind, ns string, o metav1.ListOptions, out runtime.Object) error {
	err := s.request()
	defer s.mu.Unlock()
	s.lists = append(s.lists, time.Now())
	if err != nil {
		return err
	}
	name, _ := strings.CutPrefix(o.FieldSelector, "metadata.name=")
	if k.Resource != "configmaps" || name == "" || name == o.FieldSelector {
		s.t.Errorf("list of %s with selector %q: the Node authorizer refuses it", k.Resource, o.FieldSelector)
	}
	list := out.(*corev1.ConfigMapList)
	list.ResourceVersion = strconv.Itoa(s.version)
	if cm := s.objects[name]; cm != nil {
		list.Items = append(list.Items, *cm.DeepCopy())
	}
	return nil
}

func (s *server) Watch(ctx context.Context, _ kube.Kind, _ string, o metav1.ListOptions) (watch.Interface, error) {
	err := s.request()
	defer s.mu.Unlock()
	s.opens = append(s.opens, time.Now())
	if err != nil {
		return nil, err
	}
	from, _ := strconv.Atoi(o.ResourceVersion)
	if from < s.oldest {
		return nil, apierrors.NewResourceExpired("too old resource version")
	}
	if o.TimeoutSeconds == nil || *o.TimeoutSeconds < 900 {
		s.t.Errorf("watch for %v s", o.TimeoutSeconds)
	}
	w := &stream{s: s, name: strings.TrimPrefix(o.FieldSelector, "metadata.name="), events: make(chan watch.Event, 16)}
	s.watches[w] = true
	if cm := s.objects[w.name]; cm != nil {
		if version, _ := strconv.Atoi(cm.ResourceVersion); version > from {
			w.events <- watch.Event{Type: watch.Modified, Object: cm.DeepCopy()}
		}
	}
	context.AfterFunc(ctx, w.Stop)
	return w, nil
}

// put stores an object and notifies its watches; nil data deletes it.
func (s *server) put(name string, data map[string]string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.version++
	kind := watch.Modified
	cm := s.objects[name]
	switch {
	case data == nil:
		kind = watch.Deleted
		delete(s.objects, name)
	case cm == nil:
		kind = watch.Added
	}
	cm = &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, UID: types.UID("uid-" + name),
		ResourceVersion: strconv.Itoa(s.version), Annotations: map[string]string{"big": "annotation"}}, Data: data}
	if data != nil {
		s.objects[name] = cm
	}
	for w := range s.watches {
		if w.name == name {
			w.events <- watch.Event{Type: kind, Object: cm.DeepCopy()}
		}
	}
}

// fail makes every request fail with err, and breaks the watches; nil ends that.
func (s *server) fail(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.down = err
	if err != nil {
		for w := range s.watches {
			w.close()
		}
	}
}

func (s *server) counts() (lists, opens, open int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.lists), len(s.opens), len(s.watches)
}

func podNaming(uid string, names ...string) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: uid, UID: types.UID(uid)}}
	for _, n := range names {
		p.Spec.Volumes = append(p.Spec.Volumes, corev1.Volume{Name: n,
			VolumeSource: corev1.VolumeSource{
				ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: n}},
			}})
	}
	return p
}

// bubble runs a test with a fresh cache in virtual time. changed counts notifications by pod.
func bubble(t *testing.T, test func(t *testing.T, s *server, c *Cache, changed func(uid string) int)) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer(t)
		ctx, cancel := context.WithCancel(context.Background())
		var mu sync.Mutex
		counts := map[types.UID]int{}
		c := New(ctx, s, func(uid types.UID) { mu.Lock(); counts[uid]++; mu.Unlock() })
		test(t, s, c, func(uid string) int { settle(); mu.Lock(); defer mu.Unlock(); return counts[types.UID(uid)] })
		cancel()
		settle()
	})
}

// settle waits until everything that is under way has finished.
func settle() {
	time.Sleep(100 * time.Millisecond)
	synctest.Wait()
}

func mustGet(t *testing.T, c *Cache, name, want string) {
	t.Helper()
	cm, err := c.ConfigMap(context.Background(), "shop", name)
	if err != nil || cm.Data["k"] != want {
		t.Errorf("%s: %v %v, want %q", name, cm, err, want)
	}
}

func TestManyPodsOneWatch(t *testing.T) {
	bubble(t, func(t *testing.T, s *server, c *Cache, changed func(string) int) {
		s.put("ca", map[string]string{"k": "1"})
		for i := range 110 {
			c.Track(podNaming(fmt.Sprint("p", i), "ca"))
			c.Track(podNaming(fmt.Sprint("p", i), "ca")) // again: nothing happens
		}
		mustGet(t, c, "ca", "1")
		settle()
		if lists, opens, open := s.counts(); lists != 1 || opens != 1 || open != 1 {
			t.Errorf("%d lists, %d watches opened, %d open, want 1 each", lists, opens, open)
		}
		if n := changed("p7"); n != 0 {
			t.Errorf("first answer told as a change %d times", n)
		}
		cm, _ := c.ConfigMap(context.Background(), "shop", "ca")
		if cm.Annotations != nil {
			t.Error("annotations kept")
		}
		s.put("ca", map[string]string{"k": "2"})
		if n := changed("p7"); n != 1 {
			t.Errorf("told %d times of one change", n)
		}
		mustGet(t, c, "ca", "2")
		for i := range 109 {
			c.Untrack(types.UID(fmt.Sprint("p", i)))
		}
		mustGet(t, c, "ca", "2")
		c.Untrack("p109")
		c.Untrack("p109")
		settle()
		if _, _, open := s.counts(); open != 0 || len(c.items) != 0 || len(c.pods) != 0 {
			t.Errorf("after the last pod: %d watches, %d objects, %d pods", open, len(c.items), len(c.pods))
		}
		if _, err := c.ConfigMap(context.Background(), "shop", "ca"); err == nil ||
			!strings.Contains(err.Error(), `object "shop"/"ca" not registered`) {
			t.Errorf("untracked: %v", err)
		}
	})
}

// A pod that references too many objects gets an error and costs the API server nothing; its former references stay.
func TestObjectsOfOnePodAreBounded(t *testing.T) {
	bubble(t, func(t *testing.T, s *server, c *Cache, _ func(string) int) {
		var names []string
		for i := range volumelimit.ObjectsMax + 1 {
			names = append(names, fmt.Sprint("o", i))
		}
		s.put("o0", map[string]string{"k": "1"})
		if err := c.Track(podNaming("p", names[:volumelimit.ObjectsMax]...)); err != nil {
			t.Error(err)
		}
		settle()
		if err := c.Track(podNaming("p", names...)); err == nil ||
			!strings.Contains(err.Error(),
				"pod shop/p: the pod names 257 Secrets and ConfigMaps, the limit for one pod is 256") {
			t.Errorf("%v", err)
		}
		if err := c.Track(podNaming("q", names...)); err == nil {
			t.Error("a new pod with too many objects is followed")
		}
		settle()
		if _, _, open := s.counts(); open != volumelimit.ObjectsMax {
			t.Errorf("%d watches are open, want %d", open, volumelimit.ObjectsMax)
		}
		mustGet(t, c, "o0", "1")
	})
}

func TestAbsentObject(t *testing.T) {
	bubble(t, func(t *testing.T, s *server, c *Cache, changed func(string) int) {
		c.Track(podNaming("p", "cm"))
		_, err := c.ConfigMap(context.Background(), "shop", "cm")
		if !apierrors.IsNotFound(err) || err.Error() != `configmap "cm" not found` {
			t.Errorf("absent: %v", err)
		}
		settle()
		s.put("cm", map[string]string{"k": "1"})
		if n := changed("p"); n != 1 {
			t.Errorf("told %d times of its appearance", n)
		}
		mustGet(t, c, "cm", "1")
		s.put("cm", nil)
		if n := changed("p"); n != 2 {
			t.Errorf("told %d times", n)
		}
		if _, err := c.ConfigMap(context.Background(), "shop", "cm"); !apierrors.IsNotFound(err) {
			t.Errorf("deleted: %v", err)
		}
	})
}

// The Node authorizer refuses until it has seen the pod: that is neither "not found" nor an outage.
func TestForbiddenAtFirst(t *testing.T) {
	bubble(t, func(t *testing.T, s *server, c *Cache, changed func(string) int) {
		s.put("cm", map[string]string{"k": "1"})
		s.fail(apierrors.NewForbidden(corev1.Resource("configmaps"), "cm", errors.New("no relationship found")))
		began := time.Now()
		time.AfterFunc(100*time.Millisecond, func() { s.fail(nil) })
		c.Track(podNaming("p", "cm"))
		mustGet(t, c, "cm", "1")
		if took := time.Since(began); took > 500*time.Millisecond {
			t.Errorf("took %v after 100 ms of refusal", took)
		}
	})
}

func TestAwayBeforeFirstAnswer(t *testing.T) {
	bubble(t, func(t *testing.T, s *server, c *Cache, changed func(string) int) {
		s.put("cm", map[string]string{"k": "1"})
		s.fail(errors.New("connection refused"))
		c.Track(podNaming("p", "cm"))
		began := time.Now()
		_, err := c.ConfigMap(context.Background(), "shop", "cm")
		var away *AwayError
		if !errors.As(err, &away) || apierrors.IsNotFound(err) ||
			!strings.Contains(err.Error(), "read configmap shop/cm: no answer from the API server yet: connection refused") {
			t.Errorf("away: %v", err)
		}
		if took := time.Since(began); took != answerMax {
			t.Errorf("waited %v", took)
		}
		time.Sleep(2 * time.Minute)
		lists, _, _ := s.counts()
		if lists > 20 {
			t.Errorf("%d requests in two minutes of outage", lists)
		}
		s.fail(nil)
		time.Sleep(backoffMax * 2)
		if n := changed("p"); n != 1 {
			t.Errorf("who gave up was told %d times", n)
		}
		mustGet(t, c, "cm", "1")
	})
}

// An outage with a hundred objects: content is served throughout, changes made meanwhile arrive, and the returning
// server does not get all requests at once.
func TestOutage(t *testing.T) {
	bubble(t, func(t *testing.T, s *server, c *Cache, changed func(string) int) {
		const objects = 100
		for i := range objects {
			name := fmt.Sprint("cm", i)
			s.put(name, map[string]string{"k": "1"})
			c.Track(podNaming("p"+name, name))
			mustGet(t, c, name, "1")
		}
		settle()
		s.fail(errors.New("connection refused"))
		time.Sleep(2 * time.Minute)
		for i := range objects {
			mustGet(t, c, fmt.Sprint("cm", i), "1")
			s.put(fmt.Sprint("cm", i), map[string]string{"k": "2"})
		}
		_, during, _ := s.counts()
		s.mu.Lock()
		// and its history is compacted
		s.busyMax = 0
		s.opens = nil
		s.oldest = s.version
		s.mu.Unlock()
		s.fail(nil)
		time.Sleep(backoffMax*3/2 + backJitter + time.Second)
		for i := range objects {
			mustGet(t, c, fmt.Sprint("cm", i), "2")
			if n := changed(fmt.Sprint("pcm", i)); n != 1 {
				t.Errorf("cm%d: told %d times", i, n)
			}
		}
		if _, _, open := s.counts(); open != objects {
			t.Errorf("%d watches open, want %d", open, objects)
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.busyMax > inFlightMax {
			t.Errorf("%d requests at once, want at most %d", s.busyMax, inFlightMax)
		}
		if during > objects*20 {
			t.Errorf("%d requests during two minutes of outage, want at most %d", during, objects*20)
		}
	})
}

// A watch that the server closes regularly is resumed where it was, without a list.
func TestWatchEnds(t *testing.T) {
	bubble(t, func(t *testing.T, s *server, c *Cache, changed func(string) int) {
		s.put("cm", map[string]string{"k": "1"})
		c.Track(podNaming("p", "cm"))
		mustGet(t, c, "cm", "1")
		for range 5 {
			time.Sleep(20 * time.Minute)
			s.mu.Lock()
			for w := range s.watches {
				w.close()
			}
			s.mu.Unlock()
			settle()
		}
		if lists, opens, open := s.counts(); lists != 1 || opens != 6 || open != 1 {
			t.Errorf("%d lists, %d watches opened, %d open", lists, opens, open)
		}
	})
}

// A server that closes every watch at once, as when it shuts down, is not asked in a tight loop.
func TestWatchEndsAtOnce(t *testing.T) {
	bubble(t, func(t *testing.T, s *server, c *Cache, changed func(string) int) {
		c.Track(podNaming("p", "cm"))
		stop := make(chan struct{})
		go func() {
			for {
				select {
				case <-stop:
					return
				case <-time.After(5 * time.Millisecond):
					s.mu.Lock()
					for w := range s.watches {
						w.close()
					}
					s.mu.Unlock()
				}
			}
		}()
		time.Sleep(time.Minute)
		close(stop)
		if _, opens, _ := s.counts(); opens > 20 {
			t.Errorf("%d watches opened in a minute", opens)
		}
	})
}

func TestImmutableIsNotWatched(t *testing.T) {
	bubble(t, func(t *testing.T, s *server, c *Cache, changed func(string) int) {
		s.put("cm", map[string]string{"k": "1"})
		yes := true
		s.objects["cm"].Immutable = &yes
		c.Track(podNaming("p", "cm"))
		mustGet(t, c, "cm", "1")
		time.Sleep(time.Hour)
		if lists, opens, _ := s.counts(); lists != 1 || opens != 0 {
			t.Errorf("%d lists, %d watches", lists, opens)
		}
		mustGet(t, c, "cm", "1")
	})
}

func TestPodChangesWhatItNames(t *testing.T) {
	bubble(t, func(t *testing.T, s *server, c *Cache, changed func(string) int) {
		s.put("a", map[string]string{"k": "1"})
		s.put("b", map[string]string{"k": "2"})
		c.Track(podNaming("p", "a"))
		mustGet(t, c, "a", "1")
		c.Track(podNaming("p", "b"))
		mustGet(t, c, "b", "2")
		settle()
		if _, _, open := s.counts(); open != 1 {
			t.Errorf("%d watches open", open)
		}
	})
}

func TestReferences(t *testing.T) {
	local := func(n string) corev1.LocalObjectReference { return corev1.LocalObjectReference{Name: n} }
	pod := podNaming("p", "v1")
	pod.Spec.Volumes = append(pod.Spec.Volumes,
		corev1.Volume{VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "v2"}}},
		corev1.Volume{VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{
			Sources: []corev1.VolumeProjection{
				{Secret: &corev1.SecretProjection{LocalObjectReference: local("v3")}},
				{ConfigMap: &corev1.ConfigMapProjection{LocalObjectReference: local("v4")}},
			},
		}}},
		corev1.Volume{VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}})
	pod.Spec.Containers = []corev1.Container{{
		EnvFrom: []corev1.EnvFromSource{{ConfigMapRef: &corev1.ConfigMapEnvSource{LocalObjectReference: local("e1")}},
			{SecretRef: &corev1.SecretEnvSource{LocalObjectReference: local("e2")}}},
		Env: []corev1.EnvVar{{Name: "x"},
			{ValueFrom: &corev1.EnvVarSource{SecretKeyRef: &corev1.SecretKeySelector{LocalObjectReference: local("e3")}}}},
	}}
	pod.Spec.InitContainers = []corev1.Container{
		{Env: []corev1.EnvVar{
			{ValueFrom: &corev1.EnvVarSource{ConfigMapKeyRef: &corev1.ConfigMapKeySelector{LocalObjectReference: local("e4")}}},
		}},
	}
	pod.Spec.EphemeralContainers = []corev1.EphemeralContainer{
		{EphemeralContainerCommon: corev1.EphemeralContainerCommon{
			EnvFrom: []corev1.EnvFromSource{{SecretRef: &corev1.SecretEnvSource{LocalObjectReference: local("e5")}}},
		}},
	}
	pod.Spec.ImagePullSecrets = []corev1.LocalObjectReference{local("pull"), local("")}
	got := References(pod)
	for _, want := range []string{"configmap shop/v1", "secret shop/v2", "secret shop/v3", "configmap shop/v4",
		"configmap shop/e1", "secret shop/e2", "secret shop/e3", "configmap shop/e4", "secret shop/e5", "secret shop/pull"} {
		found := false
		for ref := range got {
			if ref.String() == want {
				found = true
				delete(got, ref)
			}
		}
		if !found {
			t.Errorf("missing %s", want)
		}
	}
	if len(got) > 0 {
		t.Errorf("unexpected %v", got)
	}
}
