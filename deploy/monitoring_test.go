package deploy

import (
	"encoding/json"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

// runbooks is where the annotation runbook_url of each alert leads, followed by the alert's name in lower case.
const runbooks = "https://github.com/plimsoll-dev/plimsoll/blob/main/docs/runbooks.md#"

// upstreams are the metrics in rules and dashboard that our components do not serve, and who does.
var upstreams = map[string]string{
	"up": "Prometheus",
	"apiserver_client_certificate_expiration_seconds": "kube-apiserver",
	"apiserver_request_total":                         "kube-apiserver",
	"aggregator_unavailable_apiservice":               "kube-apiserver",

	"kube_deployment_metadata_generation":                  "kube-state-metrics",
	"kube_deployment_spec_replicas":                        "kube-state-metrics",
	"kube_deployment_status_observed_generation":           "kube-state-metrics",
	"kube_deployment_status_replicas_available":            "kube-state-metrics",
	"kube_horizontalpodautoscaler_spec_max_replicas":       "kube-state-metrics",
	"kube_horizontalpodautoscaler_status_current_replicas": "kube-state-metrics",
	"kube_horizontalpodautoscaler_status_desired_replicas": "kube-state-metrics",
	"kube_node_spec_taint":                                 "kube-state-metrics",
	"kube_node_status_capacity":                            "kube-state-metrics",
	"kube_node_status_condition":                           "kube-state-metrics",
	"kube_persistentvolume_status_phase":                   "kube-state-metrics",
	"kube_persistentvolumeclaim_access_mode":               "kube-state-metrics",
	"kube_pod_container_resource_requests":                 "kube-state-metrics",
	"kube_pod_container_status_restarts_total":             "kube-state-metrics",
	"kube_pod_container_status_waiting_reason":             "kube-state-metrics",
	"kube_pod_info":         "kube-state-metrics",
	"kube_pod_status_phase": "kube-state-metrics",
	"kube_poddisruptionbudget_status_current_healthy": "kube-state-metrics",
	"kube_poddisruptionbudget_status_desired_healthy": "kube-state-metrics",
	"kube_statefulset_metadata_generation":            "kube-state-metrics",
	"kube_statefulset_replicas":                       "kube-state-metrics",
	"kube_statefulset_status_observed_generation":     "kube-state-metrics",
	"kube_statefulset_status_replicas_ready":          "kube-state-metrics",
}

// rule is an alert, or a recorded expression.
type rule struct {
	Alert, Record, Expr, For string
	Labels, Annotations      map[string]string
}

func rules(t *testing.T) (all []rule) {
	t.Helper()
	paths, err := filepath.Glob("monitoring/rules/*.yaml")
	if err != nil || len(paths) < 2 {
		t.Fatalf("rules: %q, %v", paths, err)
	}
	for _, path := range paths {
		var file struct {
			Groups []struct {
				Name  string
				Rules []rule
			}
		}
		text, err := os.ReadFile(path)
		if err == nil {
			err = yaml.UnmarshalStrict(text, &file)
		}
		if err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		for _, g := range file.Groups {
			all = append(all, g.Rules...)
		}
	}
	return all
}

// panel is a panel of the dashboard, or the title of a row of panels.
type panel struct {
	ID                       int
	Type, Title, Description string
	FieldConfig              struct{ Defaults struct{ Unit string } }
	Targets                  []struct{ RefID, Expr string }
}

func panels(t *testing.T) []panel {
	t.Helper()
	var dashboard struct{ Panels []panel }
	text, err := os.ReadFile("monitoring/dashboard.json")
	if err == nil {
		err = json.Unmarshal(text, &dashboard)
	}
	if err != nil || len(dashboard.Panels) < 10 {
		t.Fatalf("%d panels, %v", len(dashboard.Panels), err)
	}
	return dashboard.Panels
}

// TestEveryAlertHasARunbook: each alert says how bad it is, what happened and what to read, and each section of the
// runbooks is about an alert.
func TestEveryAlertHasARunbook(t *testing.T) {
	page, err := os.ReadFile("../docs/runbooks.md")
	if err != nil {
		t.Fatal(err)
	}
	sections := map[string]bool{}
	for line := range strings.Lines(string(page)) {
		if name, is := strings.CutPrefix(line, "### "); is {
			sections[strings.TrimSpace(name)] = true
		}
	}
	for _, r := range rules(t) {
		if r.Alert == "" {
			continue
		}
		if !sections[r.Alert] {
			t.Errorf("%s: docs/runbooks.md has no section %q, or two alerts have this name", r.Alert, "### "+r.Alert)
		}
		delete(sections, r.Alert)
		if want := runbooks + strings.ToLower(r.Alert); r.Annotations["runbook_url"] != want {
			t.Errorf("%s: runbook_url is %q, want %q", r.Alert, r.Annotations["runbook_url"], want)
		}
		if s := r.Labels["severity"]; s != "warning" && s != "critical" || r.Annotations["summary"] == "" {
			t.Errorf("%s: severity %q, summary %q", r.Alert, s, r.Annotations["summary"])
		}
	}
	for name := range sections {
		t.Errorf("docs/runbooks.md: section %s: there is no such alert", name)
	}
}

// TestPanelsExplainThemselves: each panel says what it shows, in which unit.
func TestPanelsExplainThemselves(t *testing.T) {
	seen := map[int]bool{}
	for _, p := range panels(t) {
		if p.Title == "" || p.ID == 0 || seen[p.ID] {
			t.Errorf("panel %d %q: no title, or the number of another panel", p.ID, p.Title)
		}
		seen[p.ID] = true
		if p.Type != "row" && (p.Description == "" || p.FieldConfig.Defaults.Unit == "" || len(p.Targets) == 0) {
			t.Errorf("panel %q: description %q, unit %q, %d queries", p.Title, p.Description,
				p.FieldConfig.Defaults.Unit, len(p.Targets))
		}
	}
}

// TestRulesAndPanelsNameMetrics: each metric in rules and dashboard is one that our source has, is recorded by a rule,
// or is known to be upstream's.
func TestRulesAndPanelsNameMetrics(t *testing.T) {
	used := map[string]string{} // by metric, the rule or panel
	recorded := map[string]bool{}
	for _, r := range rules(t) {
		recorded[r.Record] = true
		for _, name := range metricsIn(r.Expr) {
			used[name] = r.Alert + r.Record
		}
	}
	for _, p := range panels(t) {
		for _, target := range p.Targets {
			for _, name := range metricsIn(target.Expr) {
				used[name] = "panel " + p.Title
			}
		}
	}
	if len(used) < 50 {
		t.Fatalf("only %d metrics are found: %v", len(used), used)
	}
	words := words(t, "../internal", "../cmd")
	unused := maps.Clone(upstreams)
	for _, name := range slices.Sorted(maps.Keys(used)) {
		base := name
		for _, suffix := range []string{"_bucket", "_count", "_sum"} {
			if b, is := strings.CutSuffix(name, suffix); is && (words.have(b) || upstreams[b] != "") {
				base = b
			}
		}
		delete(unused, base)
		if ours := words.have(base); !ours && upstreams[base] == "" && !recorded[base] {
			t.Errorf("%s: nobody serves %s", used[name], name)
		}
	}
	for name := range unused {
		t.Errorf("upstreams: %s is in no rule and no panel", name)
	}
}

// TestEveryMetricOfOursIsExplained: docs/metrics.md has each metric that only our components have.
func TestEveryMetricOfOursIsExplained(t *testing.T) {
	page, err := os.ReadFile("../docs/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	ours := regexp.MustCompile(`"(plimsoll_(?:api|eviction|journal|lifecycle|node|numa|scheduler)_[a-z_]+)"`)
	names := map[string]bool{}
	walk(t, "../internal", func(text string) {
		for _, m := range ours.FindAllStringSubmatch(text, -1) {
			names[m[1]] = true
		}
	})
	delete(names, "plimsoll_journal_") // what the names of its metrics begin with
	for _, name := range []string{"records_total", "memory_bytes", "disk_bytes", "lost_total", "waiting"} {
		names["plimsoll_journal_"+name] = true
	}
	if len(names) < 15 {
		t.Fatalf("only %d metrics are found", len(names))
	}
	for name := range names {
		if !strings.Contains(string(page), "`"+name+"`") {
			t.Errorf("docs/metrics.md: %s is missing", name)
		}
	}
}

// quoted are the words in quotes in source.
type quoted map[string]bool

func words(t *testing.T, roots ...string) quoted {
	t.Helper()
	word := regexp.MustCompile(`"([a-z][a-z0-9_]*)"`)
	found := quoted{}
	for _, root := range roots {
		walk(t, root, func(text string) {
			for _, m := range word.FindAllStringSubmatch(text, -1) {
				found[m[1]] = true
			}
		})
	}
	return found
}

// walk visits the source below a directory, without tests.
func walk(t *testing.T, root string, visit func(text string)) {
	t.Helper()
	err := filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		text, err := os.ReadFile(path)
		visit(string(text))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// have reports whether source has a metric: its name, or its beginning (a subsystem) and its end.
func (q quoted) have(metric string) bool {
	if q[metric] {
		return true
	}
	for i, c := range metric {
		if c == '_' && (q[metric[:i]] || q[metric[:i+1]]) && q[metric[i+1:]] {
			return true
		}
	}
	return false
}

// tokens of PromQL: strings, selectors and ranges (in which no metric is named), lists of labels, numbers with units,
// and words.
var tokens = regexp.MustCompile(`"[^"]*"|\{[^}]*\}|\[[^]]*\]` +
	`|\b(?:by|without|on|ignoring|group_left|group_right)\s*\([^)]*\)` +
	`|[0-9.]+[a-z]*|[a-zA-Z_:][a-zA-Z0-9_:]*\s*\(?`)

// keywords are the words of PromQL that are no metrics and may stand without a parenthesis after them.
var keywords = []string{"and", "or", "unless", "bool", "offset", "sum", "min", "max", "avg", "count", "topk"}

// metricsIn returns the names of the metrics in a PromQL expression.
func metricsIn(expr string) (names []string) {
	for _, token := range tokens.FindAllString(expr, -1) {
		first, name := token[0], strings.TrimSpace(token)
		isWord := first == '_' || first == ':' || first >= 'a' && first <= 'z' || first >= 'A' && first <= 'Z'
		if isWord && !strings.ContainsAny(name, "()") && !slices.Contains(keywords, name) {
			names = append(names, name)
		}
	}
	return names
}

func TestMetricsIn(t *testing.T) {
	for expr, want := range map[string]string{
		`up == 0`:                  "up",
		`absent(up{job="x"} == 1)`: "up",
		`sum by (a, b) (rate(x_total{c=~"d|e"}[5m])) / on (a) group_left (f) y:z > 0.5`: "x_total y:z",
		`histogram_quantile(0.99, sum by (le) (rate(h_bucket[$__rate_interval])))`:      "h_bucket",
		`x offset 5m and on (a) y unless z or vector(0)`:                                "x y z",
		`label_replace(b{j!~"c"}, "r", "$1", "v", "(v[0-9]*).*") > bool 1e3`:            "b",
	} {
		if got := strings.Join(metricsIn(expr), " "); got != want {
			t.Errorf("%s: %q, want %q", expr, got, want)
		}
	}
}
