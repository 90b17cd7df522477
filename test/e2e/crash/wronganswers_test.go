//go:build e2e

package crash

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/plimsoll-dev/plimsoll/internal/host/cri"
	"github.com/plimsoll-dev/plimsoll/test/criproxy"
	"github.com/plimsoll-dev/plimsoll/test/e2e/rig"
)

// A wrongAnswer is something false that a runtime says about one pod.
type wrongAnswer struct {
	name string
	lie  func(p *criproxy.Proxy, uid types.UID)
	new  bool   // about a pod that is created meanwhile; else about one that runs
	want string // in an Event of the pod; empty: there is none, and the pod runs on
}

// TestRuntimeThatLies makes a real containerd give wrong answers about one pod at a time. An Event says what is wrong.
// The agent starts no container twice, and other pods keep running and starting. When the answers are right again the
// pod runs, and nothing was restarted.
func TestRuntimeThatLies(t *testing.T) {
	t.Parallel()
	theirs, _, _ := somebodysContainerd(t)
	dir, err := os.MkdirTemp("", "li-") // a short name: socket paths have at most 107 characters
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	socket := filepath.Join(dir, "lies.sock")
	p := criproxy.Listen(t, socket, strings.TrimPrefix(theirs.Endpoint, "unix://"))
	t.Run("instance", func(t *testing.T) {
		c := rig.New(t, "liar", rig.Options{UpFlags: []string{"--container-runtime-endpoint", "unix://" + socket}})
		w := &witness{t: t, c: c, runtime: theirs, starts: t.TempDir()}
		namespace := c.Namespace(t)
		neighbour := w.lasting(namespace, "neighbour")
		w.runsOnce(namespace, neighbour)
		agentRuns := pidOf(t, c, agent)
		for _, l := range wrongAnswers(neighbour.UID, theirs) {
			t.Run(l.name, func(t *testing.T) { w.at(t).playWrongAnswer(p, l, namespace) })
		}
		w.runsOnce(namespace, neighbour)
		if now := pidOf(t, c, agent); now != agentRuns {
			t.Errorf("the agent was process %d and is process %d", agentRuns, now)
		}
	})
}

// playWrongAnswer makes the runtime give a wrong answer about a pod, and checks what follows.
func (w *witness) playWrongAnswer(p *criproxy.Proxy, l wrongAnswer, namespace string) {
	w.t.Helper()
	defer p.TellTheTruth()
	name := strings.ReplaceAll(l.name, " ", "-")
	var pod *corev1.Pod
	if l.new {
		l.lie(p, "")
		pod = w.lasting(namespace, name)
	} else {
		pod = w.lasting(namespace, name)
		w.runsOnce(namespace, pod)
		l.lie(p, pod.UID)
	}
	if l.want != "" {
		w.event(namespace, name, l.want)
		p.TellTheTruth()
	}
	other := w.lasting(namespace, name+"-other")
	w.runsOnce(namespace, other)
	p.TellTheTruth()
	w.runsOnce(namespace, pod)
	for _, done := range []*corev1.Pod{pod, other} {
		if err := w.c.API.CoreV1().Pods(namespace).Delete(w.t.Context(), done.Name, metav1.DeleteOptions{}); err != nil {
			w.t.Fatal(err)
		}
	}
}

func (w *witness) lasting(namespace, name string) *corev1.Pod {
	w.t.Helper()
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: w.spec(corev1.RestartPolicyAlways, 1,
		"sleep infinity")}
	pod, err := w.c.API.CoreV1().Pods(namespace).Create(w.t.Context(), pod, metav1.CreateOptions{})
	if err != nil {
		w.t.Fatal(err)
	}
	return pod
}

