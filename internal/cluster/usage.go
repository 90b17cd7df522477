package cluster

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/client-go/rest"

	"github.com/plimsoll-dev/plimsoll/internal/cluster/pki"
)

// summary is the part of the kubelet's Summary API (k8s.io/kubelet/pkg/apis/stats/v1alpha1) that Describe shows. Values
// that an agent does not know are absent.
type summary struct {
	at   time.Time // when it arrived: the times in a Summary have whole seconds only
	Node struct {
		CPU struct {
			UsageNanoCores       *int64
			UsageCoreNanoSeconds *int64
		}
		Memory struct{ WorkingSetBytes *int64 }
		FS     struct{ UsedBytes *int64 }
	}
}

// usageWindow is the time over which CPU usage is measured if the agent has no rate yet: it needs two measurements
// (chosen: 25 of the kernel's ticks, and short enough to wait for).
const usageWindow = 250 * time.Millisecond

// readUsage asks the agent directly, with kube-apiserver's certificate; nil if it does not answer. It does not go
// through the API server, which does not proxy to loopback addresses; the agent listens there by default.
func (l layout) readUsage(ctx context.Context) corev1.ResourceList {
	client, err := rest.HTTPClientFor(&rest.Config{TLSClientConfig: rest.TLSClientConfig{
		CAFile:   pki.CertPath(l.pki(), caCluster),
		CertFile: pki.CertPath(l.pki(), certKubelet),
		KeyFile:  pki.KeyPath(l.pki(), certKubelet),
	}})
	if err != nil {
		return nil
	}
	defer client.CloseIdleConnections()
	url := "https://" + net.JoinHostPort(l.o.localAddress(), strconv.Itoa(l.o.AgentPort)) + "/stats/summary"
	first, err := readSummary(ctx, client, url)
	if err != nil {
		return nil
	}
	if first.Node.CPU.UsageNanoCores != nil {
		return usage(first, first)
	}
	select {
	case <-ctx.Done():
		return usage(first, first)
	case <-time.After(usageWindow):
	}
	second, err := readSummary(ctx, client, url)
	if err != nil {
		return usage(first, first)
	}
	return usage(first, second)
}

// summaryBytesMax bounds what is read of a summary, in bytes (chosen: for 110 pods of three containers it has some 300
// KiB).
const summaryBytesMax = 16 << 20

func readSummary(ctx context.Context, client *http.Client, url string) (s summary, err error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return s, err
	}
	answer, err := client.Do(request)
	if err != nil {
		return s, err
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return s, fmt.Errorf("get %s: %s", url, answer.Status)
	}
	s.at = time.Now()
	return s, json.NewDecoder(io.LimitReader(answer.Body, summaryBytesMax)).Decode(&s)
}

// usage returns the usage in b, with the CPU rate since a if b has none.
func usage(a, b summary) corev1.ResourceList {
	const nanoPerMilli = 1e6
	used := corev1.ResourceList{}
	was, is := a.Node.CPU, b.Node.CPU
	switch elapsed := b.at.Sub(a.at); {
	case is.UsageNanoCores != nil:
		used[corev1.ResourceCPU] = *resource.NewMilliQuantity(*is.UsageNanoCores/nanoPerMilli, resource.DecimalSI)
	case elapsed > 0 && was.UsageCoreNanoSeconds != nil && is.UsageCoreNanoSeconds != nil:
		cores := float64(*is.UsageCoreNanoSeconds-*was.UsageCoreNanoSeconds) / float64(elapsed)
		used[corev1.ResourceCPU] = *resource.NewMilliQuantity(int64(cores*1000), resource.DecimalSI)
	}
	if m := b.Node.Memory.WorkingSetBytes; m != nil {
		used[corev1.ResourceMemory] = *resource.NewQuantity(*m, resource.BinarySI)
	}
	if f := b.Node.FS.UsedBytes; f != nil {
		used[corev1.ResourceEphemeralStorage] = *resource.NewQuantity(*f, resource.BinarySI)
	}
	return used
}
