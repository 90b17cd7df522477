package cluster

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/plimsoll-dev/plimsoll/internal/image"
)

// TestDNSObjects: the objects of the DNS are made from the options and the agent's configuration. Name servers that no
// pod can reach are left out.
func TestDNSObjects(t *testing.T) {
	for what, c := range map[string]struct {
		config, resolv string
		want, not      []string
	}{
		"defaults": {"", "nameserver 192.0.2.53\n", []string{"kubernetes cluster.local in-addr.arpa",
			"clusterIP: 10.96.0.10\n", "forward . /etc/resolv.conf"}, nil},
		"another domain": {"clusterDomain: corp.example\n", "nameserver 192.0.2.53\n",
			[]string{"kubernetes corp.example in-addr.arpa"}, []string{"cluster.local"}},
		"a server here": {"", "search x\nnameserver 127.0.0.53\n", []string{"kubernetes cluster.local"},
			[]string{"forward . "}},
		"one of two":      {"", "nameserver ::1\nnameserver 192.0.2.53 \n", []string{"forward . "}, nil},
		"no server":       {"", "# nameserver 192.0.2.53\nnameserver\nnameserver x\n", nil, []string{"forward . "}},
		"no file":         {"resolvConf: /no/such/file\n", "", nil, []string{"forward . "}},
		"no file is said": {"resolvConf: \"\"\n", "", nil, []string{"forward . "}},
	} {
		o := testOptions(t)
		l := layout{o}
		if err := l.makeDirectories(); err != nil {
			t.Fatal(err)
		}
		file, resolv := filepath.Join(o.StateDir, "user.yaml"), filepath.Join(o.StateDir, "resolv.conf")
		if !strings.Contains(c.config, "resolvConf") {
			c.config += "resolvConf: " + resolv + "\n"
		}
		for path, text := range map[string]string{resolv: c.resolv,
			file: "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n" + c.config} {
			if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		l.o.AgentConfig = file
		if err := l.writeAgentConfig(); err != nil {
			t.Fatal(err)
		}
		objects, err := podAddons[0].objects(l)
		if err != nil {
			t.Fatal(err)
		}
		text := strings.Join(objects, "\n")
		for _, want := range append(c.want, "image: "+image.CoreDNS) {
			if !strings.Contains(text, want) {
				t.Errorf("%s: the objects lack %q", what, want)
			}
		}
		for _, not := range c.not {
			if strings.Contains(text, not) {
				t.Errorf("%s: the objects have %q", what, not)
			}
		}
		if left := regexp.MustCompile(`CLUSTER_[A-Z]+|FORWARD|IMAGE`).FindString(text); left != "" {
			t.Errorf("%s: %s is not filled in", what, left)
		}
		for _, object := range objects {
			var any map[string]any
			if err := yaml.UnmarshalStrict([]byte(object), &any); err != nil {
				t.Errorf("%s: %v in\n%s", what, err, object)
			}
		}
	}
}

func TestPathOf(t *testing.T) {
	for want, head := range map[string]metav1.PartialObjectMetadata{
		"/api/v1/namespaces/kube-system/configmaps/coredns": {
			TypeMeta: metav1.TypeMeta{APIVersion: "v1",
				Kind: "ConfigMap"}, ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "coredns"}},
		"/apis/apps/v1/namespaces/a/deployments/b": {
			TypeMeta: metav1.TypeMeta{APIVersion: "apps/v1", Kind: "Deployment"}, ObjectMeta: metav1.ObjectMeta{Namespace: "a",
				Name: "b"}},
		"/apis/rbac.authorization.k8s.io/v1/clusterroles/c": {
			TypeMeta: metav1.TypeMeta{APIVersion: "rbac.authorization.k8s.io/v1",
				Kind: "ClusterRole"}, ObjectMeta: metav1.ObjectMeta{Name: "c"}},
	} {
		if got := pathOf(head); got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
}

// TestAddonVersions: images of add-ons are named by the versions that their module requires.
func TestAddonVersions(t *testing.T) {
	text, err := os.ReadFile("../../addons/go.mod")
	if err != nil {
		t.Fatal(err)
	}
	for module, name := range map[string]string{"github.com/coredns/coredns": image.CoreDNS,
		"sigs.k8s.io/metrics-server": image.MetricsServer} {
		version := regexp.MustCompile(regexp.QuoteMeta(module) + ` v(\S+)`).FindSubmatch(text)
		if version == nil || !strings.HasSuffix(name, ":"+string(version[1])) {
			t.Errorf("image %s, and addons/go.mod has %s", name, version)
		}
	}
}

// TestMetricsObjects: the Secret and the APIService of metrics-server have the instance's certificates.
func TestMetricsObjects(t *testing.T) {
	o := testOptions(t)
	l := layout{o}
	if err := l.makeDirectories(); err != nil {
		t.Fatal(err)
	}
	if _, err := podAddons[1].objects(l); err == nil || !strings.Contains(err.Error(), "install metrics-server") {
		t.Errorf("without certificates: %v", err)
	}
	if _, err := l.ensureIdentities(time.Now()); err != nil {
		t.Fatal(err)
	}
	objects, err := podAddons[1].objects(l)
	if err != nil {
		t.Fatal(err)
	}
	text := strings.Join(objects, "\n")
	for _, word := range []string{"CERTIFICATE", "KEY", "AUTHORITY", "IMAGE"} {
		if regexp.MustCompile(`\b` + word + `\b`).MatchString(text) {
			t.Errorf("%s is not filled in", word)
		}
	}
	for _, object := range objects {
		var any map[string]any
		if err := yaml.UnmarshalStrict([]byte(object), &any); err != nil {
			t.Errorf("%v in\n%s", err, object)
		}
	}
}
