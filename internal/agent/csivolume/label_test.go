package csivolume

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
)

// fileLabel stands for SELinux, which most machines do not have: the type of files is container_file_t.
func fileLabel(o *corev1.SELinuxOptions) (string, error) {
	return "system_u:object_r:container_file_t:" + o.Level, nil
}

func labels(spec *storagev1.CSIDriverSpec) {
	yes := true
	spec.SELinuxMount = &yes
}

func forOnePod(pv *corev1.PersistentVolume) {
	pv.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOncePod}
}

// podWithLevels returns a pod with one container for each level, which mounts the volume. For the level "", the
// container has no SELinux options.
func podWithLevels(uid string, levels ...string) *corev1.Pod {
	pod := podOfUID(uid)
	for _, level := range levels {
		c := corev1.Container{VolumeMounts: []corev1.VolumeMount{{Name: "data"}}}
		if level != "" {
			c.SecurityContext = &corev1.SecurityContext{SELinuxOptions: &corev1.SELinuxOptions{Level: level}}
		}
		pod.Spec.Containers = append(pod.Spec.Containers, c)
	}
	return pod
}

// TestLabels: which volumes are mounted with a label, by the driver's seLinuxMount, the pod's seLinuxChangePolicy, and
// the options of the containers that mount the volume.
func TestLabels(t *testing.T) {
	const level, label = "s0:c1,c2", "system_u:object_r:container_file_t:s0:c1,c2"
	recursive := corev1.SELinuxChangePolicyRecursive
	one, device := volumeOf(t, "d", "v1", forOnePod), volumeOf(t, "d", "v1", forOnePod, block)
	for name, c := range map[string]struct {
		driver *storagev1.CSIDriver
		pod    *corev1.Pod
		change func(*corev1.Pod)
		source *Source
		label  string
		fails  bool
	}{
		"one container":       {detached(labels), podWithLevels("a", level), nil, one, label, false},
		"one with options":    {detached(labels), podWithLevels("a", level, ""), nil, one, label, false},
		"the same in two":     {detached(labels), podWithLevels("a", level, level), nil, one, label, false},
		"another in each":     {detached(labels), podWithLevels("a", level, "s0:c3"), nil, one, "", true},
		"no options":          {detached(labels), podWithLevels("a", ""), nil, one, "", false},
		"the driver does not": {detached(), podWithLevels("a", level), nil, one, "", false},
		"for several pods":    {detached(labels), podWithLevels("a", level), nil, volumeOf(t, "d", "v1"), "", false},
		"a device":            {detached(labels), podWithLevels("a", level), nil, device, "", false},
		"seLinuxChangePolicy": {detached(labels), podWithLevels("a", level), func(p *corev1.Pod) {
			p.Spec.SecurityContext = &corev1.PodSecurityContext{SELinuxChangePolicy: &recursive}
		}, one, "", false},
		"the pod's options": {detached(labels), podWithLevels("a", ""), func(p *corev1.Pod) {
			p.Spec.SecurityContext = &corev1.PodSecurityContext{SELinuxOptions: &corev1.SELinuxOptions{Level: level}}
		}, one, label, false},
		"without a level": {detached(labels), podWithLevels("a", ""), func(p *corev1.Pod) {
			p.Spec.SecurityContext = &corev1.PodSecurityContext{SELinuxOptions: &corev1.SELinuxOptions{Type: "t"}}
		}, one, "", false},
		"a container without the volume": {detached(labels), podWithLevels("a", level, "s0:c3"), func(p *corev1.Pod) {
			p.Spec.Containers[1].VolumeMounts = nil
		}, one, label, false},
	} {
		if c.change != nil {
			c.change(c.pod)
		}
		k := &Manager{Options: Options{Label: fileLabel}}
		if got, err := k.labelOf(c.driver, c.pod, "data", c.source); got != c.label || (err != nil) != c.fails {
			t.Errorf("%s: %q, %v, want %q", name, got, err, c.label)
		}
		k.Label = nil
		if got, err := k.labelOf(c.driver, c.pod, "data", c.source); got != "" || err != nil {
			t.Errorf("%s, without SELinux: %q, %v", name, got, err)
		}
	}
}

// TestLabelOption: drivers receive the label as a mount option when they stage and publish, and the records have it. A
// volume is staged again for a pod with another label, also after a restart of the agent.
func TestLabelOption(t *testing.T) {
	r := newRig(t)
	d := startDriver(t, t.TempDir())
	r.put("driver/d", detached(labels))
	r.add("d", d.client(), stages)
	start := func() {
		r.start()
		r.Manager.Options.Label = fileLabel
	}
	start()
	a, b := podWithLevels("a", "s0:c1,c2"), podWithLevels("b", "s0:c3")
	r.place(a, volumeOf(t, "d", "v1", forOnePod))
	const option = `context="system_u:object_r:container_file_t:s0:c1,c2"`
	if flags := d.publish[0].VolumeCapability.GetMount().MountFlags; !slices.Equal(flags, []string{option}) {
		t.Errorf("mount flags %q, want %s", flags, option)
	}
	for _, target := range []string{r.staging(volumeOf(t, "d", "v1").id), r.target(volumeOf(t, "d", "v1").id, "a")} {
		record, err := readRecord(target)
		if err != nil || labelOption(record[keyLabel]) != option {
			t.Errorf("record of %s: %v, %v", target, record, err)
		}
	}
	start()
	r.place(a, volumeOf(t, "d", "v1", forOnePod))
	expectCalls(t, d, "stage v1", "publish v1")
	if _, err := r.Want(t.Context(), b, "data", volumeOf(t, "d", "v1", forOnePod)); err == nil {
		t.Error("two pods have the volume")
	}
	r.release(a)
	r.place(b, volumeOf(t, "d", "v1", forOnePod))
	expectCalls(t, d, "stage v1", "publish v1", "unpublish v1", "unstage v1", "stage v1", "publish v1")
	r.release(b)
	r.empty()
}
