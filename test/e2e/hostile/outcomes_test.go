//go:build e2e

package hostile

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	statsapi "k8s.io/kubelet/pkg/apis/stats/v1alpha1"

	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
	"github.com/plimsoll-dev/plimsoll/test/e2e/rig"
)

// outcome is a condition that must become true for an attacker. pod is nil when it is deleted.
type outcome func(s *siege, pod *corev1.Pod) error

// evicted: the attacker was evicted because it exceeded its limits of local storage.
func evicted(_ *siege, pod *corev1.Pod) error {
	if pod == nil || pod.Status.Phase != corev1.PodFailed || pod.Status.Reason != "Evicted" {
		return fmt.Errorf("it is not evicted: %s", describe(pod))
	}
	return nil
}

// runs: the attacker runs and was not restarted.
func runs(_ *siege, pod *corev1.Pod) error {
	if pod == nil || pod.Status.Phase != corev1.PodRunning {
		return fmt.Errorf("it does not run: %s", describe(pod))
	}
	return nil
}

// comes: the attacker's containers were started. They may have ended.
func comes(_ *siege, pod *corev1.Pod) error {
	if pod == nil || pod.Status.Phase == corev1.PodPending {
		return fmt.Errorf("it never ran: %s", describe(pod))
	}
	return nil
}

// started: a container was started. Its status may not say so before its postStart hook has ended.
func started(s *siege, pod *corev1.Pod) error {
	if pod == nil {
		return errors.New("it is gone")
	}
	events, err := s.API.CoreV1().Events(s.ns).List(s.t.Context(),
		metav1.ListOptions{FieldSelector: "reason=Started,involvedObject.uid=" + string(pod.UID)})
	if err != nil {
		return err
	}
	if len(events.Items) == 0 {
		return fmt.Errorf("none of its containers was started: %s", describe(pod))
	}
	return nil
}

// ends: the attacker has ended.
func ends(_ *siege, pod *corev1.Pod) error {
	if pod == nil || pod.Status.Phase != corev1.PodFailed && pod.Status.Phase != corev1.PodSucceeded {
		return fmt.Errorf("it goes on: %s", describe(pod))
	}
	return nil
}

// restarts: the attacker's first container was restarted at least so often.
func restarts(times int32) outcome {
	return func(_ *siege, pod *corev1.Pod) error {
		if pod == nil || len(pod.Status.ContainerStatuses) == 0 || pod.Status.ContainerStatuses[0].RestartCount < times {
			return fmt.Errorf("want %d restarts: %s", times, describe(pod))
		}
		return nil
	}
}

// waits: a container waits to be started, for the given reason.
func waits(reason string) outcome {
	return func(_ *siege, pod *corev1.Pod) error {
		if pod != nil {
			for _, c := range pod.Status.ContainerStatuses {
				if w := c.State.Waiting; w != nil && w.Reason == reason {
					return nil
				}
			}
		}
		return fmt.Errorf("no container waits for %s: %s", reason, describe(pod))
	}
}

// counts: the agent reports a usage of local storage between the two numbers of bytes.
func counts(least, most unit.Bytes) outcome {
	return func(s *siege, pod *corev1.Pod) error {
		usage, err := s.usage(pod)
		if err != nil {
			return err
		}
		if usage == nil || usage.EphemeralStorage == nil || usage.EphemeralStorage.UsedBytes == nil {
			return fmt.Errorf("its disk is not counted: %s", describe(pod))
		}
		if used := unit.Bytes(*usage.EphemeralStorage.UsedBytes); used < least || used > most {
			return fmt.Errorf("it is said to use %v, want %v to %v", used, least, most)
		}
		return nil
	}
}

// countsInodes: the agent reports at least so many inodes of the attacker.
func countsInodes(least uint64) outcome {
	return func(s *siege, pod *corev1.Pod) error {
		usage, err := s.usage(pod)
		if err != nil {
			return err
		}
		if usage == nil || usage.EphemeralStorage == nil || usage.EphemeralStorage.InodesUsed == nil ||
			*usage.EphemeralStorage.InodesUsed < least {
			return fmt.Errorf("fewer than %d inodes are counted: %+v; %s", least, usage, describe(pod))
		}
		return nil
	}
}

// says: the termination messages contain the text, and are together no longer than a status may have.
func says(text string) outcome {
	return func(_ *siege, pod *corev1.Pod) error {
		if pod == nil {
			return errors.New("it is gone")
		}
		found, sum := false, 0
		for _, c := range pod.Status.ContainerStatuses {
			if e := c.State.Terminated; e != nil {
				found, sum = found || strings.Contains(e.Message, text), sum+len(e.Message)
			}
		}
		if !found || sum > messagesMax {
			return fmt.Errorf("messages of %d bytes, with %q: %v; %s", sum, text, found, describe(pod))
		}
		return nil
	}
}

// messagesMax is the limit, in bytes, of all termination messages of a pod together. It is upstream's
// (kubecontainer.MaxPodTerminationMessageLogLength).
const messagesMax = 12 << 10

// both is true when both outcomes are.
func both(first, second outcome) outcome {
	return func(s *siege, pod *corev1.Pod) error { return errors.Join(first(s, pod), second(s, pod)) }
}

// agent sends a request to the agent itself, as administrator: kube-apiserver refuses to proxy to a node on loopback.
type agent struct {
	url    string
	client *http.Client

	mu      sync.Mutex
	at      time.Time
	summary *statsapi.Summary
}

func dialAgent(c *rig.Cluster) (*agent, error) {
	config := rest.CopyConfig(c.Config)
	config.TLSClientConfig.CAData, config.TLSClientConfig.CAFile, config.TLSClientConfig.Insecure = nil, "", true
	transport, err := rest.TransportFor(config)
	if err != nil {
		return nil, err
	}
	return &agent{url: fmt.Sprintf("https://127.0.0.1:%d", c.AgentPort), client: &http.Client{Transport: transport,
		Timeout: patience}}, nil
}

// summaryLife is how long a summary is used again, because many outcomes need it.
const summaryLife = time.Second

func (a *agent) read() (*statsapi.Summary, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.summary != nil && time.Since(a.at) < summaryLife {
		return a.summary, nil
	}
	response, err := a.client.Get(a.url + "/stats/summary")
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil || response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("summary: %s: %.200s: %w", response.Status, body, err)
	}
	var summary statsapi.Summary
	if err := json.Unmarshal(body, &summary); err != nil {
		return nil, err
	}
	a.summary, a.at = &summary, time.Now()
	return a.summary, nil
}

// usage returns what the agent reports that a pod uses; nil if it reports nothing.
func (s *siege) usage(pod *corev1.Pod) (*statsapi.PodStats, error) {
	if pod == nil {
		return nil, errors.New("it is gone")
	}
	summary, err := s.agent.read()
	if err != nil {
		return nil, err
	}
	for i := range summary.Pods {
		if summary.Pods[i].PodRef.UID == string(pod.UID) {
			return &summary.Pods[i], nil
		}
	}
	return nil, nil
}
