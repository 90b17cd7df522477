package oracle

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/kubernetes/pkg/scheduler/metrics/resources"

	"github.com/plimsoll-dev/plimsoll/internal/kube"
	"github.com/plimsoll-dev/plimsoll/internal/scheduler"
)

// metric is a metric of upstream: its name and labels in its source.
type metric struct{ name, labels string }

// upstreamMetrics reads kube-scheduler's metrics from the source of the published module, because its registry has only
// metrics that were used.
func upstreamMetrics(t *testing.T) (all []metric) {
	t.Helper()
	dir, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "k8s.io/kubernetes").Output()
	if err != nil {
		t.Fatal(err)
	}
	one := regexp.MustCompile(`(?s)Name:\s+"([a-z_]+)".*?\n\s*\},?\s*(?:\[\]string\{([^}]*)\})?`)
	for prefix, path := range map[string]string{"scheduler_": "pkg/scheduler/metrics/metrics.go",
		"scheduler_volume_": "pkg/scheduler/framework/plugins/volumebinding/metrics/metrics.go"} {
		text, err := os.ReadFile(filepath.Join(strings.TrimSpace(string(dir)), path))
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range one.FindAllStringSubmatch(string(text), -1) {
			all = append(all, metric{prefix + m[1], strings.NewReplacer(`"`, "", " ", "").Replace(m[2])})
		}
	}
	return all
}

// TestSchedulerMetrics checks that each metric of upstream is ours, with the same name and labels, or that
// docs/scheduler.md says why not, and that no other metric of ours has a name that belongs to upstream.
func TestSchedulerMetrics(t *testing.T) {
	doc, err := os.ReadFile("../docs/scheduler.md")
	if err != nil {
		t.Fatal(err)
	}
	descs := make(chan *prometheus.Desc, 1000)
	scheduler.NewMetrics().Registry.Describe(descs)
	close(descs)
	ours := map[string]string{}
	parse := regexp.MustCompile(`fqName: "([a-z_]+)".*variableLabels: \{([^}]*)\}`)
	for d := range descs {
		if m := parse.FindStringSubmatch(d.String()); m != nil {
			ours[m[1]] = m[2]
		}
	}
	var missing strings.Builder // the first column of the table of missing metrics
	for line := range strings.Lines(string(doc)) {
		if names, _, row := strings.Cut(strings.TrimPrefix(line, "| "), " |"); row && strings.HasPrefix(line, "| `") {
			missing.WriteString(names)
		}
	}
	upstream := upstreamMetrics(t)
	if len(upstream) < 35 {
		t.Fatalf("only %d of upstream's are found", len(upstream))
	}
	for _, m := range upstream {
		labels, has := ours[m.name]
		excused := strings.Contains(missing.String(), "`"+m.name+"`")
		switch {
		case has == excused:
			t.Errorf("%s: ours: %v; in the list of those that are missing: %v", m.name, has, excused)
		case has && labels != m.labels:
			t.Errorf("%s: labels %s, want %s", m.name, labels, m.labels)
		}
	}
	for name := range ours {
		if strings.HasPrefix(name, "scheduler_") && !slices.ContainsFunc(upstream,
			func(m metric) bool { return m.name == name }) {
			t.Errorf("%s: upstream has none", name)
		}
	}
}

// TestPodResourceMetrics compares /metrics/resources for random pods line by line with upstream's.
func TestPodResourceMetrics(t *testing.T) {
	var list corev1.PodList
	indexer := cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{})
	list.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "PodList"}
	r := random{rand.New(rand.NewPCG(1, 2))}
	for i := range 300 {
		pod := r.pod(fmt.Sprint("p", i))
		if r.chance(2) {
			pod.Spec.NodeName = "n"
		}
		if r.chance(4) {
			pod.Status.Phase = corev1.PodSucceeded
		}
		pod.Spec.Containers[0].Resources.Limits = r.requests()
		list.Items = append(list.Items, *pod)
		if err := indexer.Add(pod); err != nil {
			t.Fatal(err)
		}
	}
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(list)
	}))
	defer api.Close()
	client, err := kube.NewClientForConfig(&rest.Config{Host: api.URL})
	if err != nil {
		t.Fatal(err)
	}
	lines := func(h http.Handler) []string {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics/resources", nil))
		all := strings.Split(w.Body.String(), "\n")
		slices.Sort(all)
		return all
	}
	ours, upstream := lines(&scheduler.PodResources{Client: client}),
		lines(resources.Handler(corelisters.NewPodLister(indexer)))
	if len(upstream) < 300 {
		t.Fatalf("only %d lines of upstream's", len(upstream))
	}
	if !slices.Equal(ours, upstream) {
		for i := range min(len(ours), len(upstream)) {
			if ours[i] != upstream[i] {
				t.Fatalf("%d lines and %d; the first that differ:\n%s\n%s", len(ours), len(upstream), ours[i], upstream[i])
			}
		}
		t.Fatal(fmt.Sprint(len(ours), " lines and ", len(upstream)))
	}
}
