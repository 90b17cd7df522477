package pods

import (
	"fmt"
	"log/slog"
	"os"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/plimsoll-dev/plimsoll/internal/kube/translate"
)

// TestFirstBatch: this is the order in which a starting agent admits the pods that it finds. The pod that runs keeps
// its room, although it is the newest. Then comes the pod that ran here before and of which the runtime has nothing
// left. Then come the other pods, the oldest first, until there is no more room. Their names are in the opposite order.
func TestFirstBatch(t *testing.T) {
	log := slog.Default()
	defer slog.SetDefault(log)
	slog.SetDefault(slog.New(slog.DiscardHandler))
	t.Chdir(historiesDir(t))
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(1, "first")
		w.calm, w.images["here"] = true, true
		if err := os.MkdirAll(w.staticDir(), 0o700); err != nil {
			t.Fatal(err)
		}
		post := func(name string, age time.Duration, status corev1.PodStatus) {
			w.mu.Lock()
			defer w.mu.Unlock()
			pod := &corev1.Pod{
				ObjectMeta: metav1.ObjectMeta{
					Namespace: "ns", Name: name, UID: types.UID(name), Generation: 1,
					CreationTimestamp: metav1.NewTime(time.Now().Add(-age)),
					Annotations:       map[string]string{"kubernetes.io/config.source": "file"}, // as a pod may claim
				},
				Spec: corev1.PodSpec{
					NodeName: "node-1", DNSPolicy: corev1.DNSDefault, RestartPolicy: corev1.RestartPolicyAlways,
					Containers: []corev1.Container{{Name: "c", Image: "here", ImagePullPolicy: corev1.PullIfNotPresent}},
				},
				Status: status,
			}
			w.api.put(pod)
		}
		post("z-runs", 0, corev1.PodStatus{Phase: corev1.PodPending})
		w.begin()
		time.Sleep(10 * time.Second)
		w.crash()
		w.mu.Lock()
		w.room = 5
		w.mu.Unlock()
		post("y-ran", time.Minute, corev1.PodStatus{Phase: corev1.PodRunning})
		for i := range 9 { // a is the newest
			post(fmt.Sprintf("%c-new", 'a'+i), time.Duration(i+2)*time.Minute, corev1.PodStatus{Phase: corev1.PodPending})
		}
		w.begin()
		time.Sleep(20 * time.Second)
		synctest.Wait()
		w.mu.Lock()
		for name, pod := range w.api.pods {
			if e := w.life.runner.entryOf(types.UID(name)); e == nil || translate.IsStaticPod(e.Object()) {
				t.Errorf("%s came from the API, and the agent believes that it is static", name)
			}
			want := corev1.PodFailed
			switch name {
			case "z-runs", "y-ran", "i-new", "h-new", "g-new":
				want = corev1.PodRunning
			}
			if pod.Status.Phase != want {
				t.Errorf("%s is %s, want %s: %s", name, pod.Status.Phase, want, pod.Status.Message)
			}
		}
		if t.Failed() {
			defer t.Log(w.text())
		}
		w.mu.Unlock()
		w.crash()
	})
}
