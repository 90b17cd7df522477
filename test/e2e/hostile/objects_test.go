//go:build e2e

package hostile

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/url"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

func quantity(text string) resource.Quantity { return resource.MustParse(text) }

// inObjects are attacks by pods and objects at the limits of what the API accepts, and by requests about them.
var inObjects = []attack{
	{name: "variables", does: "has 10,000 variables", pod: variables(10_000, func(i int) string {
		return "value " +
			strconv.Itoa(i)
	}), holds: runs},
	{
		name: "doubling", does: "has 40 variables of which each is the one before, twice: together a terabyte",
		pod: variables(40, func(i int) string {
			if i == 0 {
				return "x"
			}
			return fmt.Sprintf("$(V%05d)$(V%05d)", i-1, i-1)
		}), holds: waits("CreateContainerConfigError"),
	},
	{
		name: "repeated", does: "has 4,000 variables that are all one annotation of 200 KiB: together 800 MiB",
		pod: func(_ *siege, p *corev1.Pod) {
			p.Annotations = map[string]string{"a": strings.Repeat("x", 200<<10)}
			for i := range 4000 {
				p.Spec.Containers[0].Env = append(p.Spec.Containers[0].Env, corev1.EnvVar{
					Name:      fmt.Sprintf("V%05d", i),
					ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.annotations['a']"}},
				})
			}
		}, holds: waits("CreateContainerConfigError"),
	},
	{
		name: "arguments", does: "has arguments that repeat a variable: together 800 MiB",
		pod: func(_ *siege, p *corev1.Pod) {
			c := &p.Spec.Containers[0]
			c.Env = []corev1.EnvVar{{Name: "A", Value: strings.Repeat("x", 64<<10)}}
			c.Args = []string{"echo"}
			for range 100 {
				c.Args = append(c.Args, strings.Repeat("$(A)", 128))
			}
		}, holds: waits("CreateContainerConfigError"),
	},
	{
		name: "downward",
		does: "has a volume of 2,000 files that are all one annotation of 200 KiB: together 400 MiB of the node's memory",
		pod: func(_ *siege, p *corev1.Pod) {
			p.Annotations = map[string]string{"a": strings.Repeat("x", 200<<10)}
			source := &corev1.DownwardAPIVolumeSource{}
			for i := range 2000 {
				source.Items = append(source.Items, corev1.DownwardAPIVolumeFile{
					Path: fmt.Sprintf("f%04d", i), FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.annotations['a']"},
				})
			}
			volume(p, corev1.VolumeSource{DownwardAPI: source})
		}, holds: holdsLittle,
	},
	{
		name: "keys", does: "has 12 volumes of one secret with 8,000 keys", prepare: secretOf("keys", 8000, 1),
		pod: func(_ *siege, p *corev1.Pod) {
			for range 12 {
				volume(p, corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "keys"}})
			}
		}, holds: holdsLittle,
	},
	{
		name: "secret", does: "has a secret of 900 KiB in 400 files", prepare: secretOf("secret", 1, 900<<10),
		pod: func(_ *siege, p *corev1.Pod) {
			source := &corev1.SecretVolumeSource{SecretName: "secret"}
			for i := range 400 {
				source.Items = append(source.Items, corev1.KeyToPath{Key: "k00000", Path: fmt.Sprintf("f%d", i)})
			}
			volume(p, corev1.VolumeSource{Secret: source})
		}, holds: holdsLittle,
	},
	{
		name: "annotations", does: "has all the annotations and labels that the API takes",
		pod: func(_ *siege, p *corev1.Pod) {
			p.Annotations = map[string]string{}
			for i := range 60 {
				p.Annotations[fmt.Sprintf("%s/%s%02d", strings.Repeat("d.", 100)+"dev", strings.Repeat("a", 61),
					i)] = strings.Repeat("\n\x00\u2028\"", 550)
				p.Labels[fmt.Sprintf("%s/%s%02d", strings.Repeat("d.", 100)+"dev", strings.Repeat("l", 61),
					i)] = strings.Repeat("v", 63)
			}
		}, holds: runs,
	},
	{
		name: "names", does: "has the longest names that the API takes",
		pod: func(_ *siege, p *corev1.Pod) {
			p.Name += "." + strings.Repeat("n.", 126-len(p.Name)/2-1) + "n"
			p.Spec.Containers[0].Name = strings.Repeat("c", 63)
			p.Spec.Hostname = strings.Repeat("h", 63)
			p.Spec.Subdomain = strings.Repeat("s", 63)
		}, holds: arrives,
	},
	{
		name: "messages", does: "has 60 containers that each leave 4 KiB of last words",
		pod: func(_ *siege, p *corev1.Pod) {
			p.Spec.RestartPolicy = corev1.RestartPolicyNever
			p.Spec.Containers = nil
			for i := range 60 {
				p.Spec.Containers = append(p.Spec.Containers, container(fmt.Sprintf("c%d", i), "exit", "--code", "1", "--message",
					strings.Repeat("\u00e9\"\n", 1024)))
			}
		}, holds: both(ends, says("\u00e9")), by: []user{nobody},
	},
	{
		name: "ephemeral", does: "has 40 ephemeral containers added while it runs", by: onlyRoot,
		pod: run("sleep infinity"), during: addEphemeral(40), holds: runs,
	},
	{
		name: "again", does: "is deleted and made again under its name, ten times", by: onlyRoot,
		pod: run("ignore-term"), during: again(10), holds: func(*siege, *corev1.Pod) error { return nil },
	},
	{
		name: "no-registry", does: "has an image from a registry that takes the connection and says nothing", copies: 2,
		by: onlyRoot,
		pod: func(s *siege, p *corev1.Pod) {
			p.Spec.Containers[0].Image = silence(s) + "/x:1"
		}, holds: arrives,
	},
	{
		name: "port-agent", alone: true, does: "asks for the agent's own port of the node", by: onlyRoot,
		pod: func(s *siege, p *corev1.Pod) { hostPort(p, s.AgentPort) }, holds: arrives,
	},
	{
		name: "port-api", alone: true, does: "asks for the API server's port of the node", by: onlyRoot,
		pod: func(s *siege, p *corev1.Pod) {
			if u, err := url.Parse(s.Config.Host); err == nil {
				port, _ := strconv.Atoi(u.Port())
				hostPort(p, port)
			}
		}, holds: arrives,
	},
}

