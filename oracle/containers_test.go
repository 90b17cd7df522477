package oracle

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/record"
	upstreamresource "k8s.io/kubernetes/pkg/api/v1/resource"
	"k8s.io/kubernetes/pkg/fieldpath"
	"k8s.io/kubernetes/pkg/kubelet/envvars"
	"k8s.io/kubernetes/pkg/kubelet/network/dns"
	"k8s.io/kubernetes/third_party/forked/golang/expansion"

	agentdns "github.com/plimsoll-dev/plimsoll/internal/agent/dns"
	"github.com/plimsoll-dev/plimsoll/internal/agent/env"
)

// pick returns a random one of choices.
func pick[T any](r *rand.Rand, choices ...T) T { return choices[r.IntN(len(choices))] }

// words returns up to n of choices, with repetitions.
func words(r *rand.Rand, n int, choices ...string) []string {
	var out []string
	for range r.IntN(n + 1) {
		out = append(out, pick(r, choices...))
	}
	return out
}

// TestExpansion compares $(VAR) expansion on random valid UTF-8. (Upstream replaces other bytes with U+FFFD; we keep
// them.)
func TestExpansion(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	vars := map[string]string{"A": "one", "B": "$(A)", "": "none", "é": "$$", "a b": ""}
	lookup := func(name string) (string, bool) { v, ok := vars[name]; return v, ok }
	judge := expansion.MappingFuncFor(vars)
	for range 300_000 {
		s := strings.Join(words(r, 12, "$", "$", "(", ")", "A", "B", "é", " ", "a b", "$(A)"), "")
		if got, err := env.Expand(s, lookup); err != nil || got != expansion.Expand(s, judge) {
			t.Fatalf("%q: %q, %v, upstream %q", s, got, err, expansion.Expand(s, judge))
		}
	}
}

// TestServiceVariables compares the environment variables for services.
func TestServiceVariables(t *testing.T) {
	r := rand.New(rand.NewPCG(2, 1))
	for range 5_000 {
		var services []*corev1.Service
		for i := range r.IntN(5) {
			s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: fmt.Sprint(pick(r, "a", "my-db", "x-y-z"),
				i)}}
			s.Spec.ClusterIP = pick(r, "10.0.0.1", "fd00::1", "None", "")
			for p := range 1 + r.IntN(3) {
				s.Spec.Ports = append(s.Spec.Ports, corev1.ServicePort{Name: pick(r, "", fmt.Sprint("p-", p)),
					Port: int32(1 + r.IntN(100)), Protocol: pick(r, corev1.ProtocolTCP, corev1.ProtocolUDP, "")})
			}
			services = append(services, s)
		}
		want := map[string]string{}
		for _, v := range envvars.FromServices(services) {
			want[v.Name] = v.Value
		}
		b := env.Builder{Services: func(ns string) ([]*corev1.Service, error) {
			if ns == "ns" {
				return services, nil
			}
			return nil, nil
		}}
		vars, err := b.Build(context.Background(), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns"}},
			&corev1.Container{}, env.Facts{})
		if err != nil {
			t.Fatal(err)
		}
		if len(vars) != len(want) {
			t.Fatalf("%d variables, upstream %d: %v, %v", len(vars), len(want), vars, want)
		}
		for _, v := range vars {
			if want[v.Key] != string(v.Value) {
				t.Fatalf("%s=%s, upstream %s", v.Key, v.Value, want[v.Key])
			}
		}
	}
}

