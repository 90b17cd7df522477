//go:build e2e

package pods

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/plimsoll-dev/plimsoll/test/e2e/rig"
)

// wrong is a pod with a reference to something that does not exist or cannot be used.
type wrong struct {
	spec   func(dir string) corev1.PodSpec // dir is on the node, for this pod alone
	waits  string                          // the reason of its container
	event  string                          // the reason of the Event
	text   string                          // in the Event; where the container cannot be made, also in its status
	mend   func(dir string)                // ends the cause
	before func(dir string)                // the pod's creation; may be nil
}

// source is a volume v of a source, which the container mounts.
func source(s corev1.VolumeSource) corev1.PodSpec {
	c := workload("c", "ls", "/v")
	c.VolumeMounts = []corev1.VolumeMount{{Name: "v", MountPath: "/v"}}
	spec := brief(c)
	spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: s}}
	return spec
}

// onHost is the path of a pod's own directory on the node.
func onHost(path string, kind corev1.HostPathType) corev1.VolumeSource {
	return corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: path, Type: &kind}}
}

func variable(name string, from corev1.EnvVarSource) []corev1.EnvVar {
	return []corev1.EnvVar{{Name: name, ValueFrom: &from}}
}

func local(name string) corev1.LocalObjectReference { return corev1.LocalObjectReference{Name: name} }

// wrongReferences are the references of the table, by the name of the pod.
func (b bench) wrongReferences() map[string]wrong {
	config := func(name string) func(string) {
		return func(string) { b.configMap(name, map[string]string{"a": "here"}) }
	}
	secret := func(name string) func(string) {
		return func(string) { b.secret(name, corev1.SecretTypeOpaque, "a", "here") }
	}
	env := func(list []corev1.EnvVar, from ...corev1.EnvFromSource) func(string) corev1.PodSpec {
		return func(string) corev1.PodSpec {
			c := workload("c", "env")
			c.Env, c.EnvFrom = list, from
			return brief(c)
		}
	}
	const unmade = "CreateContainerConfigError"
	yes := true
	return map[string]wrong{
		"env-key": {
			spec: env(variable("A",
				corev1.EnvVarSource{ConfigMapKeyRef: &corev1.ConfigMapKeySelector{LocalObjectReference: local("keys"), Key: "b"}})),
			waits: unmade, event: "Failed", text: "couldn't find key b in ConfigMap " + b.ns + "/keys",
			before: config("keys"), mend: func(string) { b.addKey("keys", "b") },
		},
		"env-secret-key": {
			spec: env(variable("A",
				corev1.EnvVarSource{SecretKeyRef: &corev1.SecretKeySelector{LocalObjectReference: local("pins"), Key: "b"}})),
			waits: unmade, event: "Failed", text: "couldn't find key b in Secret " + b.ns + "/pins",
			before: secret("pins"), mend: func(string) { b.addSecretKey("pins", "b") },
		},
		"env-from": {
			spec:  env(nil, corev1.EnvFromSource{SecretRef: &corev1.SecretEnvSource{LocalObjectReference: local("from")}}),
			waits: unmade, event: "Failed", text: `secret "from" not found`, mend: secret("from"),
		},
		"volume-secret": {
			spec: func(string) corev1.PodSpec {
				return source(corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "mounted"}})
			},
			waits: "ContainerCreating", event: "FailedMount",
			text: `MountVolume.SetUp failed for volume "v" : secret "mounted" not found`,
			mend: secret("mounted"),
		},
		"volume-key": {
			spec: func(string) corev1.PodSpec {
				return source(corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{
					LocalObjectReference: local("items"), Items: []corev1.KeyToPath{{Key: "b", Path: "b"}},
				}})
			},
			waits: "ContainerCreating", event: "FailedMount", text: "configmap references non-existent config key: b",
			before: config("items"), mend: func(string) { b.addKey("items", "b") },
		},
		"account": {
			spec: func(string) corev1.PodSpec {
				spec := source(corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{
					{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{Path: "token"}},
				}}})
				spec.ServiceAccountName, spec.SchedulingGates = "teller", []corev1.PodSchedulingGate{{Name: "example.com/wait"}}
				return spec
			},
			waits: "ContainerCreating", event: "FailedMount", text: `failed to fetch token: serviceaccounts "teller" not found`,
			before: func(string) { b.account("teller") }, mend: func(string) { b.account("teller") },
		},
		"claim": {
			spec: func(string) corev1.PodSpec {
				spec := source(corev1.VolumeSource{
					PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "later"},
				})
				spec.NodeName = b.NodeName
				return spec
			},
			waits: "ContainerCreating", event: "FailedMount", text: `persistentvolumeclaims "later" not found`,
			mend: func(dir string) { b.boundClaim("later", dir) },
		},
		"host-path": {
			spec: func(dir string) corev1.PodSpec {
				return source(onHost(filepath.Join(dir, "later"), corev1.HostPathDirectory))
			},
			waits: "ContainerCreating", event: "FailedMount", text: "is not a directory",
			mend: func(dir string) { b.do(os.Mkdir(filepath.Join(dir, "later"), 0o755)) },
		},
		"escape": {
			spec: func(dir string) corev1.PodSpec {
				spec := source(onHost(dir, corev1.HostPathDirectory))
				spec.Containers[0].VolumeMounts[0].SubPath = "out"
				return spec
			},
			waits: unmade, event: "Failed", text: `failed to prepare subPath for volumeMount "v" of container "c"`,
			before: func(dir string) { b.do(os.Symlink("/etc", filepath.Join(dir, "out"))) },
			mend: func(dir string) {
				b.do(os.Remove(filepath.Join(dir, "out")))
				b.do(os.Mkdir(filepath.Join(dir, "out"), 0o755))
			},
		},
		"sub-path-expr": {
			spec: func(dir string) corev1.PodSpec {
				spec := source(onHost(dir, corev1.HostPathDirectory))
				spec.Containers[0].VolumeMounts[0].SubPathExpr = "$(A)"
				spec.Containers[0].Env = variable("A", corev1.EnvVarSource{ConfigMapKeyRef: &corev1.ConfigMapKeySelector{
					LocalObjectReference: local("name"), Key: "a", Optional: &yes,
				}})
				return spec
			},
			waits: unmade, event: "Failed", text: "missing value for A", mend: config("name"),
		},
	}
}

