package volume

import (
	"context"
	"encoding/base64"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// rig is a Manager on a temporary root directory, with objects and tokens that the test controls.
type rig struct {
	*Manager
	t    *testing.T
	root string

	mu       sync.Mutex
	objects  map[string]any // "configmap/name" or "secret/name"
	tracked  map[types.UID]bool
	requests int           // tokens requested
	tokenErr error         // answer to the next token requests
	life     time.Duration // lifetime of issued tokens
}

func needRoot(t *testing.T) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root: volumes are mounts and files of other users")
	}
}

func newRig(t *testing.T) *rig { t.Helper(); return newRigIn(t, t.TempDir()) }

// newRigIn uses a root directory that the test chooses.
func newRigIn(t *testing.T, root string) *rig {
	t.Helper()
	needRoot(t)
	r := &rig{t: t, root: root, objects: map[string]any{}, tracked: map[types.UID]bool{}, life: time.Hour}
	t.Cleanup(func() {
		if err := UnmountAll(r.root); err != nil {
			t.Error(err)
		}
	})
	r.restart()
	return r
}

// restart puts a new Manager on the same root directory, as a restarted agent does.
func (r *rig) restart() {
	r.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	r.t.Cleanup(cancel)
	var err error
	r.Manager, err = New(ctx, Options{
		RootDir: r.root, ClusterDomain: "cluster.local", Objects: r, Tokens: r.giveToken, Claims: r, MaxPods: 10,
		NodeLabels: func() map[string]string { return map[string]string{"kubernetes.io/hostname": "here"} },
		Allocatable: func() corev1.ResourceList {
			return corev1.ResourceList{"memory": resource.MustParse("1Gi"), "cpu": resource.MustParse("2")}
		},
	})
	if err != nil {
		r.t.Fatal(err)
	}
}

func (r *rig) Track(pod *corev1.Pod) error {
	r.mu.Lock()
	r.tracked[pod.UID] = true
	r.mu.Unlock()
	return nil
}
func (r *rig) Untrack(uid types.UID)   { r.mu.Lock(); delete(r.tracked, uid); r.mu.Unlock() }
func (r *rig) put(key string, obj any) { r.mu.Lock(); r.objects[key] = obj; r.mu.Unlock() }
func (r *rig) drop(key string)         { r.mu.Lock(); delete(r.objects, key); r.mu.Unlock() }

func (r *rig) ConfigMap(_ context.Context, _, name string) (*corev1.ConfigMap, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if cm, ok := r.objects["configmap/"+name]; ok {
		return cm.(*corev1.ConfigMap), nil
	}
	return nil, apierrors.NewNotFound(corev1.Resource("configmap"), name)
}

func (r *rig) Claim(_ context.Context, _, name string) (*corev1.PersistentVolumeClaim, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if c, ok := r.objects["claim/"+name].(*corev1.PersistentVolumeClaim); ok {
		return c, nil
	}
	return nil, apierrors.NewNotFound(corev1.Resource("persistentvolumeclaims"), name)
}

func (r *rig) Volume(_ context.Context, name string) (*corev1.PersistentVolume, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if v, ok := r.objects["volume/"+name].(*corev1.PersistentVolume); ok {
		return v, nil
	}
	return nil, apierrors.NewNotFound(corev1.Resource("persistentvolumes"), name)
}

func (r *rig) Secret(_ context.Context, _, name string) (*corev1.Secret, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if s, ok := r.objects["secret/"+name]; ok {
		return s.(*corev1.Secret), nil
	}
	return nil, apierrors.NewNotFound(corev1.Resource("secret"), name)
}