// runsOnce waits until a pod is Ready, and checks that its container has run once.
func (w *witness) runsOnce(namespace string, pod *corev1.Pod) {
	w.t.Helper()
	rig.Eventually(w.t, soon, pod.Name+" is Ready", func(ctx ctxT) error {
		now, err := w.c.API.CoreV1().Pods(namespace).Get(ctx, pod.Name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if !podReady(now) || len(now.Status.ContainerStatuses) != 1 || now.Status.ContainerStatuses[0].State.Running == nil {
			return fmt.Errorf("phase %s, %+v", now.Status.Phase, now.Status.ContainerStatuses)
		}
		return nil
	})
	w.startsOnce(pod.UID, pod.Name)
}

func (w *witness) event(namespace, name, text string) {
	w.t.Helper()
	rig.Eventually(w.t, soon, "an Event of "+name+" says "+text, func(ctx ctxT) error {
		said, err := w.c.API.CoreV1().Events(namespace).List(ctx, metav1.ListOptions{FieldSelector: "involvedObject.name=" +
			name})
		if err != nil {
			return err
		}
		var all []string
		for _, e := range said.Items {
			if e.Type == corev1.EventTypeWarning && strings.Contains(e.Message, text) {
				return nil
			}
			all = append(all, e.Reason+": "+e.Message)
		}
		return fmt.Errorf("they say %q", all)
	})
}

type (
	listed       = runtimeapi.ListContainersResponse
	statusAsked  = runtimeapi.ContainerStatusRequest
	statusAnswer = runtimeapi.ContainerStatusResponse
)

// inLists changes the containers of a pod in lists. If change returns false, lists lack the container.
func inLists(p *criproxy.Proxy, uid types.UID, change func(*runtimeapi.Container) bool) {
	criproxy.Lie(p, runtimeapi.RuntimeService_ListContainers_FullMethodName, func(
		_ context.Context, _ *runtimeapi.ListContainersRequest, ask func() (*listed, error),
	) (*listed, error) {
		answer, err := ask()
		answer.Containers = slices.DeleteFunc(answer.Containers, func(c *runtimeapi.Container) bool {
			return cri.PodUID(c.Labels) == uid && !change(c)
		})
		return answer, err
	})
}

// inStatus changes the answer about the status of a container of a pod.
func inStatus(p *criproxy.Proxy, uid types.UID, change func(context.Context, *statusAnswer)) {
	criproxy.Lie(p, runtimeapi.RuntimeService_ContainerStatus_FullMethodName, func(
		ctx context.Context, _ *statusAsked, ask func() (*statusAnswer, error),
	) (*statusAnswer, error) {
		answer, err := ask()
		if err == nil && cri.PodUID(answer.Status.Labels) == uid {
			change(ctx, answer)
		}
		return answer, err
	})
}

const exited = runtimeapi.ContainerState_CONTAINER_EXITED

// ended makes lists say that the containers of a pod have ended, so that the agent reads their status again.
func ended(p *criproxy.Proxy, uid types.UID) {
	inLists(p, uid, func(c *runtimeapi.Container) bool {
		c.State = exited
		return true
	})
}

// wrongAnswers are the wrong answers, in the order in which they are played.
func wrongAnswers(neighbour types.UID, truth *cri.Client) []wrongAnswer {
	return []wrongAnswer{
		{name: "forgets", want: "yet its process", lie: func(p *criproxy.Proxy, uid types.UID) {
			inLists(p, uid, func(*runtimeapi.Container) bool { return false })
		}},
		{name: "calls it ended", want: "calls it CONTAINER_EXITED, yet its process",
			lie: func(p *criproxy.Proxy, uid types.UID) {
				ended(p, uid)
				inStatus(p, uid, func(_ context.Context, a *statusAnswer) { a.Status.State = exited })
			}},
		{name: "another pods", want: `says it is of the pod with UID "` + string(neighbour),
			lie: func(p *criproxy.Proxy, uid types.UID) {
				ended(p, uid)
				inStatus(p, uid, func(_ context.Context, a *statusAnswer) { a.Status.Labels[cri.LabelPodUID] = string(neighbour) })
			}},
		{name: "no labels", want: `says it is of the pod with UID ""`, lie: func(p *criproxy.Proxy, uid types.UID) {
			ended(p, uid)
			inStatus(p, uid, func(_ context.Context, a *statusAnswer) { a.Status.Labels = nil })
		}},
		{name: "no status", want: `the runtime answers about "" instead`, lie: func(p *criproxy.Proxy, uid types.UID) {
			ended(p, uid)
			inStatus(p, uid, func(_ context.Context, a *statusAnswer) { a.Status = nil })
		}},
		{name: "hangs", want: "DeadlineExceeded", lie: func(p *criproxy.Proxy, uid types.UID) {
			ended(p, uid)
			inStatus(p, uid, func(ctx context.Context, _ *statusAnswer) { <-ctx.Done() })
		}},
		{name: "lists it twice with 20 mb", lie: func(p *criproxy.Proxy, uid types.UID) {
			criproxy.Lie(p, runtimeapi.RuntimeService_ListContainers_FullMethodName, func(
				_ context.Context, _ *runtimeapi.ListContainersRequest, ask func() (*listed, error),
			) (*listed, error) {
				answer, err := ask()
				answer.Containers = append(answer.Containers, answer.Containers...)
				for _, c := range answer.Containers {
					if cri.PodUID(c.Labels) == uid {
						c.Annotations = map[string]string{"large": strings.Repeat("x", 10<<20)}
					}
				}
				return answer, err
			})
		}},
		{name: "another image", lie: func(p *criproxy.Proxy, uid types.UID) {
			inStatus(p, uid, func(_ context.Context, a *statusAnswer) { a.Status.ImageRef = "sha256:" + time.Now().String() })
		}},
		{name: "makes it without an id", new: true, want: "names no ID of what it made", lie: creates("")},
		{name: "makes a neighbour", new: true, want: "and that it is of", lie: func(p *criproxy.Proxy, _ types.UID) {
			list, err := truth.ListContainers(context.Background(),
				&runtimeapi.ListContainersRequest{Filter: &runtimeapi.ContainerFilter{
					LabelSelector: map[string]string{cri.LabelPodUID: string(neighbour)},
				}})
			if err == nil && len(list.Containers) == 1 {
				creates(list.Containers[0].Id)(p, "")
			}
		}},
		{name: "starts it not", new: true, want: "has started container", lie: func(p *criproxy.Proxy, _ types.UID) {
			criproxy.Lie(p, runtimeapi.RuntimeService_StartContainer_FullMethodName, func(
				context.Context, *runtimeapi.StartContainerRequest, func() (*runtimeapi.StartContainerResponse, error),
			) (*runtimeapi.StartContainerResponse, error) {
				return &runtimeapi.StartContainerResponse{}, nil
			})
		}},
		{name: "no address", new: true, want: "names no IP of it", lie: func(p *criproxy.Proxy, _ types.UID) {
			criproxy.Lie(p, runtimeapi.RuntimeService_PodSandboxStatus_FullMethodName, func(
				_ context.Context, _ *runtimeapi.PodSandboxStatusRequest, ask func() (*runtimeapi.PodSandboxStatusResponse, error),
			) (*runtimeapi.PodSandboxStatusResponse, error) {
				answer, err := ask()
				if answer.Status != nil {
					answer.Status.Network = nil
				}
				return answer, err
			})
		}},
		{name: "no sandbox", new: true, want: "names no ID of what it made", lie: func(p *criproxy.Proxy, _ types.UID) {
			criproxy.Lie(p, runtimeapi.RuntimeService_RunPodSandbox_FullMethodName, func(
				_ context.Context, _ *runtimeapi.RunPodSandboxRequest, ask func() (*runtimeapi.RunPodSandboxResponse, error),
			) (*runtimeapi.RunPodSandboxResponse, error) {
				answer, err := ask()
				answer.PodSandboxId = ""
				return answer, err
			})
		}},
	}
}

// creates makes the runtime answer every creation of a container with the same ID.
func creates(id string) func(*criproxy.Proxy, types.UID) {
	return func(p *criproxy.Proxy, _ types.UID) {
		criproxy.Lie(p, runtimeapi.RuntimeService_CreateContainer_FullMethodName, func(
			_ context.Context, _ *runtimeapi.CreateContainerRequest, ask func() (*runtimeapi.CreateContainerResponse, error),
		) (*runtimeapi.CreateContainerResponse, error) {
			answer, err := ask()
			answer.ContainerId = id
			return answer, err
		})
	}
}
