//go:build e2e

package pods

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/plimsoll-dev/plimsoll/test/e2e/rig"
	"github.com/plimsoll-dev/plimsoll/test/freeport"
)

// configMap creates a configMap, and a secret of the same name and content.
func (b bench) configMap(name string, data map[string]string) {
	b.t.Helper()
	meta := metav1.ObjectMeta{Name: name}
	_, err := b.API.CoreV1().ConfigMaps(b.ns).Create(b.t.Context(), &corev1.ConfigMap{ObjectMeta: meta, Data: data},
		metav1.CreateOptions{})
	if err == nil {
		_, err = b.API.CoreV1().Secrets(b.ns).Create(b.t.Context(), &corev1.Secret{ObjectMeta: meta, StringData: data},
			metav1.CreateOptions{})
	}
	if err != nil {
		b.t.Fatal(err)
	}
}

func field(path string) *corev1.EnvVarSource {
	return &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: path}}
}

func resourceField(name, divisor string) *corev1.EnvVarSource {
	return &corev1.EnvVarSource{ResourceFieldRef: &corev1.ResourceFieldSelector{Resource: name,
		Divisor: quantity(divisor)}}
}

// Command, arguments and every source of variables.
func TestEnvironment(t *testing.T) {
	b := at(t)
	b.configMap("source", map[string]string{"a": "one", "b": "two"})
	b.kubectl("create", "service", "clusterip", "web-shop", "--tcp=80:8080")
	ref := corev1.LocalObjectReference{Name: "source"}
	c := corev1.Container{
		Name: "c", Image: image, Command: []string{"/workload", "run"}, Args: []string{"env", "write /tmp/x $(GREETING)",
			"cat /tmp/x"},
		Env: []corev1.EnvVar{
			{Name: "WHO", Value: "world"}, {Name: "GREETING", Value: "hello-$(WHO)-$$(WHO)-$(NOBODY)"},
			{Name: "POD", ValueFrom: field("metadata.name")},
			{Name: "NS", ValueFrom: field("metadata.namespace")},
			{Name: "UID", ValueFrom: field("metadata.uid")},
			{Name: "LABEL", ValueFrom: field("metadata.labels['app']")},
			{Name: "SA", ValueFrom: field("spec.serviceAccountName")},
			{Name: "NODE", ValueFrom: field("spec.nodeName")},
			{Name: "IP", ValueFrom: field("status.podIP")},
			{Name: "HOST_IP", ValueFrom: field("status.hostIP")},
			{Name: "CPU", ValueFrom: resourceField("requests.cpu", "1m")},
			{Name: "MEM", ValueFrom: resourceField("limits.memory", "1Mi")},
			{Name: "CPU_LIMIT", ValueFrom: resourceField("limits.cpu", "1")},
			{Name: "CM", ValueFrom: &corev1.EnvVarSource{ConfigMapKeyRef: &corev1.ConfigMapKeySelector{LocalObjectReference: ref,
				Key: "a"}}},
			{Name: "SECRET", ValueFrom: &corev1.EnvVarSource{SecretKeyRef: &corev1.SecretKeySelector{LocalObjectReference: ref,
				Key: "b"}}},
			{Name: "NONE", ValueFrom: &corev1.EnvVarSource{SecretKeyRef: &corev1.SecretKeySelector{LocalObjectReference: ref,
				Key: "none", Optional: ptr(true)}}},
		},
		EnvFrom: []corev1.EnvFromSource{
			{Prefix: "CM_", ConfigMapRef: &corev1.ConfigMapEnvSource{LocalObjectReference: ref}},
			{SecretRef: &corev1.SecretEnvSource{LocalObjectReference: ref}},
		},
		Resources: corev1.ResourceRequirements{
			Requests: corev1.ResourceList{"cpu": quantity("10m")}, Limits: corev1.ResourceList{"memory": quantity("64Mi")},
		},
	}
	pod := b.create("p", brief(c))
	p := b.ended("p", corev1.PodSucceeded)
	node, err := b.API.CoreV1().Nodes().Get(t.Context(), b.NodeName, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	service, err := b.API.CoreV1().Services(b.ns).Get(t.Context(), "web-shop", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(b.logs("p", "c")), "\n")
	got := map[string]string{}
	for _, line := range lines {
		name, value, _ := strings.Cut(line, "=")
		got[name] = value
	}
	for name, want := range map[string]string{
		"WHO": "world", "GREETING": "hello-world-$(WHO)-$(NOBODY)", "POD": "p", "NS": b.ns, "UID": string(pod.UID),
		"LABEL": "p", "SA": "default",
		"NODE": b.NodeName, "IP": p.Status.PodIP, "HOST_IP": p.Status.HostIP, "CPU": "10", "MEM": "64",
		"CPU_LIMIT": node.Status.Allocatable.Cpu().String(),
		"CM":        "one", "SECRET": "two", "CM_a": "one", "CM_b": "two", "a": "one", "b": "two", "HOSTNAME": "p",
		"WEB_SHOP_SERVICE_HOST": service.Spec.ClusterIP, "WEB_SHOP_PORT_80_TCP_PORT": "80",
		"KUBERNETES_SERVICE_PORT_HTTPS": "443",
	} {
		if value, ok := got[name]; !ok || value != want {
			t.Errorf("%s is %q (set: %t), want %q", name, value, ok, want)
		}
	}
	if value, ok := got["NONE"]; ok {
		t.Errorf("the optional variable without a source is %q", value)
	}
	b.want("argument", lines[len(lines)-1], "hello-world-$(WHO)-$(NOBODY)")
}

// The content of every kind of volume, as the container sees it.
func TestVolumes(t *testing.T) {
	b := at(t)
	b.configMap("source", map[string]string{"a": "one", "b": "two"})
	host := t.TempDir()
	if err := os.Chmod(host, 0o777); err != nil {
		t.Fatal(err)
	}
	ref := corev1.LocalObjectReference{Name: "source"}
	volumes := map[string]corev1.VolumeSource{
		"disk": {EmptyDir: &corev1.EmptyDirVolumeSource{}},
		"memory": {EmptyDir: &corev1.EmptyDirVolumeSource{Medium: corev1.StorageMediumMemory,
			SizeLimit: ptr(quantity("1Mi"))}},
		"host": {HostPath: &corev1.HostPathVolumeSource{Path: host}},
		"cm":   {ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: ref, DefaultMode: ptr(int32(0o640))}},
		"items": {ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: ref,
			Items: []corev1.KeyToPath{{Key: "a", Path: "deep/er", Mode: ptr(int32(0o400))}}}},
		"secret": {Secret: &corev1.SecretVolumeSource{SecretName: "source"}},
		"none":   {Secret: &corev1.SecretVolumeSource{SecretName: "absent", Optional: ptr(true)}},
		"down": {DownwardAPI: &corev1.DownwardAPIVolumeSource{Items: []corev1.DownwardAPIVolumeFile{
			{Path: "labels", FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.labels"}},
			{Path: "cpu", ResourceFieldRef: &corev1.ResourceFieldSelector{ContainerName: "c", Resource: "requests.cpu",
				Divisor: quantity("1m")}},
		}}},
	}
	c := workload("c", "http")
	c.Resources.Requests = corev1.ResourceList{"cpu": quantity("20m")}
	spec := lasting(c)
	for name, source := range volumes {
		spec.Volumes = append(spec.Volumes, corev1.Volume{Name: name, VolumeSource: source})
		spec.Containers[0].VolumeMounts = append(spec.Containers[0].VolumeMounts, corev1.VolumeMount{Name: name,
			MountPath: "/v/" + name})
	}
	spec.Containers[0].VolumeMounts = append(spec.Containers[0].VolumeMounts,
		corev1.VolumeMount{Name: "cm", MountPath: "/one", SubPath: "b"},
		corev1.VolumeMount{Name: "disk", MountPath: "/sub", SubPath: "made/here"},
		corev1.VolumeMount{Name: "disk", MountPath: "/locked", ReadOnly: true})
	spec.SecurityContext = &corev1.PodSecurityContext{FSGroup: ptr(int64(4242)), RunAsUser: ptr(int64(1001))}
	b.create("p", spec)
	p := b.ready("p")
	for file, want := range map[string]string{
		"/v/cm/a": "one", "/v/cm/b": "two", "/v/items/deep/er": "one", "/v/secret/a": "one", "/v/down/labels": `app="p"`,
		"/v/down/cpu": "20", "/one": "two",
	} {
		b.want(file, b.in("p", "cat", file), want)
	}
	for file, want := range map[string]string{"/v/cm/..data/a": "-rw-r----- 0:4242",
		"/v/items/..data/deep/er": "-r--r----- 0:4242", "/v/secret/..data/b": "-rw-r--r-- 0:4242"} {
		if got := b.in("p", "ls", "-l", file); !strings.HasPrefix(got, want) {
			t.Errorf("%s is %q, want %s", file, got, want)
		}
	}
	for _, file := range []string{"/v/disk/x", "/v/memory/x", "/v/host/x", "/sub/x"} {
		b.in("p", "write", file, "mine")
	}
	for _, file := range []string{"/v/cm/x", "/v/secret/x", "/locked/x"} {
		if _, err := b.tryIn("p", "write", file, "mine"); err == nil {
			t.Errorf("%s could be written", file)
		}
	}
	if _, err := b.tryIn("p", "disk", "--path", "/v/memory/large", "--size", "2Mi", "--exit"); err == nil {
		t.Error("an emptyDir in memory holds more than its sizeLimit")
	}
	for path, want := range map[string]string{
		filepath.Join(host, "x"): "mine\n", filepath.Join(b.AgentRoot(), "pods", string(p.UID),
			"volumes/kubernetes.io~empty-dir/disk/made/here/x"): "mine\n",
	} {
		if text, err := os.ReadFile(path); err != nil || string(text) != want {
			t.Errorf("%s: %q, %v", path, text, err)
		}
	}
	// the directory's set-group-id bit
	if got := b.in("p", "ls", "-l", "/v/disk/x"); !strings.HasPrefix(got, "-rw-r--r-- 1001:4242") {
		t.Errorf("a file in a volume of group 4242 is %q", got)
	}
	b.updates("p")
	b.delete("p", -1, soon)
	if _, err := os.Stat(filepath.Join(host, "x")); err != nil {
		t.Errorf("the host's file went with the pod: %v", err)
	}
	b.leavesNothing(string(p.UID))
}

