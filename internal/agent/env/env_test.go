package env

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// shelf is a set of objects in namespace shop.
type shelf struct {
	configMaps map[string]map[string]string
	secrets    map[string]map[string]string
}

func (s shelf) ConfigMap(_ context.Context, _, name string) (*corev1.ConfigMap, error) {
	data, ok := s.configMaps[name]
	if !ok {
		return nil, apierrors.NewNotFound(corev1.Resource("configmap"), name)
	}
	return &corev1.ConfigMap{Data: data}, nil
}

func (s shelf) Secret(_ context.Context, _, name string) (*corev1.Secret, error) {
	data, ok := s.secrets[name]
	if !ok {
		return nil, apierrors.NewNotFound(corev1.Resource("secret"), name)
	}
	out := &corev1.Secret{Data: map[string][]byte{}}
	for k, v := range data {
		out.Data[k] = []byte(v)
	}
	return out, nil
}

func service(ns, name, ip string, ports ...corev1.ServicePort) *corev1.Service {
	return &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name},
		Spec: corev1.ServiceSpec{ClusterIP: ip, Ports: ports}}
}

func inNamespace(services ...*corev1.Service) Services {
	return func(ns string) (out []*corev1.Service, err error) {
		for _, s := range services {
			if s.Namespace == ns {
				out = append(out, s)
			}
		}
		return out, nil
	}
}

var master = service("default", "kubernetes", "10.0.0.1", corev1.ServicePort{Name: "https", Port: 443, Protocol: "TCP"})

func aPod(links bool) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "shop", Name: "till", UID: "u1",
			Labels: map[string]string{"app": "till", "a": `x"y`}, Annotations: map[string]string{"example.com/Note": "n"},
		},
		Spec: corev1.PodSpec{NodeName: "n1", ServiceAccountName: "sa", EnableServiceLinks: &links,
			Containers: []corev1.Container{{Name: "c"}}},
	}
}

func ref(name string) corev1.LocalObjectReference { return corev1.LocalObjectReference{Name: name} }

