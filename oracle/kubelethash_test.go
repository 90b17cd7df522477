package oracle

import (
	"encoding/json"
	"flag"
	"fmt"
	"math/rand/v2"
	"reflect"
	"strconv"
	"testing"
	"time"
	_ "unsafe" // go:linkname

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	core "k8s.io/kubernetes/pkg/apis/core"
	_ "k8s.io/kubernetes/pkg/apis/core/install"
	_ "k8s.io/kubernetes/pkg/kubelet/config"
	"k8s.io/kubernetes/pkg/kubelet/container"

	"github.com/plimsoll-dev/plimsoll/internal/kube/kubelethash"
	"github.com/plimsoll-dev/plimsoll/internal/kube/manifests"
)

var (
	hashedPods = flag.Int("kubelethash.pods", 3_000, "random manifests whose UIDs are compared")
	hashSeed   = flag.Uint64("kubelethash.seed", 1, "seed of the random manifests")
)

//go:linkname upstreamStaticPod k8s.io/kubernetes/pkg/kubelet/config.applyDefaults
func upstreamStaticPod(l klog.Logger, pod *core.Pod, source string, isFile bool, node types.NodeName) error

// TestContainerHash compares the hash by which the kubelet decides whether a running container is the one that its pod
// specifies.
func TestContainerHash(t *testing.T) {
	r := random{rand.New(rand.NewPCG(*hashSeed, 0))}
	for range 2_000 {
		c := corev1.Container{Name: r.of("a", "web-1", ""), Image: r.of("", "é<>&", "example.com:5000/app@sha256:00", `"`)}
		c.Image += fmt.Sprint(r.IntN(100))
		if got, want := kubelethash.Container(&c), strconv.FormatUint(container.HashContainer(&c), 16); got != want {
			t.Fatalf("%q %q: hash %s, upstream %s", c.Name, c.Image, got, want)
		}
	}
}

// TestStaticPodUID compares the UIDs of static pods: of manifests with random values in all fields, decoded and
// defaulted by either side.
func TestStaticPodUID(t *testing.T) {
	for n := range *hashedPods {
		r := random{rand.New(rand.NewPCG(*hashSeed, uint64(n)))}
		manifest := r.manifest(t, 2+n%7)
		path, node := r.of("/etc/kubernetes/manifests/a.yaml", "/p/b.json"), r.of("node-1", "Node-2.example")
		obj, err := runtime.Decode(legacyscheme.Codecs.UniversalDecoder(), manifest)
		if err != nil {
			t.Fatalf("seed %d, pod %d: upstream: %v\n%s", *hashSeed, n, err, manifest)
		}
		want := obj.(*core.Pod)
		if err := upstreamStaticPod(klog.Background(), want, path, true, types.NodeName(node)); err != nil {
			t.Fatal(err)
		}
		pod, err := manifests.DecodePod(manifest)
		if err != nil {
			t.Fatalf("seed %d, pod %d: %v\n%s", *hashSeed, n, err, manifest)
		}
		manifests.DefaultPod(pod)
		if got := kubelethash.StaticPod(pod, node, path); got != want.UID {
			t.Fatalf("seed %d, pod %d: UID %s, upstream %s\n%s", *hashSeed, n, got, want.UID, manifest)
		}
	}
}

// manifest returns a random static pod in JSON. One field in oneIn has a value.
func (r random) manifest(t *testing.T, oneIn int) []byte {
	pod := &corev1.Pod{}
	r.fill(reflect.ValueOf(pod).Elem(), oneIn)
	pod.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}
	pod.UID = ""
	pod.Spec.EphemeralContainers = nil // refused in static pods
	pod.Status = corev1.PodStatus{PodIP: r.of("", "192.0.2.1")}
	if r.chance(2) {
		pod.Status.PodIPs = []corev1.PodIP{{IP: r.of("192.0.2.1", "192.0.2.2")}}
	}
	if r.chance(2) {
		pod.Annotations = map[string]string{r.of("a", "pod.beta.kubernetes.io/init-containers"): "[]"}
	}
	for _, list := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			list[i].Image = r.of("a", "a:latest", "a:1", "example.com:5000/a", "b/a:latest@sha256:"+digest, "a@sha256:"+digest)
		}
	}
	for i := range pod.Spec.Volumes {
		if image := pod.Spec.Volumes[i].Image; image != nil {
			image.Reference = r.of("a", "a:1")
		}
	}
	text, err := json.Marshal(pod)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

const digest = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

// fill gives values to one in oneIn of the fields of an API object, and below them.
func (r random) fill(v reflect.Value, oneIn int) {
	switch v.Addr().Interface().(type) {
	case *resource.Quantity:
		q := resource.MustParse(r.of("0", "1", "100m", "1500u", "1.5Gi", "2000M", "3e6", "64Mi"))
		v.Set(reflect.ValueOf(q))
		return
	case *metav1.Time:
		v.Set(reflect.ValueOf(metav1.Time{Time: time.Unix(1_700_000_000+r.Int64N(1e6), 0)}))
		return
	case *intstr.IntOrString:
		v.Set(reflect.ValueOf(intstr.Parse(r.of("80", "http"))))
		return
	case *metav1.FieldsV1:
		v.Set(reflect.ValueOf(metav1.FieldsV1{Raw: []byte("{}")}))
		return
	}
	switch v.Kind() {
	case reflect.Bool:
		v.SetBool(r.chance(2))
	case reflect.Int, reflect.Int32, reflect.Int64:
		v.SetInt(r.Int64N(2000) - 3)
	case reflect.Uint8:
		v.SetUint(r.Uint64N(256))
	case reflect.String:
		v.SetString(r.of("a", "b-1", "é (x) <y> {z}", "1Gi"))
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		r.fill(v.Elem(), oneIn)
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), r.IntN(3), 3))
		for i := range v.Len() {
			r.fill(v.Index(i), oneIn)
		}
	case reflect.Map:
		v.Set(reflect.MakeMap(v.Type()))
		for range r.IntN(4) {
			key, value := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
			r.fill(key, oneIn)
			r.fill(value, oneIn)
			if v.Type() == reflect.TypeFor[corev1.ResourceList]() {
				key.SetString(r.of("cpu", "memory", "hugepages-2Mi", "example.com/gpu"))
			}
			v.SetMapIndex(key, value)
		}
	case reflect.Struct:
		for i := range v.NumField() {
			if f := v.Field(i); f.Kind() == reflect.Struct || r.chance(oneIn) {
				r.fill(f, oneIn)
			}
		}
	}
}
