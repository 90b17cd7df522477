package numa

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/plimsoll-dev/plimsoll/internal/kube"
	"github.com/plimsoll-dev/plimsoll/internal/kube/topology"
)

// server stores one object as an API server would.
type server struct {
	mu      sync.Mutex
	object  *topology.Object
	version int
	writes  int
	down    error
}

func (s *server) Get(_ context.Context, _ kube.Kind, _, name string, out runtime.Object) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.down != nil {
		return s.down
	}
	if s.object == nil {
		return apierrors.NewNotFound(schema.GroupResource{Resource: topology.Resource}, name)
	}
	*out.(*topology.Object) = *s.object.DeepCopy()
	return nil
}

func (s *server) Create(_ context.Context, _ kube.Kind, _, _ string, obj, out runtime.Object, _ ...string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.down != nil {
		return s.down
	}
	return s.store(obj, out)
}

func (s *server) Update(_ context.Context, _ kube.Kind, _, name string, obj, out runtime.Object, _ ...string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.down != nil:
		return s.down
	case s.object == nil:
		return apierrors.NewNotFound(schema.GroupResource{Resource: topology.Resource}, name)
	case obj.(*topology.Object).ResourceVersion != s.object.ResourceVersion:
		return apierrors.NewConflict(schema.GroupResource{Resource: topology.Resource}, name,
			errors.New("somebody else wrote it"))
	}
	return s.store(obj, out)
}

func (s *server) store(obj, out runtime.Object) error {
	s.version++
	s.writes++
	s.object = obj.(*topology.Object).DeepCopy()
	s.object.ResourceVersion = strconv.Itoa(s.version)
	*out.(*topology.Object) = *s.object.DeepCopy()
	return nil
}

// change changes the server meanwhile.
func (s *server) change(how func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	how()
}

// Every change is written once, at once. Changes of the object by other clients, and a server that is away, are
// handled.
func TestPublish(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k, s := keeper(t, static, newKernel()), &server{}
		var owner *metav1.OwnerReference
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() {
			ended <- k.Publish(ctx, s, func() (o *metav1.OwnerReference) { s.change(func() { o = owner }); return o })
		}()
		pods := func(when string, writes int, want ...string) {
			t.Helper()
			synctest.Wait()
			s.mu.Lock()
			defer s.mu.Unlock()
			if s.writes != writes || s.object == nil {
				t.Fatalf("%s: %d writes, want %d", when, s.writes, writes)
			}
			n, err := topology.Decode(s.object, nil)
			if err != nil {
				t.Fatal(err)
			}
			if got := n.State.Assignments(); len(got) != len(want) || len(want) > 0 && got[0].Pod != want[0] {
				t.Errorf("%s: %+v, want %v", when, got, want)
			}
		}
		pods("at the start", 1)
		k.mustAdmit(t, pod("a", 2))
		pods("a came", 2, "a")
		k.publishSoon()
		pods("nothing changed", 2, "a")

		s.change(func() { s.object.ResourceVersion = "other" }) // another client wrote it
		k.mustAdmit(t, pod("b", 1))
		synctest.Wait()
		<-time.After(republishFirst)
		pods("after a conflict", 3, "a", "b")

		s.change(func() { s.object = nil }) // another client deleted it
		<-time.After(2 * lookEvery)
		pods("deleted", 4, "a", "b")

		s.change(func() { s.down = errors.New("away") })
		k.Release("a")
		synctest.Wait()
		s.change(func() { s.down, owner = nil, &metav1.OwnerReference{Kind: "Node", Name: "n", UID: "u"} })
		<-time.After(republishMost)
		pods("the server is back", 5, "b")
		synctest.Wait()
		if refs := s.object.OwnerReferences; len(refs) != 1 || refs[0].UID != "u" {
			t.Errorf("owned by %v", refs)
		}
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

// A cluster that takes no such object is told of once, as a fact. It is tried again, since that can change. Everything
// else that goes wrong is a warning.
func TestPublishWithoutDefinition(t *testing.T) {
	topologies := schema.GroupResource{Group: "topology.node.k8s.io", Resource: topology.Resource}
	noPath := apierrors.NewGenericServerResponse(http.StatusNotFound, "get", topologies, "n", "404 page not found", 0,
		true)
	synctest.Test(t, func(t *testing.T) {
		var log strings.Builder
		before := slog.Default()
		slog.SetDefault(slog.New(slog.NewTextHandler(&log, nil)))
		defer slog.SetDefault(before)
		k, s := keeper(t, static, newKernel()), &server{}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		for _, row := range []struct {
			down error
			told string
		}{
			{noPath, "level=INFO"},
			{apierrors.NewForbidden(topologies, "n", errors.New("no role")), "level=INFO"},
			{errors.New("away"), "level=WARN"},
		} {
			log.Reset()
			s.change(func() { s.down = row.down })
			if row.down == noPath {
				go func() { ended <- k.Publish(ctx, s, func() *metav1.OwnerReference { return nil }) }()
			}
			<-time.After(10 * republishMost)
			synctest.Wait()
			if said := log.String(); strings.Count(said, "NodeResourceTopology not published")+
				strings.Count(said, "no NodeResourceTopology") != 1 || !strings.Contains(said, row.told) {
				t.Errorf("%v: it says %q, want one line with %s", row.down, said, row.told)
			}
		}
		s.change(func() { s.down = nil })
		<-time.After(republishMost)
		synctest.Wait()
		if s.change(func() {}); s.writes != 1 {
			t.Errorf("%d writes, want 1", s.writes)
		}
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

// The state is published when Announce returns, whatever another client did to the object. Announce does not wait long
// for a server that is away.
func TestAnnounce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k, s := keeper(t, static, newKernel()), &server{}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		announce := func(when string, want time.Duration) {
			t.Helper()
			began := time.Now()
			k.Announce(ctx)
			if took := time.Since(began); took != want {
				t.Errorf("%s: announced after %v, want %v", when, took, want)
			}
		}
		announce("nobody publishes", announceMax)
		var owner *metav1.OwnerReference
		go k.Publish(ctx, s, func() (o *metav1.OwnerReference) { s.change(func() { o = owner }); return o })
		announce("at the start", 0)
		if s.object == nil || len(s.object.OwnerReferences) != 0 {
			t.Errorf("announced: %+v", s.object)
		}
		for _, uid := range []types.UID{"first", "second"} {
			s.change(func() { owner = &metav1.OwnerReference{Kind: "Node", Name: "n", UID: uid} })
			announce("there is a Node", 0)
			if refs := s.object.OwnerReferences; len(refs) != 1 || refs[0].UID != uid {
				t.Errorf("owned by %v, want %s", refs, uid)
			}
			s.change(func() { s.object = nil }) // with the Node
			announce("it was deleted", 0)
			if s.object == nil {
				t.Error("deleted, announced, and nothing is there")
			}
		}
		s.change(func() { s.down = errors.New("away") })
		announce("the server is away", 0)
		cancel()
		announce("the agent ends", 0)
	})
}