func TestBuild(t *testing.T) {
	yes := true
	field := func(path string) *corev1.EnvVarSource {
		return &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{APIVersion: "v1", FieldPath: path}}
	}
	configKey := func(name, key string, optional *bool) *corev1.EnvVarSource {
		return &corev1.EnvVarSource{ConfigMapKeyRef: &corev1.ConfigMapKeySelector{LocalObjectReference: ref(name), Key: key,
			Optional: optional}}
	}
	secretKey := func(name, key string, optional *bool) *corev1.EnvVarSource {
		return &corev1.EnvVarSource{SecretKeyRef: &corev1.SecretKeySelector{LocalObjectReference: ref(name), Key: key,
			Optional: optional}}
	}
	objects := shelf{
		configMaps: map[string]map[string]string{"cm": {"b": "2", "a": "1", "ref": "$(a)"}},
		secrets:    map[string]map[string]string{"s": {"key": "hush", "bin": "\xff", "nul": "x\x00y"}},
	}
	for _, c := range []built{
		{name: "literals keep their order and refer backwards only",
			env:  []corev1.EnvVar{{Name: "Z", Value: "$(A)"}, {Name: "A", Value: "1"}, {Name: "B", Value: "$(A)-$(Z)-$$(A)"}},
			want: "Z=$(A)\nA=1\nB=1-$(A)-$(A)"},
		{name: "a later name replaces the value and keeps the place",
			env:  []corev1.EnvVar{{Name: "A", Value: "1"}, {Name: "B", Value: "2"}, {Name: "A", Value: "$(A)3"}},
			want: "A=13\nB=2"},
		{name: "references reach services",
			env: []corev1.EnvVar{{Name: "URL", Value: "https://$(KUBERNETES_SERVICE_HOST)"}}, want: "URL=https://10.0.0.1"},
		{name: "envFrom: sorted keys, prefix, values not expanded, env overrides",
			from: []corev1.EnvFromSource{{Prefix: "P_",
				ConfigMapRef: &corev1.ConfigMapEnvSource{LocalObjectReference: ref("cm")}}},
			env:  []corev1.EnvVar{{Name: "P_b", Value: "$(P_a)x"}},
			want: "P_a=1\nP_b=1x\nP_ref=$(a)"},
		{name: "envFrom secret",
			from: []corev1.EnvFromSource{{SecretRef: &corev1.SecretEnvSource{LocalObjectReference: ref("none"),
				Optional: &yes}}}, want: ""},
		{name: "envFrom missing",
			from:    []corev1.EnvFromSource{{SecretRef: &corev1.SecretEnvSource{LocalObjectReference: ref("none")}}},
			wantErr: `secret "none" not found`},
		{name: "keys", env: []corev1.EnvVar{{Name: "A", ValueFrom: configKey("cm", "a", nil)},
			{Name: "S", ValueFrom: secretKey("s", "key", nil)}, {Name: "BIN", ValueFrom: secretKey("s", "bin", nil)}},
			want: "A=1\nS=hush\nBIN=\xff"},
		{name: "optional ones that are missing declare nothing",
			env: []corev1.EnvVar{
				{Name: "A", ValueFrom: configKey("cm", "zz", &yes)},
				{Name: "B", ValueFrom: configKey("zz", "a", &yes)},
				{Name: "C", ValueFrom: secretKey("zz", "a", &yes)},
				{Name: "D", ValueFrom: secretKey("s", "zz", &yes)},
			},
			want: ""},
		{name: "missing key", env: []corev1.EnvVar{{Name: "A", ValueFrom: configKey("cm", "zz", nil)}},
			wantErr: "couldn't find key zz in ConfigMap shop/cm"},
		{name: "missing secret key", env: []corev1.EnvVar{{Name: "A", ValueFrom: secretKey("s", "zz", nil)}},
			wantErr: "couldn't find key zz in Secret shop/s"},
		{name: "missing configMap", env: []corev1.EnvVar{{Name: "A", ValueFrom: configKey("zz", "a", nil)}},
			wantErr: `configmap "zz" not found`},
		{name: "NUL names the variable, not the value", env: []corev1.EnvVar{{Name: "A", ValueFrom: secretKey("s", "nul",
			nil)}}, wantErr: "environment variable A: its value contains a NUL byte"},
		{name: "bad name", env: []corev1.EnvVar{{Name: "A=B", Value: "x"}}, wantErr: `environment variable name "A=B"`},
		{name: "fields", env: []corev1.EnvVar{
			{Name: "NAME", ValueFrom: field("metadata.name")},
			{Name: "NS", ValueFrom: field("metadata.namespace")},
			{Name: "UID", ValueFrom: field("metadata.uid")},
			{Name: "NODE", ValueFrom: field("spec.nodeName")}, {Name: "SA", ValueFrom: field("spec.serviceAccountName")},
			{Name: "IP", ValueFrom: field("status.podIP")},
			{Name: "IPS", ValueFrom: field("status.podIPs")},
			{Name: "HOST", ValueFrom: field("status.hostIP")},
			{Name: "HOSTS", ValueFrom: field("status.hostIPs")},
			{Name: "LABELS", ValueFrom: field("metadata.labels")},
			{Name: "APP", ValueFrom: field("metadata.labels['app']")},
			{Name: "NOTE", ValueFrom: field("metadata.annotations['example.com/Note']")}},
			want: "NAME=till\nNS=shop\nUID=u1\nNODE=n1\nSA=sa\nIP=10.1.0.7\nIPS=10.1.0.7,fd00::7\nHOST=192.0.2.1\n" +
				"HOSTS=192.0.2.1\nLABELS=a=\"x\\\"y\"\napp=\"till\"\nAPP=till\nNOTE=n"},
		{name: "unknown field", env: []corev1.EnvVar{{Name: "A", ValueFrom: field("status.phase")}},
			wantErr: "unsupported fieldPath: status.phase"},
		{name: "services of the namespace", links: true,
			extra: []*corev1.Service{
				service("shop", "my-db", "10.0.0.9", corev1.ServicePort{Port: 5432}, corev1.ServicePort{Name: "dns-udp", Port: 53,
					Protocol: "UDP"}),
				service("shop", "headless", "None", corev1.ServicePort{Port: 1}), service("other", "far", "10.0.0.8",
					corev1.ServicePort{Port: 1})},
			env: []corev1.EnvVar{{Name: "X", Value: "$(MY_DB_PORT)"}},
			want: "X=tcp://10.0.0.9:5432\nMY_DB_PORT=tcp://10.0.0.9:5432\n" +
				"MY_DB_PORT_53_UDP=udp://10.0.0.9:53\nMY_DB_PORT_53_UDP_ADDR=10.0.0.9\nMY_DB_PORT_53_UDP_PORT=53\n" +
				"MY_DB_PORT_53_UDP_PROTO=udp\n" +
				"MY_DB_PORT_5432_TCP=tcp://10.0.0.9:5432\nMY_DB_PORT_5432_TCP_ADDR=10.0.0.9\nMY_DB_PORT_5432_TCP_PORT=5432\n" +
				"MY_DB_PORT_5432_TCP_PROTO=tcp\nMY_DB_SERVICE_HOST=10.0.0.9\nMY_DB_SERVICE_PORT=5432\n" +
				"MY_DB_SERVICE_PORT_DNS_UDP=53"},
		{name: "no links, no services but the master",
			extra: []*corev1.Service{service("shop", "db", "10.0.0.9", corev1.ServicePort{Port: 5432})}, want: ""},
	} {
		t.Run(c.name, func(t *testing.T) { c.check(t, objects) })
	}
}

