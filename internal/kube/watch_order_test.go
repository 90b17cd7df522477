package kube

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
)

// TestOrderedInformer: the handler gets the objects of a list in order, for the first list and for one after a gap.
// Deleted objects come first, and changes between lists come as they happen. This holds whether or not the server
// streams its lists.
func TestOrderedInformer(t *testing.T) {
	for _, streams := range []bool{false, true} {
		t.Run(fmt.Sprintf("streams %v", streams), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { orderOf(t, streams) })
		})
	}
}

func orderOf(t *testing.T, streams bool) {
	var said []string
	say := func(what string, obj any) {
		pod, _ := Deleted[*corev1.Pod](obj)
		said = append(said, what+pod.Name)
	}
	server := &lister{streams: streams}
	server.set("delta", "alpha", "echo", "charlie", "bravo")
	store, controller := orderedInformer(cache.InformerOptions{
		ListerWatcher: server, ObjectType: &corev1.Pod{}, Transform: dropManagedFields,
		Handler: cache.ResourceEventHandlerDetailedFuncs{
			AddFunc: func(obj any, initial bool) {
				if initial {
					say("first ", obj)
				} else {
					say("add ", obj)
				}
			},
			UpdateFunc: func(_, obj any) { say("update ", obj) },
			DeleteFunc: func(obj any) { say("delete ", obj) },
		},
	}, func(a, b any) int { return -strings.Compare(a.(*corev1.Pod).Name, b.(*corev1.Pod).Name) })
	go controller.RunWithContext(t.Context())
	synctest.Wait()
	if !controller.HasSynced() {
		t.Error("the handler got a whole list, and the informer is not synced")
	}
	server.watch.Add(server.pod("yankee"))
	server.watch.Add(server.pod("zulu"))
	server.watch.Modify(server.pod("alpha"))
	server.watch.Delete(server.pod("yankee"))
	server.set("zulu", "alpha", "golf", "foxtrot", "hotel", "bravo", "charlie", "echo") // delta is deleted during the gap
	server.watch.Error(&apierrors.NewResourceExpired("too old").ErrStatus)
	time.Sleep(time.Minute) // more than a reflector waits
	synctest.Wait()
	want := strings.Fields(`first_echo first_delta first_charlie first_bravo first_alpha
		add_yankee add_zulu update_alpha delete_yankee
		delete_delta update_zulu add_hotel add_golf add_foxtrot update_echo update_charlie update_bravo update_alpha`)
	for i := range said {
		said[i] = strings.ReplaceAll(said[i], " ", "_")
	}
	if !slices.Equal(said, want) {
		t.Errorf("the handler got\n%q, want\n%q", said, want)
	}
	if keys := store.ListKeys(); len(keys) != len(server.pods) {
		t.Errorf("it keeps %q, there are %d", keys, len(server.pods))
	}
}

// lister has pods. It lists or streams them in the order in which they were set.
type lister struct {
	streams bool
	version int
	pods    []corev1.Pod
	watch   *watch.RaceFreeFakeWatcher
}

func (l *lister) pod(name string) *corev1.Pod {
	l.version++
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, ResourceVersion: fmt.Sprint(l.version)}}
}

func (l *lister) set(names ...string) {
	l.pods = nil
	for _, name := range names {
		l.pods = append(l.pods, *l.pod(name))
	}
}

// IsWatchListSemanticsUnSupported tells the reflector whether to ask for a stream.
func (l *lister) IsWatchListSemanticsUnSupported() bool { return !l.streams }

func (l *lister) List(metav1.ListOptions) (runtime.Object, error) {
	return &corev1.PodList{ListMeta: metav1.ListMeta{ResourceVersion: fmt.Sprint(l.version)}, Items: l.pods}, nil
}

func (l *lister) Watch(o metav1.ListOptions) (watch.Interface, error) {
	l.watch = watch.NewRaceFreeFake()
	if o.SendInitialEvents != nil && *o.SendInitialEvents {
		for i := range l.pods {
			l.watch.Add(&l.pods[i])
		}
		end := l.pod("")
		end.Annotations = map[string]string{metav1.InitialEventsAnnotationKey: "true"}
		l.watch.Action(watch.Bookmark, end)
	}
	return l.watch, nil
}
