package lifecycle

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	corelifecycle "github.com/plimsoll-dev/plimsoll/internal/core/lifecycle"
	"github.com/plimsoll-dev/plimsoll/internal/kube/translate"
)

// annotating is an API server that notes patches of nodes.
type annotating struct {
	*server
	mu      sync.Mutex
	failing bool
	patches []string
}

func (s *annotating) patchNode(
	_ context.Context, name string, _ types.PatchType, body []byte, _ ...string,
) (*corev1.Node, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.patches = append(s.patches, name+" "+string(body))
	if s.failing {
		return nil, errors.New("internal error")
	}
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}, nil
}

func (s *annotating) fail(failing bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.failing = failing
}

// took returns the patches since it was called last.
func (s *annotating) took() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	defer func() { s.patches = nil }()
	return s.patches
}

// TestTellsNodes: once all is listed, a node whose pods have claims is told which are to grow, by its annotation. What
// failed is repeated, and only a leader writes.
func TestTellsNodes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &annotating{server: &server{}}
		var leads atomic.Bool
		c := newController(Options{Monitor: corelifecycle.Defaults(), Leads: leads.Load}, s, recorders{})
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go c.tellNodes(ctx)
		want := func(after string, claims ...string) {
			t.Helper()
			synctest.Wait()
			var patches []string
			for _, text := range claims {
				patches = append(patches, `n {"metadata":{"annotations":{"plimsoll.dev/claims-to-grow":"`+text+`"}}}`)
			}
			if got := s.took(); !slices.Equal(got, patches) {
				t.Errorf("%s: patches %q, want %q", after, got, patches)
			}
		}
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}}
		node.Status.NodeInfo.KubeletVersion = "v1.36.3" + translate.AgentVersionMark + "1"
		c.nodeHandler().OnAdd(node, true)
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "p", UID: "u"}}
		pod.Spec.NodeName = "n"
		pod.Spec.Volumes = []corev1.Volume{{VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "x"},
		}}}
		c.podHandler().OnAdd(pod, true)
		small := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "x"}}
		grows := small.DeepCopy()
		grows.Status.Conditions = []corev1.PersistentVolumeClaimCondition{
			{Type: corev1.PersistentVolumeClaimFileSystemResizePending, Status: corev1.ConditionTrue},
		}
		c.teller.claimHandler().OnAdd(small, true)
		leads.Store(true)
		want("before all is listed")
		c.teller.listed()
		want("after", "")
		c.teller.claimHandler().OnUpdate(small, grows)
		want("a claim is to grow", "a/x")
		s.fail(true)
		c.teller.claimHandler().OnUpdate(grows, small)
		want("it has grown, and the API server fails", "")
		s.fail(false)
		time.Sleep(6 * time.Second)
		want("later", "")
		leads.Store(false)
		c.teller.claimHandler().OnUpdate(small, grows)
		want("while another leads")
		leads.Store(true)
		time.Sleep(6 * time.Second)
		want("then", "a/x")
		c.teller.claimHandler().OnDelete(grows)
		want("the claim is deleted", "")
		c.podHandler().OnDelete(pod)
		c.nodeHandler().OnDelete(node)
		want("the pod is gone")
	})
}