func hostPort(p *corev1.Pod, port int) {
	p.Spec.Containers[0].Args = []string{"http"}
	p.Spec.Containers[0].Ports = []corev1.ContainerPort{{ContainerPort: 8080, HostPort: int32(port)}}
}

func variables(count int, value func(i int) string) func(*siege, *corev1.Pod) {
	return func(_ *siege, p *corev1.Pod) {
		for i := range count {
			p.Spec.Containers[0].Env = append(p.Spec.Containers[0].Env, corev1.EnvVar{Name: fmt.Sprintf("V%05d", i),
				Value: value(i)})
		}
	}
}

func volume(p *corev1.Pod, source corev1.VolumeSource) {
	name := fmt.Sprintf("v%d", len(p.Spec.Volumes))
	p.Spec.Volumes = append(p.Spec.Volumes, corev1.Volume{Name: name, VolumeSource: source})
	p.Spec.Containers[0].VolumeMounts = append(p.Spec.Containers[0].VolumeMounts, corev1.VolumeMount{Name: name,
		MountPath: "/" + name})
}

// secretOf creates a secret with the given number of keys and of bytes in each.
func secretOf(name string, keys, size int) func(*siege) error {
	return func(s *siege) error {
		secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name}, Data: map[string][]byte{}}
		for i := range keys {
			secret.Data[fmt.Sprintf("k%05d", i)] = []byte(strings.Repeat("x", size))
		}
		_, err := s.API.CoreV1().Secrets(s.ns).Create(s.t.Context(), secret, metav1.CreateOptions{})
		if apierrors.IsAlreadyExists(err) {
			return nil
		}
		return err
	}
}

// How much of the node's memory a pod's volumes of objects may use, whatever the pod asks for. Chosen: somewhat more
// than volumelimit.PodMax, because directories and links are files too, and far less than each of these attacks asks
// for.
const (
	objectBytesMax = 80 * unit.MiB
	objectFilesMax = 20_000
)

