package metrics

import (
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
)

// TestEveryMetricOfTheKubelet checks that each metric in the list of the kubelet's (made by the oracle module) is
// served or is in a table of docs/metrics.md that says why not, and not both; and that those of the Set have its type
// and labels.
func TestEveryMetricOfTheKubelet(t *testing.T) {
	list, err := os.ReadFile("testdata/kubelet-1.36.3.txt")
	if err != nil {
		t.Fatal(err)
	}
	served := literals(t)
	missing := missingInDocs(t)
	set := ofTheSet(t)
	for line := range strings.Lines(string(list)) {
		name, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
		has := served[name] || served[strings.TrimPrefix(name, "kubelet_")]
		excused := false
		for _, pattern := range missing {
			if ok, err := path.Match(pattern, name); err != nil {
				t.Fatal(err)
			} else if ok {
				excused = true
			}
		}
		if has == excused {
			t.Errorf("%s: in our source: %v; in the tables of docs/metrics.md: %v; want one of both", name, has, excused)
		}
		if labels, untyped := strings.CutPrefix(rest, "desc"); untyped {
			rest = "gauge" + labels // declared apart from its type: upstream's of this kind are gauges
		}
		if ours, known := set[name]; known && ours != rest {
			t.Errorf("%s: is a %q, want %q", name, ours, rest)
		}
	}
}

// literals returns the words in quotes in the source of the agent and of the API client.
func literals(t *testing.T) map[string]bool {
	t.Helper()
	word := regexp.MustCompile(`"([a-z][a-z0-9_]*)"`)
	found := map[string]bool{}
	for _, root := range []string{"..", "../../kube"} {
		err := filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
			if err != nil || e.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			text, err := os.ReadFile(path)
			for _, m := range word.FindAllSubmatch(text, -1) {
				found[string(m[1])] = true
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return found
}

// missingInDocs returns the names, and patterns of names, in the tables of the section /metrics.
func missingInDocs(t *testing.T) (patterns []string) {
	t.Helper()
	text, err := os.ReadFile("../../../docs/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, found := strings.Cut(string(text), "\n## /metrics\n")
	if !found {
		t.Fatal("docs/metrics.md has no section /metrics")
	}
	name := regexp.MustCompile("`([^`]+)`")
	for line := range strings.Lines(section) {
		if names, _, row := strings.Cut(strings.TrimPrefix(line, "| "), " |"); row && strings.HasPrefix(line, "| `") {
			for _, m := range name.FindAllStringSubmatch(names, -1) {
				patterns = append(patterns, m[1])
			}
		}
	}
	return patterns
}

// ofTheSet returns type and labels of the Set's measurements by name, as the list has them.
func ofTheSet(t *testing.T) map[string]string {
	t.Helper()
	out := map[string]string{}
	parse := regexp.MustCompile(`fqName: "([a-z0-9_]+)".*variableLabels: \{([^}]*)\}`)
	var add func(v reflect.Value)
	add = func(v reflect.Value) {
		for i := range v.NumField() {
			kind := ""
			switch f := v.Field(i).Interface().(type) {
			case PodResources:
				add(reflect.ValueOf(f))
			case prometheus.Gauge, *prometheus.GaugeVec: // a Gauge has the methods of a Counter
				kind = "gauge"
			case prometheus.Counter, *prometheus.CounterVec:
				kind = "counter"
			case prometheus.Histogram, *prometheus.HistogramVec:
				kind = "histogram"
			}
			if kind == "" {
				continue
			}
			descs := make(chan *prometheus.Desc, 1)
			v.Field(i).Interface().(prometheus.Collector).Describe(descs)
			m := parse.FindStringSubmatch((<-descs).String())
			out[m[1]] = strings.TrimSpace(kind + " " + m[2])
		}
	}
	add(reflect.ValueOf(*New("n")))
	if len(out) < 50 {
		t.Fatalf("only %d measurements found", len(out))
	}
	return out
}
