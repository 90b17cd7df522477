package manifests

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/plimsoll-dev/plimsoll/test/cost"
)

func TestLoad(t *testing.T) {
	dir := t.TempDir()
	file := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		return path
	}
	pod := func(name string) string { return "apiVersion: v1\nkind: Pod\nmetadata: {name: " + name + "}\n" }
	objects, err := Load([]string{
		file("documents.yaml", "# two\n---\n"+pod("a")+"---\n# nothing\n---\n"+pod("b")),
		file("list.yaml",
			"apiVersion: v1\nkind: List\nitems:\n- {apiVersion: v1, kind: Pod, metadata: {name: c}}\n"+
				"- {apiVersion: v1, kind: Namespace, metadata: {name: ns}}\n"),
		file("pods.json", `{"apiVersion": "v1", "kind": "PodList", "items": [{"metadata": {"name": "d"}}]}`),
	})
	if err != nil {
		t.Fatal(err)
	}
	names := ""
	for _, o := range objects {
		if pod, ok := o.(*corev1.Pod); ok {
			names += pod.Name
		}
	}
	if names != "abcd" || len(objects) != 5 {
		t.Errorf("got pods %s of %d objects, want abcd of 5", names, len(objects))
	}
	_, err = Load([]string{
		file("bad.yaml", pod("a")+"spec: {container: []}\n---\nkind: Nonsense\napiVersion: v9\n---\n"+pod("b")),
		filepath.Join(dir, "missing.yaml"),
		file("item.yaml", "apiVersion: v1\nkind: List\nitems:\n- {apiVersion: v1, kind: Pod, metadata: {name: c, nam: d}}\n"),
	})
	for _, want := range []string{"bad.yaml: document 1", `unknown field "spec.container"`, "document 2", "Nonsense",
		"missing.yaml", "item.yaml: document 1: item 0", `"metadata.nam"`} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("want %q in: %v", want, err)
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, seed := range []string{"", "---\n", "apiVersion: v1\nkind: Pod\n", "apiVersion: v1\nkind: List\nitems: [{}]\n",
		`{"apiVersion":"v1","kind":"PodList","items":[{}]}`, "a: b: c", "kind: [", "\xff"} {
		cost.Attack(f, seed)
	}
	f.Add(cost.Aliases("apiVersion: v1\nkind: Pod\n"))
	f.Fuzz(func(t *testing.T, text string) {
		defer cost.Spend(t, len(text))()
		objects, err := Parse([]byte(text))
		for _, o := range objects {
			if o == nil {
				t.Errorf("%q: an object that is none, %v", text, err)
			}
		}
	})
}
