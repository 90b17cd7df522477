package agent

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// toldRuntime notes what it is told, and refuses it while refuses is set.
type toldRuntime struct {
	mu      sync.Mutex
	told    []string
	refuses bool
}

func (r *toldRuntime) UpdateRuntimeConfig(_ context.Context, q *runtimeapi.UpdateRuntimeConfigRequest,
	_ ...grpc.CallOption) (*runtimeapi.UpdateRuntimeConfigResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.told = append(r.told, q.RuntimeConfig.NetworkConfig.PodCidr)
	if r.refuses {
		return nil, errors.New("refused")
	}
	return &runtimeapi.UpdateRuntimeConfigResponse{}, nil
}

// TestPodCIDRs: the runtime is told once for each change, and again while it refuses.
func TestPodCIDRs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPodCIDRs()
		runtime := &toldRuntime{}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { defer close(ended); p.run(ctx, runtime) }()
		wants := func(when string, told ...string) {
			t.Helper()
			synctest.Wait()
			runtime.mu.Lock()
			defer runtime.mu.Unlock()
			if !slices.Equal(runtime.told, told) {
				t.Errorf("%s, the runtime was told %q, want %q", when, runtime.told, told)
			}
			runtime.told = nil
		}
		p.receive(nil)
		wants("without ranges")
		p.receive([]string{"10.1.0.0/24", "fd00::/64"})
		wants("with ranges", "10.1.0.0/24,fd00::/64")
		p.receive([]string{"10.1.0.0/24", "fd00::/64"})
		wants("with the same ranges")
		refuse := func(refuses bool) {
			runtime.mu.Lock()
			defer runtime.mu.Unlock()
			runtime.refuses = refuses
		}
		refuse(true)
		p.receive([]string{"10.2.0.0/24"})
		time.Sleep(25 * time.Second)
		wants("while it refuses", "10.2.0.0/24", "10.2.0.0/24", "10.2.0.0/24")
		refuse(false)
		time.Sleep(time.Minute)
		wants("when it takes them", "10.2.0.0/24")
		cancel()
		<-ended
	})
}
