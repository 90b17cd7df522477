package server

import (
	"bytes"
	"encoding/json"
	"log/slog"
	"net/http"
	"slices"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	kubeletconfigv1beta1 "k8s.io/kubelet/config/v1beta1"

	"github.com/plimsoll-dev/plimsoll/internal/host/cri"
	"github.com/plimsoll-dev/plimsoll/internal/journal"
	"github.com/plimsoll-dev/plimsoll/internal/kube/translate"
)

// pods answers with the pods that this node should run, as a PodList.
func (s *Server) pods(w http.ResponseWriter, _ *http.Request) {
	writePods(w, s.o.Pods.List())
}

// writePods encodes one pod at a time, since a list of all pods would need some MiB, twice.
func writePods(w http.ResponseWriter, pods []*corev1.Pod) {
	pods = slices.Clone(pods)
	slices.SortFunc(pods, func(a, b *corev1.Pod) int {
		return strings.Compare(a.Namespace+"/"+a.Name, b.Namespace+"/"+b.Name)
	})
	w.Header().Set("Content-Type", "application/json")
	var buf bytes.Buffer
	encode := json.NewEncoder(&buf)
	buf.WriteString(`{"kind":"PodList","apiVersion":"v1","metadata":{},"items":[`)
	for i, pod := range pods {
		if i > 0 {
			buf.WriteByte(',')
		}
		err := encode.Encode(pod)
		if err == nil {
			_, err = buf.WriteTo(w)
		}
		if err != nil {
			slog.Info("answer ends early", "pod", pod.Name, "namespace", pod.Namespace, "err", err)
			return
		}
	}
	buf.WriteString("]}\n")
	_, _ = buf.WriteTo(w) // an error means that the client is gone
}

// journal answers with the node's decisions about pods, oldest first.
func (s *Server) journal(w http.ResponseWriter, r *http.Request) {
	if s.o.Journal == nil {
		http.Error(w, "this node has no journal", http.StatusNotFound)
		return
	}
	journal.Handler(s.o.Journal).ServeHTTP(w, r)
}

// runningPods answers with the pods that have running containers in the runtime, which may differ from those that
// should run.
func (s *Server) runningPods(w http.ResponseWriter, r *http.Request) {
	list, err := s.o.Runtime.ListContainers(r.Context(),
		&runtimeapi.ListContainersRequest{Filter: &runtimeapi.ContainerFilter{
			State: &runtimeapi.ContainerStateValue{State: runtimeapi.ContainerState_CONTAINER_RUNNING},
		}})
	if err != nil {
		http.Error(w, "list running containers: "+err.Error(), http.StatusInternalServerError)
		return
	}
	pods := map[string]*corev1.Pod{}
	for _, c := range list.Containers {
		uid := c.Labels[cri.LabelPodUID]
		pod := pods[uid]
		if uid == "" {
			continue // not a pod's container
		} else if pod == nil {
			pod = &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
				Name: c.Labels[cri.LabelPodName], Namespace: c.Labels[cri.LabelPodNamespace], UID: types.UID(uid),
			}}
			pods[uid] = pod
		}
		pod.Spec.Containers = append(pod.Spec.Containers, corev1.Container{Name: c.Labels[cri.LabelContainerName],
			Image: c.GetImage().GetImage()})
	}
	all := make([]*corev1.Pod, 0, len(pods))
	for _, pod := range pods {
		slices.SortFunc(pod.Spec.Containers, func(a, b corev1.Container) int { return strings.Compare(a.Name, b.Name) })
		all = append(all, pod)
	}
	writePods(w, all)
}

// configz answers with the configuration in use, without the secrets that staticPodURLHeader may contain.
func (s *Server) configz(w http.ResponseWriter, _ *http.Request) {
	c := *s.o.Config
	if len(c.StaticPodURLHeader) > 0 {
		masked := make(map[string][]string, len(c.StaticPodURLHeader))
		for k := range c.StaticPodURLHeader {
			masked[k] = []string{"<masked>"}
		}
		c.StaticPodURLHeader = masked
	}
	writeJSON(w, map[string]*kubeletconfigv1beta1.KubeletConfiguration{"kubeletconfig": &c})
}

func writeJSON(w http.ResponseWriter, v any) {
	data, err := json.Marshal(v)
	if err != nil {
		http.Error(w, "encode answer: "+err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(data) // an error means that the client is gone
}

// running counts pods and containers by state when metrics are collected.
type running struct{ pods Pods }

var (
	runningPodsDesc       = prometheus.NewDesc("kubelet_running_pods", "Pods that have a running container", nil, nil)
	runningContainersDesc = prometheus.NewDesc("kubelet_running_containers", "Containers by state",
		[]string{"container_state"}, nil)
	desiredPodsDesc = prometheus.NewDesc("kubelet_desired_pods",
		"Pods that this node must run; static is true for those that are not from the API server", []string{"static"}, nil)
)

func (c running) Describe(ch chan<- *prometheus.Desc) {
	ch <- runningPodsDesc
	ch <- runningContainersDesc
	ch <- desiredPodsDesc
}

func (c running) Collect(ch chan<- prometheus.Metric) {
	states := map[State]int{Running: 0, Exited: 0}
	pods := map[types.UID]bool{}
	eachContainer(c.pods, func(pod *corev1.Pod, _ string, one Container) {
		states[one.State]++
		if one.State == Running {
			pods[pod.UID] = true
		}
	})
	desired := map[string]int{"": 0, "true": 0}
	for _, pod := range c.pods.List() {
		static := ""
		if translate.IsStaticPod(pod) {
			static = "true"
		}
		desired[static]++
	}
	ch <- prometheus.MustNewConstMetric(runningPodsDesc, prometheus.GaugeValue, float64(len(pods)))
	for state, n := range states {
		ch <- prometheus.MustNewConstMetric(runningContainersDesc, prometheus.GaugeValue, float64(n), string(state))
	}
	for static, n := range desired {
		ch <- prometheus.MustNewConstMetric(desiredPodsDesc, prometheus.GaugeValue, float64(n), static)
	}
}
