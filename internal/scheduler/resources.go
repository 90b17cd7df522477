package scheduler

import (
	"bytes"
	"compress/flate"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	resourcehelper "k8s.io/component-helpers/resource"

	"github.com/plimsoll-dev/plimsoll/internal/kube"
)

// PodResources serves /metrics/resources: the requests and limits of each pod, by upstream's names.
//
// It keeps no data. Each request lists all pods, page by page, so the cost arises only when the metrics are collected.
// One request is served at a time, and only by the leading process, as upstream does.
type PodResources struct {
	Client *kube.Client
	Leads  func() bool // nil: this process leads

	busy sync.Mutex
}

// podPage is how many pods a list request returns at most: client-go's page size.
const podPage = 500

// The heads of the two metric families, in upstream's words.
const (
	requestHead = "# HELP kube_pod_resource_request [STABLE] " +
		"Resources requested by workloads on the cluster, broken down by pod. " + whatHeadsShow +
		"# TYPE kube_pod_resource_request gauge\n"
	limitHead = "# HELP kube_pod_resource_limit [STABLE] " +
		"Resources limit for workloads on the cluster, broken down by pod. " + whatHeadsShow +
		"# TYPE kube_pod_resource_limit gauge\n"
	whatHeadsShow = "This shows the resource usage the scheduler and kubelet expect per pod for resources " +
		"along with the unit for the resource if any.\n"
)

// ServeHTTP implements http.Handler.
func (p *PodResources) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
	if p.Leads != nil && !p.Leads() {
		return
	}
	if !p.busy.TryLock() {
		http.Error(w, "another request for these metrics is being served: try again later", http.StatusServiceUnavailable)
		return
	}
	defer p.busy.Unlock()
	if err := p.write(r.Context(), w); err != nil && r.Context().Err() == nil {
		slog.Warn("list pods for /metrics/resources", "err", err)
		panic(http.ErrAbortHandler) // a part was sent already: the client must notice that the rest is missing
	}
}

// write streams the limits as the pages arrive, and then the requests: the lines of the two families must not be
// mixed. The requests of 150,000 pods are 60 MiB of text, so they are kept compressed until then.
func (p *PodResources) write(ctx context.Context, w io.Writer) error {
	var compressed bytes.Buffer
	requests, err := flate.NewWriter(&compressed, flate.BestSpeed)
	if err != nil {
		return err
	}
	var limited, requested int
	for o := (metav1.ListOptions{Limit: podPage}); ; {
		var page corev1.PodList
		if err := p.Client.List(ctx, kube.Pods, "", o, &page); err != nil {
			return err
		}
		for i := range page.Items {
			pod := &page.Items[i]
			ended := pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
			if ended && pod.Spec.NodeName != "" {
				continue
			}
			none := resourcehelper.PodResourcesOptions{}
			amounts := resourcehelper.PodLimits(pod, none)
			if limited, err = family(w, limitHead, limited, pod, "limit", amounts); err != nil {
				return err
			}
			amounts = resourcehelper.PodRequests(pod, none)
			if requested, err = family(requests, requestHead, requested, pod, "request", amounts); err != nil {
				return err
			}
		}
		if o.Continue = page.Continue; o.Continue == "" {
			break
		}
	}
	if err := requests.Close(); err != nil {
		return err
	}
	_, err = io.Copy(w, flate.NewReader(&compressed))
	return err
}

// family writes the lines of one pod in a family. lines is how many lines the family has already; if it has none, head
// is written first. It returns how many lines the family has then.
func family(
	w io.Writer, head string, lines int, pod *corev1.Pod, what string, amounts corev1.ResourceList,
) (int, error) {
	priority := ""
	if pod.Spec.Priority != nil {
		priority = strconv.Itoa(int(*pod.Spec.Priority))
	}
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(amounts)) {
		amount := amounts[name]
		if amount.IsZero() {
			continue
		}
		if lines == 0 {
			_, err := io.WriteString(w, head)
			errs = append(errs, err)
		}
		lines++
		_, err := fmt.Fprintf(w, `kube_pod_resource_%s{namespace="%s",node="%s",pod="%s",priority="%s",`+
			`resource="%s",scheduler="%s",unit="%s"} %s`+"\n",
			what, pod.Namespace, pod.Spec.NodeName, pod.Name, priority,
			name, labelValue.Replace(pod.Spec.SchedulerName), unitOf(name), valueText(amount))
		errs = append(errs, err)
	}
	return lines, errors.Join(errs...)
}

// labelValue escapes values that the author of a pod can choose freely.
var labelValue = strings.NewReplacer(`\`, `\\`, "\n", `\n`, `"`, `\"`)

// valueText formats a quantity as Prometheus formats numbers.
func valueText(q resource.Quantity) string {
	return strconv.FormatFloat(q.AsApproximateFloat64(), 'g', -1, 64)
}

// unitOf returns upstream's unit of a resource; most have none.
func unitOf(name corev1.ResourceName) string {
	switch {
	case name == corev1.ResourceCPU:
		return "cores"
	case name == corev1.ResourceMemory, name == corev1.ResourceStorage, name == corev1.ResourceEphemeralStorage,
		strings.HasPrefix(string(name), corev1.ResourceHugePagesPrefix):
		return "bytes"
	case strings.HasPrefix(string(name), corev1.ResourceAttachableVolumesPrefix):
		return "integer"
	}
	return ""
}
