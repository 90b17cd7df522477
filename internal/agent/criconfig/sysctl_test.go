package criconfig

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// TestSysctlNames: the sysctl that is set is the one that admission has checked, in either spelling: a dot in an
// interface's name stays in it.
func TestSysctlNames(t *testing.T) {
	pod := &corev1.Pod{Spec: corev1.PodSpec{SecurityContext: &corev1.PodSecurityContext{Sysctls: []corev1.Sysctl{
		{Name: "net/ipv4/conf/eth0.1/rp_filter", Value: "1"}, {Name: "net.ipv4.tcp_syncookies", Value: "0"},
	}}}}
	got := sysctls(pod)
	if len(got) != 2 || got["net.ipv4.conf.eth0/1.rp_filter"] != "1" || got["net.ipv4.tcp_syncookies"] != "0" {
		t.Errorf("sysctls %v", got)
	}
}