// For every wrong reference an Event and the status say what is wrong, in the kubelet's words. Nothing of the pod runs
// meanwhile, and no other pod is affected. When the cause is gone the pod starts, and no container of it was restarted.
func TestWrongReferences(t *testing.T) {
	b := at(t)
	b.create("neighbour", lasting(workload("c", "http")))
	calm := b.ready("neighbour")
	all, dirs := b.wrongReferences(), map[string]string{}
	for name, w := range all {
		dirs[name] = t.TempDir()
		if w.before != nil {
			w.before(dirs[name])
		}
		b.create(name, w.spec(dirs[name]))
	}
	b.loseAccount("account", "teller")
	for name, w := range all {
		p := b.until(name, "waits", soon, waiting("c", w.waits))
		if p.Status.Phase != corev1.PodPending || container(p, "c").ContainerID != "" {
			t.Errorf("%s: phase %s, container %+v", name, p.Status.Phase, container(p, "c"))
		}
		b.event(name, w.event, w.text)
		if m := container(p, "c").State.Waiting.Message; w.waits != "ContainerCreating" && !strings.Contains(m, w.text) {
			t.Errorf("%s: waits because of %q, want %q", name, m, w.text)
		}
	}
	for name, w := range all {
		w.mend(dirs[name])
	}
	for name := range all {
		if p := b.ended(name, corev1.PodSucceeded); container(p, "c").RestartCount != 0 {
			t.Errorf("%s was restarted %d times", name, container(p, "c").RestartCount)
		}
	}
	p := b.ready("neighbour")
	was, is := condition(calm, corev1.PodReady), condition(p, corev1.PodReady)
	if container(p, "c").RestartCount != 0 || !was.LastTransitionTime.Equal(&is.LastTransitionTime) {
		t.Errorf("the neighbour noticed: %+v, %+v", container(p, "c"), is)
	}
}