// built is an environment and what it declares, or why it cannot be built.
type built struct {
	name    string
	from    []corev1.EnvFromSource
	env     []corev1.EnvVar
	links   bool
	extra   []*corev1.Service
	want    string // the variables before the master service's, one per line
	wantErr string
}

func (c built) check(t *testing.T, objects shelf) {
	b := Builder{Objects: objects, Services: inNamespace(append(c.extra, master)...)}
	got, err := b.Build(context.Background(), aPod(c.links), &corev1.Container{Name: "c", EnvFrom: c.from, Env: c.env},
		Facts{PodIPs: []string{"10.1.0.7", "fd00::7"}, HostIPs: []string{"192.0.2.1"}})
	if c.wantErr != "" {
		if err == nil || !strings.Contains(err.Error(), c.wantErr) {
			t.Fatalf("error %v, want %q", err, c.wantErr)
		}
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	var lines []string
	masters := 0
	for _, v := range got {
		if strings.HasPrefix(v.Key, "KUBERNETES_") {
			masters++
			continue
		}
		lines = append(lines, v.Key+"="+string(v.Value))
	}
	if text := strings.Join(lines, "\n"); text != c.want {
		t.Errorf("got\n%s\nwant\n%s", text, c.want)
	}
	if masters != 8 {
		t.Errorf("%d variables of the master service, want 8 (HOST, PORT, PORT_HTTPS, and the link family of 5)", masters)
	}
}

// A service called kubernetes in the pod's own namespace replaces the master service, but only for a pod with service
// links.
func TestOwnKubernetesService(t *testing.T) {
	own := service("shop", "kubernetes", "10.0.0.77", corev1.ServicePort{Port: 1})
	for links, want := range map[bool]string{true: "10.0.0.77", false: "10.0.0.1"} {
		b := Builder{Objects: shelf{}, Services: inNamespace(master, own)}
		vars, err := b.Build(context.Background(), aPod(links), &corev1.Container{}, Facts{})
		if err != nil {
			t.Fatal(err)
		}
		for _, v := range vars {
			if v.Key == "KUBERNETES_SERVICE_HOST" && string(v.Value) != want {
				t.Errorf("links %v: %s, want %s", links, v.Value, want)
			}
		}
	}
}

// A pod from the API waits until services are known. A static pod does not, since it may be the API server.
func TestServicesNotKnownYet(t *testing.T) {
	unknown := errors.New("services are not known yet")
	b := Builder{Objects: shelf{}, Services: func(string) ([]*corev1.Service, error) { return nil, unknown }}
	for source, want := range map[string]error{"absent": unknown, "api": unknown, "file": nil, "": nil} {
		pod := aPod(true)
		if source != "absent" {
			pod.Annotations["kubernetes.io/config.source"] = source
		}
		if _, err := b.Build(t.Context(), pod, &corev1.Container{}, Facts{}); !errors.Is(err, want) {
			t.Errorf("source %q: %v, want %v", source, err, want)
		}
	}
}

func TestResource(t *testing.T) {
	list := func(cpu, memory string) corev1.ResourceList {
		out := corev1.ResourceList{}
		if cpu != "" {
			out["cpu"] = resource.MustParse(cpu)
		}
		if memory != "" {
			out["memory"] = resource.MustParse(memory)
		}
		return out
	}
	pod := aPod(true)
	pod.Spec.Containers[0].Resources = corev1.ResourceRequirements{Requests: list("250m", "100Mi"), Limits: list("1500m",
		"")}
	pod.Spec.InitContainers = []corev1.Container{{Name: "i",
		Resources: corev1.ResourceRequirements{Limits: corev1.ResourceList{"hugepages-2Mi": resource.MustParse("4Mi")}}}}
	allocatable := list("8", "16Gi")
	podLimit := aPod(true)
	podLimit.Spec.Resources = &corev1.ResourceRequirements{Limits: list("2", "1Gi")}
	for _, c := range []struct {
		pod                      *corev1.Pod
		container, what, divisor string
		want, wantErr            string
	}{
		{pod: pod, what: "requests.cpu", want: "1"},
		{pod: pod, what: "requests.cpu", divisor: "1m", want: "250"},
		{pod: pod, what: "limits.cpu", want: "2"},
		{pod: pod, what: "requests.memory", divisor: "1Mi", want: "100"},
		{pod: pod, what: "requests.memory", divisor: "3Mi", want: "34"},
		{pod: pod, what: "limits.memory", divisor: "1Gi", want: "16"},
		{pod: pod, what: "limits.ephemeral-storage", want: "0"},
		{pod: pod, container: "i", what: "limits.hugepages-2Mi", want: "4194304"},
		{pod: pod, what: "limits.hugepages-2Mi", want: "0"},
		{pod: podLimit, what: "limits.memory", divisor: "1Mi", want: "1024"},
		{pod: podLimit, what: "limits.cpu", want: "2"},
		{pod: pod, container: "zz", what: "limits.cpu", wantErr: "container zz not found"},
		{pod: pod, what: "limits.bananas", wantErr: "unsupported container resource : limits.bananas"},
		{pod: pod, what: "cpu", wantErr: "unsupported container resource : cpu"},
	} {
		ref := &corev1.ResourceFieldSelector{ContainerName: c.container, Resource: c.what}
		if c.divisor != "" {
			ref.Divisor = resource.MustParse(c.divisor)
		}
		got, err := Resource(c.pod, &c.pod.Spec.Containers[0], ref, allocatable)
		if got != c.want || (err == nil) != (c.wantErr == "") || err != nil && err.Error() != c.wantErr {
			t.Errorf("%+v: %q, %v", c, got, err)
		}
	}
}

func TestEnvFile(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("e", "# c\n\n  A='1' # one\nB='two\nlines'\nC= 'x'\nD=''\nBAD\n")
	if err := os.Symlink("/etc/hostname", filepath.Join(dir, "out")); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		path, key, want string
		ok              bool
		wantErr         string
	}{
		{"e", "A", "1", true, ""}, {"e", "B", "two\nlines", true, ""}, {"e", "C", "", false, ""}, {"e", "D", "", false, ""},
		{"e", "E", "", false, "line 8: missing '='"}, {"none", "A", "", false, "no such file"},
		{"../e", "A", "", false, "escapes"}, {"out", "A", "", false, "escapes"},
	} {
		got, ok, err := readEnvFile(dir, c.path, c.key)
		if got != c.want || ok != c.ok || (err == nil) != (c.wantErr == "") ||
			err != nil && !strings.Contains(err.Error(), c.wantErr) {
			t.Errorf("%+v: %q %v %v", c, got, ok, err)
		}
	}
}