// holdsLittle: the pod's volumes use little of the node's memory. The pod runs or waits.
func holdsLittle(s *siege, pod *corev1.Pod) error {
	if err := arrives(s, pod); err != nil {
		return err
	}
	var bytes unit.Bytes
	files := 0
	err := filepath.WalkDir(filepath.Join(s.AgentRoot(), "pods", string(pod.UID), "volumes"),
		func(_ string, e fs.DirEntry, err error) error {
			if errors.Is(err, fs.ErrNotExist) {
				return nil
			}
			if err != nil {
				return err
			}
			if info, err := e.Info(); err == nil {
				bytes += unit.Bytes(info.Size())
				files++
			}
			return nil
		})
	if bytes > objectBytesMax || files > objectFilesMax {
		return errors.Join(err, fmt.Errorf("the node holds %v in %d files for it", bytes, files))
	}
	return err
}

// arrives: the agent has reported a status of the pod, or the scheduler says why it binds it to no node.
func arrives(s *siege, pod *corev1.Pod) error {
	if pod == nil {
		return errors.New("it is gone")
	}
	if pod.Status.Phase != corev1.PodPending {
		return nil
	}
	events, err := s.API.CoreV1().Events(s.ns).List(s.t.Context(),
		metav1.ListOptions{FieldSelector: "involvedObject.uid=" + string(pod.UID)})
	if err != nil {
		return err
	}
	for _, e := range events.Items {
		if e.Source.Host == s.NodeName || e.ReportingInstance == s.NodeName || e.Reason == "FailedScheduling" {
			return nil
		}
	}
	return fmt.Errorf("nobody says why it waits: %s", describe(pod))
}

// askForLogs follows an endless log, three times, and discards what it reads.
func askForLogs(s *siege, pod *corev1.Pod) error {
	ctx, cancel := context.WithTimeout(s.t.Context(), holdsWithin)
	defer cancel()
	if _, err := s.sight.until(ctx, pod, time.Now(), func(p *corev1.Pod) error { return comes(s, p) }); err != nil {
		return err
	}
	for range 3 {
		lines := int64(1)
		stream, err := s.API.CoreV1().Pods(s.ns).GetLogs(pod.Name, &corev1.PodLogOptions{TailLines: &lines}).Stream(ctx)
		if err != nil {
			continue // the pod has been evicted by now, so there is no log
		}
		_, _ = io.CopyN(io.Discard, stream, int64(64*unit.MiB))
		stream.Close()
	}
	return nil
}

// addEphemeral adds ephemeral containers, ten at a time.
func addEphemeral(count int) func(*siege, *corev1.Pod) error {
	return func(s *siege, pod *corev1.Pod) error {
		for done := 0; done < count; done += 10 {
			now, err := s.API.CoreV1().Pods(s.ns).Get(s.t.Context(), pod.Name, metav1.GetOptions{})
			if err != nil {
				return err
			}
			for i := done; i < done+10; i++ {
				now.Spec.EphemeralContainers = append(now.Spec.EphemeralContainers, corev1.EphemeralContainer{
					EphemeralContainerCommon: corev1.EphemeralContainerCommon{Name: fmt.Sprintf("e%d", i),
						Image: now.Spec.Containers[0].Image, Args: []string{"exit"}},
				})
			}
			if _, err := s.API.CoreV1().Pods(s.ns).UpdateEphemeralContainers(s.t.Context(), pod.Name, now,
				metav1.UpdateOptions{}); err != nil {
				if apierrors.IsConflict(err) {
					done -= 10
					continue
				}
				return err
			}
		}
		return nil
	}
}

// again deletes a pod with a grace period of 0 and creates it again, without waiting. The last pod is gone when it
// returns.
func again(times int) func(*siege, *corev1.Pod) error {
	return func(s *siege, pod *corev1.Pod) error {
		old := pod.UID
		for range times {
			if err := s.API.CoreV1().Pods(s.ns).Delete(s.t.Context(), pod.Name, now); err != nil {
				return err
			}
			next := pod.DeepCopy()
			next.ObjectMeta = metav1.ObjectMeta{Name: pod.Name, Namespace: pod.Namespace}
			next.Spec.NodeName = s.NodeName
			made, err := s.neighbour.create(s.t.Context(), next)
			if err != nil {
				return err
			}
			old = made.UID
		}
		pod.UID = old
		return nil
	}
}

// silence is the address of a listener that accepts connections and sends nothing, until the test ends.
func silence(s *siege) string {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		s.t.Error(err)
		return ""
	}
	s.t.Cleanup(func() { listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			s.t.Cleanup(func() { conn.Close() })
		}
	}()
	return listener.Addr().String()
}
