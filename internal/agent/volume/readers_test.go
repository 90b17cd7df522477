package volume

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/time/rate"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/plimsoll-dev/plimsoll/internal/agent/turns"
)

// slowClaims has every claim, bound to a volume of its own, and answers as often as kubeAPIQPS and kubeAPIBurst allow.
type slowClaims struct {
	limit *rate.Limiter

	mu    sync.Mutex
	reads map[string]int // by claim
}

func (c *slowClaims) Claim(ctx context.Context, namespace, name string) (*corev1.PersistentVolumeClaim, error) {
	c.mu.Lock()
	c.reads[name]++
	c.mu.Unlock()
	out := &corev1.PersistentVolumeClaim{}
	out.Namespace, out.Name, out.UID = namespace, name, types.UID(name)
	out.Status.Phase = corev1.ClaimBound
	out.Spec.VolumeName = name
	return out, c.limit.Wait(ctx)
}

func (c *slowClaims) Volume(ctx context.Context, name string) (*corev1.PersistentVolume, error) {
	out := &corev1.PersistentVolume{}
	out.Name = name
	out.Spec.ClaimRef = &corev1.ObjectReference{UID: types.UID(name)}
	return out, c.limit.Wait(ctx)
}

// TestPodsReadInTurn: of a hundred pods with ten claims each that come at once, the first have read theirs long before
// the last, in the order in which they came; a pod of another namespace does not wait for all of them. No claim is read
// twice.
func TestPodsReadInTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const (
			pods   = 100
			claims = 10
			qps    = 50
		)
		api := &slowClaims{limit: rate.NewLimiter(qps, 2*qps), reads: map[string]int{}}
		k := &Manager{
			Options: Options{Claims: api},
			byPod:   map[types.UID]*podState{},
			readers: turns.NewStarts(readersMax),
		}
		var mu sync.Mutex
		var order []string
		took := map[string]time.Duration{}
		begun := time.Now()
		read := func(name string) {
			pod := podWith(name)
			pod.Namespace, _, _ = strings.Cut(name, "-")
			for i := range claims {
				claim := fmt.Sprint(name, "-", i)
				pod.Spec.Volumes = append(pod.Spec.Volumes, claimVolume(claim, claim))
			}
			for range 3 { // it is tried again while a driver works on its volumes
				if err := k.readClaims(t.Context(), pod); err != nil {
					t.Error(err)
				}
			}
			mu.Lock()
			defer mu.Unlock()
			order = append(order, name)
			took[name] = time.Since(begun)
		}
		for i := range pods {
			go read(fmt.Sprintf("many-%02d", i))
			synctest.Wait() // it is in the line before the next one comes
		}
		go read("other-00")
		time.Sleep(time.Hour)
		synctest.Wait()
		if len(order) != pods+1 {
			t.Fatalf("%d pods have read their claims", len(order))
		}
		for claim, n := range api.reads {
			if n != 1 {
				t.Errorf("claim %s was read %d times", claim, n)
			}
		}
		last := time.Duration(2*claims*(pods+1)-2*qps) * time.Second / qps // two objects a claim, less the burst
		if first := took["many-00"]; first > last/20 {
			t.Errorf("the first pod has its claims after %v, the last after %v", first, took["many-99"])
		}
		if half := took["many-49"]; half > last*11/20 {
			t.Errorf("half of the pods have their claims after %v, all can after %v", half, last)
		}
		if all := took["many-99"]; all > last+time.Second {
			t.Errorf("all pods have their claims after %v, and can after %v", all, last)
		}
		if other := took["other-00"]; other > last/20 {
			t.Errorf("the pod of another namespace has its claims after %v", other)
		}
		for i, name := range order {
			if at := slices.Index(slices.Sorted(slices.Values(order)), name); name != "other-00" && (at < i-2 || at > i+2) {
				t.Errorf("pod %s was number %d", name, i)
			}
		}
	})
}

// TestPodGoesWhileItWaits: a pod that is deleted leaves the line, and the next has its turn.
func TestPodGoesWhileItWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := &slowClaims{limit: rate.NewLimiter(rate.Every(time.Second), 1), reads: map[string]int{}}
		k := &Manager{Options: Options{Claims: api}, byPod: map[types.UID]*podState{}, readers: turns.NewStarts(1)}
		done := map[string]chan error{}
		read := func(ctx context.Context, name string) {
			done[name] = make(chan error, 1)
			go func(done chan error) {
				done <- k.readClaims(ctx, podWith(name, claimVolume("v", "claim-of-"+name)))
			}(done[name])
			synctest.Wait()
		}
		ctx, cancel := context.WithCancel(t.Context())
		read(t.Context(), "first")
		read(ctx, "goes")
		read(t.Context(), "last")
		cancel()
		if err := <-done["goes"]; err == nil {
			t.Error("a pod that is deleted waited to the end")
		}
		for _, name := range []string{"first", "last"} {
			if err := <-done[name]; err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
		if api.reads["claim-of-goes"] != 0 {
			t.Error("the claim of a pod that was deleted was read")
		}
	})
}