// TestDNS compares resolver configurations. Upstream's options are in random order, so they are compared as sets.
func TestDNS(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 1))
	file := filepath.Join(t.TempDir(), "resolv.conf")
	long := strings.Repeat("x", 250)
	domains := []string{"a", "b.", "c.example", "svc.cluster.local", ".", long, long + ".toolong", "d", "e", "f"}
	for n := range 4_000 {
		var text strings.Builder
		for range r.IntN(5) {
			text.WriteString(pick(r, "nameserver 1.1.1.1", "nameserver fd00::53", "# nameserver 9.9.9.9", "", "options ndots:"+
				fmt.Sprint(r.IntN(3))+" rotate", "options edns0",
				"search "+strings.Join(words(r, 12, domains...), " ")) + "\n")
		}
		if err := os.WriteFile(file, []byte(text.String()), 0o600); err != nil {
			t.Fatal(err)
		}
		cluster := words(r, 2, "10.96.0.10", "fd00::a")
		domain := pick(r, "cluster.local", "")
		conf := pick(r, file, file, "")
		nodeIPs := words(r, 2, "192.0.2.1", "fd00::1")
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p"}}
		pod.Spec.DNSPolicy = pick(r, corev1.DNSClusterFirst, corev1.DNSClusterFirstWithHostNet, corev1.DNSDefault,
			corev1.DNSNone)
		pod.Spec.HostNetwork = r.IntN(3) == 0
		if r.IntN(2) == 0 {
			pod.Spec.DNSConfig = &corev1.PodDNSConfig{Nameservers: words(r, 4, "1.1.1.1", "2.2.2.2", "3.3.3.3"),
				Searches: words(r, 40, domains...)}
			for _, o := range words(r, 3, "ndots", "edns0", "use-vc") {
				value := pick(r, "7", "")
				pod.Spec.DNSConfig.Options = append(pod.Spec.DNSConfig.Options, corev1.PodDNSConfigOption{Name: o,
					Value: pick(r, nil, &value)})
			}
		}
		configurer := dns.NewConfigurer(&record.FakeRecorder{}, &corev1.ObjectReference{}, parse(nodeIPs), parse(cluster),
			domain, conf)
		want, err := configurer.GetPodDNS(context.Background(), pod)
		if err != nil {
			t.Fatal(err)
		}
		got, _, err := agentdns.Resolver{ClusterDomain: domain, ClusterDNS: cluster, ResolvConf: conf,
			NodeIPs: nodeIPs}.DNSConfig(pod)
		if err != nil {
			t.Fatal(err)
		}
		slices.Sort(got.Options)
		slices.Sort(want.Options)
		if !slices.Equal(got.Servers, want.Servers) || !slices.Equal(got.Searches, want.Searches) ||
			!slices.Equal(got.Options, want.Options) {
			t.Fatalf("case %d: policy %v, resolv.conf\n%s\ndnsConfig %v\ngot      %v\nupstream %v", n, pod.Spec.DNSPolicy,
				text.String(), pod.Spec.DNSConfig, got, want)
		}
	}
}

func parse(ips []string) (out []net.IP) {
	for _, ip := range ips {
		out = append(out, net.ParseIP(ip))
	}
	return out
}

// TestDownward compares fields and resources of the downward API.
func TestDownward(t *testing.T) {
	r := rand.New(rand.NewPCG(4, 1))
	quantities := []string{"", "0", "1", "250m", "1500m", "1", "100Mi", "1Gi", "1000", "4Mi", "1.5", "123456789"}
	list := func() corev1.ResourceList {
		out := corev1.ResourceList{}
		for _, name := range []corev1.ResourceName{"cpu", "memory", "ephemeral-storage", "hugepages-2Mi"} {
			if q := pick(r, quantities...); q != "" {
				out[name] = resource.MustParse(q)
			}
		}
		return out
	}
	for range 50_000 {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p", UID: "u",
			Labels: map[string]string{"a": pick(r, "1", `"`, "é\n"),
				"b": ""}, Annotations: map[string]string{"example.com/x": "y"}}}
		path := pick(r, "metadata.labels", "metadata.annotations", "metadata.name", "metadata.namespace", "metadata.uid",
			"metadata.labels['a']", "metadata.labels['']", "metadata.annotations['example.com/x']",
			"metadata.annotations['Example.com/X']", "metadata.name['x']", "spec.nodeName", "['a']", "metadata.labels['a", "")
		want, wantErr := fieldpath.ExtractFieldPathAsString(pod, path)
		got, err := env.Metadata(pod, path)
		if got != want || fmt.Sprint(err) != fmt.Sprint(wantErr) {
			t.Fatalf("%s: %q %v, upstream %q %v", path, got, err, want, wantErr)
		}
		container := corev1.Container{Name: "c", Resources: corev1.ResourceRequirements{Requests: list(), Limits: list()}}
		pod.Spec.Containers = []corev1.Container{container}
		allocatable := list()
		ref := &corev1.ResourceFieldSelector{ContainerName: "c", Resource: pick(r, "limits.", "requests.", "banana.", "") +
			pick(r, "cpu", "memory", "ephemeral-storage", "hugepages-2Mi", "storage")}
		if d := pick(r, "", "1", "1m", "1Mi", "1k", "3"); d != "" {
			ref.Divisor = resource.MustParse(d)
		}
		want, wantErr = upstreamresource.ExtractResourceValueByContainerNameAndNodeAllocatable(ref, pod, "c", allocatable)
		got, err = env.Resource(pod, nil, ref, allocatable)
		if got != want || fmt.Sprint(err) != fmt.Sprint(wantErr) {
			t.Fatalf("%v of %v with %v: %q %v, upstream %q %v", ref, container.Resources, allocatable, got, err, want, wantErr)
		}
	}
}