// Variables that refer to each other in a circle, or to none, are no failure: what cannot be expanded stays as it is.
func TestCyclicVariables(t *testing.T) {
	b := at(t)
	c := workload("c", "env", "A", "B", "C", "D")
	c.Env = []corev1.EnvVar{{Name: "A", Value: "$(B)"}, {Name: "B", Value: "$(A)"}, {Name: "C", Value: "$(C)"},
		{Name: "D", Value: "$(NONE) $$(A)"}}
	b.create("p", brief(c))
	b.ended("p", corev1.PodSucceeded)
	b.want("variables", strings.TrimSpace(b.logs("p", "c")), "$(B)\n$(B)\n$(C)\n$(NONE) $(A)")
}

func (b bench) do(err error) {
	b.t.Helper()
	if err != nil {
		b.t.Fatal(err)
	}
}

func (b bench) addKey(name, key string) {
	b.t.Helper()
	cm, err := b.API.CoreV1().ConfigMaps(b.ns).Get(b.t.Context(), name, metav1.GetOptions{})
	b.do(err)
	cm.Data[key] = "here"
	_, err = b.API.CoreV1().ConfigMaps(b.ns).Update(b.t.Context(), cm, metav1.UpdateOptions{})
	b.do(err)
}

func (b bench) addSecretKey(name, key string) {
	b.t.Helper()
	s, err := b.API.CoreV1().Secrets(b.ns).Get(b.t.Context(), name, metav1.GetOptions{})
	b.do(err)
	s.Data[key] = []byte("here")
	_, err = b.API.CoreV1().Secrets(b.ns).Update(b.t.Context(), s, metav1.UpdateOptions{})
	b.do(err)
}

// account makes a service account.
func (b bench) account(name string) {
	b.t.Helper()
	object := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: name}}
	_, err := b.API.CoreV1().ServiceAccounts(b.ns).Create(b.t.Context(), object, metav1.CreateOptions{})
	b.do(err)
}

// loseAccount deletes the service account of a pod with a scheduling gate, and then removes the gate. (The API server
// refuses to create a pod whose account does not exist.)
func (b bench) loseAccount(pod, account string) {
	b.t.Helper()
	b.do(b.API.CoreV1().ServiceAccounts(b.ns).Delete(b.t.Context(), account, metav1.DeleteOptions{}))
	rig.Eventually(b.t, soon, "the pod's gate is removed", func(ctx context.Context) error {
		p, err := b.API.CoreV1().Pods(b.ns).Get(ctx, pod, metav1.GetOptions{})
		if err != nil {
			return err
		}
		p.Spec.SchedulingGates = nil
		_, err = b.API.CoreV1().Pods(b.ns).Update(ctx, p, metav1.UpdateOptions{})
		return err
	})
}

// boundClaim makes a claim that is bound to a directory of the node.
func (b bench) boundClaim(name, dir string) {
	b.t.Helper()
	none, volume := "", b.ns+"-"+name
	size := corev1.ResourceList{corev1.ResourceStorage: quantity("1Gi")}
	access := []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}
	_, err := b.API.CoreV1().PersistentVolumes().Create(b.t.Context(), &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: volume},
		Spec: corev1.PersistentVolumeSpec{
			Capacity: size, AccessModes: access, ClaimRef: &corev1.ObjectReference{Namespace: b.ns, Name: name},
			PersistentVolumeSource: corev1.PersistentVolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: dir}},
		},
	}, metav1.CreateOptions{})
	b.do(err)
	b.t.Cleanup(func() {
		_ = b.API.CoreV1().PersistentVolumes().Delete(context.Background(), volume, metav1.DeleteOptions{})
	})
	_, err = b.API.CoreV1().PersistentVolumeClaims(b.ns).Create(b.t.Context(), &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes: access, StorageClassName: &none, VolumeName: volume,
			Resources: corev1.VolumeResourceRequirements{Requests: size},
		},
	}, metav1.CreateOptions{})
	b.do(err)
}