func (r *rig) giveToken(_ context.Context, _, _ string,
	request *authenticationv1.TokenRequest) (*authenticationv1.TokenRequest, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.requests++
	if r.tokenErr != nil {
		return nil, r.tokenErr
	}
	now := time.Now()
	expires := now.Add(r.life)
	out := request.DeepCopy()
	seconds := int64(r.life.Seconds())
	out.Spec.ExpirationSeconds = &seconds
	claims := fmt.Sprintf(`{"iat":%d,"exp":%d,"kubernetes.io":{"pod":{"uid":%q}},"n":%d}`, now.Unix(), expires.Unix(),
		request.Spec.BoundObjectRef.UID, r.requests)
	out.Status = authenticationv1.TokenRequestStatus{
		Token:               "e30." + base64.RawURLEncoding.EncodeToString([]byte(claims)) + ".sig",
		ExpirationTimestamp: metav1.NewTime(expires),
	}
	return out, nil
}

func (r *rig) asked() int { r.mu.Lock(); defer r.mu.Unlock(); return r.requests }

func (r *rig) mustSetUp(pod *corev1.Pod) {
	r.t.Helper()
	if err := r.SetUp(context.Background(), pod); err != nil {
		r.t.Fatal(err)
	}
}

// read returns a file below the rig's root.
func (r *rig) read(elements ...string) string {
	r.t.Helper()
	data, err := os.ReadFile(filepath.Join(append([]string{r.root}, elements...)...))
	if err != nil {
		r.t.Fatal(err)
	}
	return string(data)
}

// eventually waits for a condition that a background goroutine fulfils.
func (r *rig) eventually(what string, done func() bool) {
	r.t.Helper()
	deadline := time.After(5 * time.Second)
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for !done() {
		select {
		case <-tick.C:
		case <-deadline:
			r.t.Fatalf("not within 5 s: %s", what)
		}
	}
}

func configMap(name string, data map[string]string) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name}, Data: data}
}

func secret(name string, data map[string]string) *corev1.Secret {
	s := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name}, Data: map[string][]byte{}}
	for k, v := range data {
		s.Data[k] = []byte(v)
	}
	return s
}

// podWith returns a pod of one container that mounts each volume at /<name>.
func podWith(uid string, volumes ...corev1.Volume) *corev1.Pod {
	c := corev1.Container{Name: "c", TerminationMessagePath: "/dev/termination-log"}
	for _, v := range volumes {
		c.VolumeMounts = append(c.VolumeMounts, corev1.VolumeMount{Name: v.Name, MountPath: "/" + v.Name})
	}
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "pod-" + uid, UID: types.UID(uid),
			Labels: map[string]string{"app": "till"}},
		Spec: corev1.PodSpec{ServiceAccountName: "sa", Containers: []corev1.Container{c}, Volumes: volumes},
	}
}

func volumeOf(name string, source corev1.VolumeSource) corev1.Volume {
	return corev1.Volume{Name: name, VolumeSource: source}
}

// fromConfigMap returns a volume of all keys of a config map.
func fromConfigMap(name string) corev1.VolumeSource {
	return corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{
		LocalObjectReference: corev1.LocalObjectReference{Name: name},
	}}
}

// withToken returns a projected volume of one file, a service account token.
func withToken(file string) corev1.VolumeSource {
	return corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{
		Sources: []corev1.VolumeProjection{{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{Path: file}}},
	}}
}

// plainVolume is the volume that the API server adds to every pod.
func plainVolume() corev1.Volume {
	seconds := int64(3607)
	return volumeOf("kube-api-access-x",
		corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{
			{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{ExpirationSeconds: &seconds, Path: "token"}},
			{ConfigMap: &corev1.ConfigMapProjection{LocalObjectReference: corev1.LocalObjectReference{Name: "kube-root-ca.crt"},
				Items: []corev1.KeyToPath{{Key: "ca.crt", Path: "ca.crt"}}}},
			{DownwardAPI: &corev1.DownwardAPIProjection{Items: []corev1.DownwardAPIVolumeFile{{Path: "namespace",
				FieldRef: &corev1.ObjectFieldSelector{APIVersion: "v1", FieldPath: "metadata.namespace"}}}}},
		}}})
}

func itoa(n uint32) string  { return strconv.FormatUint(uint64(n), 10) }
func itoa8(n uint32) string { return strconv.FormatUint(uint64(n), 8) }