func TestCommandLine(t *testing.T) {
	b := Builder{Objects: shelf{}, Services: inNamespace()}
	c := &corev1.Container{Env: []corev1.EnvVar{{Name: "A", Value: "1"}}, Command: []string{"sh", "$(A)"},
		Args: []string{"$(NO)", "$$(A)", "$A"}}
	vars, err := b.Build(context.Background(), aPod(true), c, Facts{})
	if err != nil {
		t.Fatal(err)
	}
	command, args, err := CommandLine(c, vars)
	if err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(append(command, args...), " "); got != "sh 1 $(NO) $(A) $A" {
		t.Errorf("got %q", got)
	}
}

// A pod's text may expand to any multiple of its size. What cannot be passed to a process is refused before it grows,
// and the error names the variable.
func TestMoreThanAProcessCanBeGiven(t *testing.T) {
	half := strings.Repeat("x", stringMax/2)
	var doubling, many []corev1.EnvVar
	for i := range 40 {
		value := "x"
		if i > 0 {
			value = fmt.Sprintf("$(V%d)$(V%d)", i-1, i-1)
		}
		doubling = append(doubling, corev1.EnvVar{Name: fmt.Sprintf("V%d", i), Value: value})
	}
	annotation := &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.annotations['half']"}}
	for i := range 10_000 {
		many = append(many, corev1.EnvVar{Name: fmt.Sprintf("V%d", i), ValueFrom: annotation})
	}
	b := Builder{Objects: shelf{secrets: map[string]map[string]string{"s": {"big": half + half}}}, Services: inNamespace()}
	for want, c := range map[string]*corev1.Container{
		"variable V17: longer than":   {Env: doubling},
		"variable V95: together with": {Env: many},
		"variable big: longer than": {EnvFrom: []corev1.EnvFromSource{
			{SecretRef: &corev1.SecretEnvSource{LocalObjectReference: corev1.LocalObjectReference{Name: "s"}}},
		}},
		"argument 1: longer than": {Env: many[:1], Command: []string{"a", "$(V0)$(V0)"}},
		"arguments: longer than":  {Env: many[:1], Args: slices.Repeat([]string{"$(V0)"}, 100)},
		"":                        {Env: many[:1], Args: []string{"$(V0)", "$(V0)", "x"}},
	} {
		pod := aPod(true)
		pod.Annotations = map[string]string{"half": half}
		vars, err := b.Build(context.Background(), pod, c, Facts{})
		if err == nil {
			_, _, err = CommandLine(c, vars)
		}
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) ||
			err != nil && strings.Contains(err.Error(), "xx") {
			t.Errorf("want an error with %q, got %v", want, err)
		}
	}
	// A variable that is set again frees the bytes of its old value.
	var anew []corev1.EnvVar
	for range 1000 {
		anew = append(anew, corev1.EnvVar{Name: "A", Value: half})
	}
	if vars, err := b.Build(context.Background(), aPod(true), &corev1.Container{Env: anew}, Facts{}); err != nil ||
		len(vars[0].Value) != len(half) {
		t.Errorf("one variable, again and again: %v", err)
	}
}
