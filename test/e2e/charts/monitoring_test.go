//go:build e2e

package charts

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/plimsoll-dev/plimsoll/test/e2e/rig"
)

// jobs are what Prometheus scrapes: our scheduler, lifecycle controller and agent, upstream's components and add-ons.
var jobs = []string{"apiserver", "coredns", "kube-controller-manager", "kube-proxy", "kube-scheduler",
	"kube-state-metrics", "kubelet /metrics", "kubelet /metrics/cadvisor", "kubelet /metrics/probes",
	"kubelet /metrics/resource", "kubelet /metrics/slis", "metrics-server", "plimsoll-lifecycle"}

// recorded are the rules of records.yaml that join what the agent measures with what the API has. They have series only
// if names and labels on both sides are those that dashboards expect.
var recorded = []string{
	"node_pod:cpu_seconds:rate",
	"node_pod:memory_bytes:sum",
	"node_pod:memory_ratio:resource_cadvisor",
	"node_pod:network_bytes:rate",
}

// needed are metrics of the agent on which rules depend that are true only where something is wrong.
var needed = []string{
	`kubelet_volume_stats_available_bytes{namespace="shop"}`,
	`kubelet_volume_stats_inodes_free{namespace="shop"}`,
	"kubelet_pleg_relist_duration_seconds_bucket",
	"kubelet_pod_worker_duration_seconds_bucket",
	`kubernetes_build_info{job="kubelet"}`,
	`rest_client_requests_total{job="kubelet"}`,
	`rest_client_requests_total{job="kube-scheduler"}`,
	`rest_client_requests_total{job="plimsoll-lifecycle"}`,
}

// settled bounds how long alerts may be pending after the set was installed and used: rules look back ten minutes at
// most.
const settled = 12 * time.Minute

// monitoring: every endpoint is scraped, every rule is evaluated, each running pod has the series that dashboards show,
// and an alert is pending for a pod that cannot start. Without that pod no alert is pending, and none has been firing
// since Prometheus began. A pending alert fires when its time is over, so that the test need not wait for it.
func monitoring(t *testing.T, c *rig.Cluster) {
	p := prometheus{c}
	rig.Eventually(t, soon, "every endpoint is scraped", p.scraped)
	rig.Eventually(t, soon, "every rule is evaluated", p.evaluated)
	for _, name := range recorded {
		rig.Eventually(t, soon, name+" has a series for each pod", func(ctx context.Context) error {
			return p.coversPods(ctx, name)
		})
	}
	for _, name := range needed {
		rig.Eventually(t, soon, "there is "+name, func(ctx context.Context) error {
			series, err := p.query(ctx, name)
			if err == nil && len(series) == 0 {
				err = errors.New("it has no series")
			}
			return err
		})
	}
	const stuck = "stuck"
	c.Kubectl(t, "--namespace", namespace, "run", stuck, "--image=plimsoll.dev/test/no:1", "--image-pull-policy=Never")
	rig.Eventually(t, soon, "an alert is pending for a pod that cannot start", func(ctx context.Context) error {
		alerts, err := p.alerts(ctx)
		if err == nil && !slices.ContainsFunc(alerts, func(a alert) bool { return a.Labels["pod"] == stuck }) {
			err = fmt.Errorf("alerts are %v", alerts)
		}
		return err
	})
	c.Kubectl(t, "--namespace", namespace, "delete", "pod", stuck, "--grace-period=0", "--force")
	took := rig.Eventually(t, settled, "no alert is pending", func(ctx context.Context) error {
		alerts, err := p.alerts(ctx)
		if err == nil && len(alerts) > 0 {
			err = fmt.Errorf("alerts are %v", alerts)
		}
		return err
	})
	t.Logf("no alert was left after %v", took.Round(time.Second))
	fired, err := p.query(t.Context(), `count_over_time(ALERTS{alertstate="firing"}[1d])`)
	if err != nil || len(fired) > 0 {
		t.Errorf("alerts were firing: %v, %v", fired, err)
	}
	dashboard(t, c, p)
}

// dashboard: after an eviction, and while a pod fits nowhere, each query of each panel has series with values, and the
// alert about evictions fires.
func dashboard(t *testing.T, c *rig.Cluster, p prometheus) {
	var objects struct {
		Panels []struct {
			Title   string
			Targets []struct{ Expr string }
		}
	}
	text, err := os.ReadFile(filepath.Join(deployed, "dashboard.json"))
	if err == nil {
		err = json.Unmarshal(text, &objects)
	}
	if err != nil {
		t.Fatal(err)
	}
	c.Kubectl(t, "--namespace", namespace, "apply", "-f", "testdata/trouble.yaml")
	queries := 0
	for _, panel := range objects.Panels {
		for _, target := range panel.Targets {
			queries++
			query := strings.NewReplacer("$node", ".*", "$__rate_interval", "5m").Replace(target.Expr)
			if reason, is := without[panel.Title]; is {
				if _, err := p.query(t.Context(), query); err != nil {
					t.Errorf("panel %q: %s: %v (%s)", panel.Title, query, err, reason)
				}
				continue
			}
			rig.Eventually(t, soon, fmt.Sprintf("panel %q has data", panel.Title), func(ctx context.Context) error {
				found, err := p.query(ctx, query)
				if err == nil && !slices.ContainsFunc(found, func(s series) bool { return s.Value[1] != "NaN" }) {
					err = fmt.Errorf("%s: %d series, none with a value", query, len(found))
				}
				return err
			})
		}
	}
	t.Logf("%d queries of the dashboard were asked", queries)
	rig.Eventually(t, soon, "the alert about evictions fires", func(ctx context.Context) error {
		alerts, err := p.alerts(ctx)
		if err == nil && !slices.ContainsFunc(alerts, func(a alert) bool {
			return a.Labels["alertname"] == "NodeEvicts" && a.State == "firing"
		}) {
			err = fmt.Errorf("alerts are %v", alerts)
		}
		return err
	})
	c.Kubectl(t, "--namespace", namespace, "delete", "-f", "testdata/trouble.yaml", "--grace-period=0", "--force")
}