// updates checks that changes in the API reach the files of a running container.
func (b bench) updates(pod string) {
	b.t.Helper()
	b.kubectl("patch", "configmap", "source", "-p", `{"data":{"a":"changed","c":"new"}}`)
	b.kubectl("patch", "secret", "source", "-p", `{"stringData":{"a":"changed"}}`)
	b.kubectl("label", "pod", pod, "app=renamed", "--overwrite")
	rig.Eventually(b.t, soon, "the changes", func(context.Context) error {
		for file, want := range map[string]string{"/v/cm/a": "changed", "/v/cm/c": "new", "/v/secret/a": "changed",
			"/v/down/labels": `app="renamed"`} {
			if got, err := b.tryIn(pod, "cat", file); err != nil || strings.TrimSpace(got) != want {
				return fmt.Errorf("%s: %q %v", file, got, err)
			}
		}
		return nil
	})
	b.want("a subPath mount keeps what it had", b.in(pod, "cat", "/one"), "two")
}

// The API server accepts the projected token of an ordinary pod as that pod's identity.
func TestServiceAccountToken(t *testing.T) {
	b := at(t)
	spec := lasting(workload("c", "sleep", "infinity"))
	spec.Volumes = []corev1.Volume{{Name: "v",
		VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{
			{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{Audience: "vault", ExpirationSeconds: ptr(int64(600)),
				Path: "token"}},
		}}}}}
	spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "v", MountPath: "/v"}}
	b.create("p", spec)
	p := b.ready("p")
	const dir = "/var/run/secrets/kubernetes.io/serviceaccount/"
	b.want("namespace", b.in("p", "cat", dir+"namespace"), b.ns)
	for file, audience := range map[string]string{dir + "token": "", "/v/token": "vault"} {
		review := &authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: b.in("p", "cat", file)}}
		if audience != "" {
			review.Spec.Audiences = []string{audience}
		}
		review, err := b.API.AuthenticationV1().TokenReviews().Create(t.Context(), review, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		user := review.Status.User
		if !review.Status.Authenticated || user.Username != "system:serviceaccount:"+b.ns+":default" ||
			fmt.Sprint(user.Extra["authentication.kubernetes.io/pod-uid"]) != "["+string(p.UID)+"]" {
			t.Errorf("%s: %+v", file, review.Status)
		}
	}
	// It uses the token and the CA certificate of the pod's files, as a client in the pod does.
	ca := filepath.Join(t.TempDir(), "ca.crt")
	if err := os.WriteFile(ca, []byte(b.in("p", "cat", dir+"ca.crt")+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	out := b.Kubectl(t, "--kubeconfig=/dev/null", "--server="+b.Config.Host, "--certificate-authority="+ca, "--token="+
		b.in("p", "cat", dir+"token"), "auth", "whoami", "-o", "json")
	var who struct {
		Status struct{ UserInfo struct{ Username string } }
	}
	if err := json.Unmarshal([]byte(out), &who); err != nil {
		t.Fatal(err)
	}
	b.want("user", who.Status.UserInfo.Username, "system:serviceaccount:"+b.ns+":default")
}

// Pods reach each other and the host reaches them. Host ports lead to pods, and hostNetwork uses the host's network.
func TestNetwork(t *testing.T) {
	b := at(t)
	port, own := freeport.ForTest(t), freeport.ForTest(t)
	web := workload("c", "http")
	web.Ports = []corev1.ContainerPort{{Name: "web", ContainerPort: 8080, HostPort: int32(port)}}
	web.ReadinessProbe = &corev1.Probe{PeriodSeconds: 1,
		ProbeHandler: corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: "/", Port: named("web")}}}
	spec := lasting(web)
	spec.Hostname, spec.Subdomain = "front", "shop"
	spec.HostAliases = []corev1.HostAlias{{IP: "192.0.2.77", Hostnames: []string{"alias"}}}
	b.create("web", spec)
	hosted := lasting(workload("c", "http", "--port", fmt.Sprint(own)))
	hosted.HostNetwork = true
	b.create("hosted", hosted)
	p, h := b.ready("web"), b.ready("hosted")
	b.want("addresses with the host's network", h.Status.PodIP, h.Status.HostIP)
	b.create("client", brief(workload("c", "run",
		fmt.Sprintf("get http://%s:8080/", p.Status.PodIP),
		fmt.Sprintf("get http://%s:%d/", p.Status.HostIP, port),
		fmt.Sprintf("get http://%s:%d/", p.Status.HostIP, own))))
	b.ended("client", corev1.PodSucceeded)
	answers := strings.Split(b.logs("client", "c"), "\n")
	name, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []string{"front up", "front up", name + " up"} {
		if !strings.HasPrefix(answers[i], want) {
			t.Errorf("answer %d is %q, want %s", i, answers[i], want)
		}
	}
	hosts := b.in("web", "cat", "/etc/hosts")
	for _, want := range []string{p.Status.PodIP + "\tfront.shop." + b.ns + ".svc.cluster.local\tfront",
		"192.0.2.77\talias"} {
		if !strings.Contains(hosts, want) {
			t.Errorf("hosts file lacks %q:\n%s", want, hosts)
		}
	}
	b.delete("web", 0, soon)
	b.create("late", brief(workload("c", "get", "--timeout", "2s", fmt.Sprintf("http://%s:%d/", p.Status.HostIP, port))))
	b.ended("late", corev1.PodFailed)
}