// without are the panels that show nothing here, with the reasons.
var without = map[string]string{
	"How soon silent nodes are marked": "no node becomes silent; see TestSilentNode of internal/lifecycle",
	"How soon the agent reacts": "a pod above a limit has a grace period; see TestTheGrowerGoesBeforeTheKernelKills of " +
		"agent/eviction",
}

// prometheus asks the Prometheus of the set, as kubectl proxy does.
type prometheus struct{ *rig.Cluster }

// scraped returns an error if an endpoint is missing or cannot be scraped.
func (p prometheus) scraped(ctx context.Context) error {
	var answer struct {
		ActiveTargets []struct {
			Labels            map[string]string
			Health, LastError string
		}
	}
	if err := p.ask(ctx, "targets", map[string]string{"state": "active"}, &answer); err != nil {
		return err
	}
	var found []string
	for _, target := range answer.ActiveTargets {
		if target.Health != "up" {
			return fmt.Errorf("%v: %s: %s", target.Labels, target.Health, target.LastError)
		}
		found = append(found, strings.TrimSpace(target.Labels["job"]+" "+target.Labels["metrics_path"]))
	}
	slices.Sort(found)
	if found = slices.Compact(found); !slices.Equal(found, jobs) {
		return fmt.Errorf("scraped are %q, want %q", found, jobs)
	}
	return nil
}

// evaluated returns an error if a rule was not evaluated, or could not be.
func (p prometheus) evaluated(ctx context.Context) error {
	var answer struct {
		Groups []struct {
			Name  string
			Rules []struct{ Name, Type, Health, LastError string }
		}
	}
	if err := p.ask(ctx, "rules", nil, &answer); err != nil {
		return err
	}
	alerts := 0
	for _, group := range answer.Groups {
		for _, rule := range group.Rules {
			if rule.Health != "ok" {
				return fmt.Errorf("rule %s of %s: %s: %s", rule.Name, group.Name, rule.Health, rule.LastError)
			}
			if rule.Type == "alerting" {
				alerts++
			}
		}
	}
	want := 0
	paths, err := filepath.Glob(filepath.Join(deployed, "rules", "*.yaml"))
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		want += strings.Count(string(text), "alert: ")
	}
	if err == nil && (alerts != want || want == 0) {
		err = fmt.Errorf("%d alerts have rules, want %d", alerts, want)
	}
	return err
}

// coversPods returns an error if a running pod of the set has no series of a rule, or one with a value that is none.
func (p prometheus) coversPods(ctx context.Context, name string) error {
	pods, err := p.API.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{FieldSelector: "status.phase=Running"})
	if err != nil {
		return err
	}
	found, err := p.query(ctx, name)
	if err != nil {
		return err
	}
	for _, pod := range pods.Items {
		if !slices.ContainsFunc(found, func(s series) bool {
			return s.Metric["namespace"] == pod.Namespace && s.Metric["pod"] == pod.Name
		}) {
			return fmt.Errorf("pod %s has none; there are %v", pod.Name, found)
		}
	}
	return nil
}

// An alert is pending or firing.
type alert struct {
	Labels map[string]string
	State  string
}

func (p prometheus) alerts(ctx context.Context) ([]alert, error) {
	var answer struct{ Alerts []alert }
	err := p.ask(ctx, "alerts", nil, &answer)
	return answer.Alerts, err
}

// A series has a value at an instant.
type series struct {
	Metric map[string]string
	Value  [2]any // time and value
}

// query returns the series of an instant query.
func (p prometheus) query(ctx context.Context, expression string) ([]series, error) {
	var answer struct{ Result []series }
	err := p.ask(ctx, "query", map[string]string{"query": expression}, &answer)
	return answer.Result, err
}

// ask asks the API of Prometheus (prometheus.io/docs/prometheus/latest/querying/api).
func (p prometheus) ask(ctx context.Context, question string, params map[string]string, answer any) error {
	text, err := p.API.CoreV1().Services(namespace).ProxyGet("http", "prometheus", "http", "/api/v1/"+question, params).
		DoRaw(ctx)
	if err != nil {
		return err
	}
	whole := struct {
		Status, Error string
		Data          any
	}{Data: answer}
	if err := json.Unmarshal(text, &whole); err != nil {
		return fmt.Errorf("%s: %w", question, err)
	}
	if whole.Status != "success" {
		return fmt.Errorf("%s: %s: %s", question, whole.Status, whole.Error)
	}
	return nil
}
