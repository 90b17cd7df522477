package admission

import (
	"strings"
	"testing"

	"github.com/plimsoll-dev/plimsoll/test/cost"
)

func sysctls(t *testing.T, unsafe ...string) Sysctls {
	t.Helper()
	s, err := AllowSysctls(unsafe, "6.1.0-18-amd64")
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// TestSuits has each thing that a system may lack, with upstream's reason and words, and in upstream's order.
func TestSuits(t *testing.T) {
	windows, linux, none := "windows", "linux", ""
	all := System{
		OS:           "linux",
		StrictGroups: true,
		AppArmor:     true,
		Sysctls:      sysctls(t, "kernel.msg*", "net.core.somaxconn", "net/ipv4/conf/eth0.1/*"),
	}
	bare := System{OS: "linux", Sysctls: sysctls(t)}
	for name, c := range map[string]struct {
		needs           Needs
		system          System
		reason, message string
	}{
		"nothing": {Needs{}, bare, "", ""},
		"everything it has": {
			Needs{OS: "linux", OSLabel: &linux, StrictGroups: true, AppArmor: true, Sysctls: []string{"net.ipv4.tcp_wmem"}}, all,
			"", "",
		},
		"another OS": {
			Needs{OS: "windows"}, all, "PodOSNotSupported", "Failed to admit pod as the OS field doesn't match node OS",
		},
		"another OS by label": {
			Needs{OS: "windows", OSLabel: &windows}, all, "PodOSSelectorNodeLabelDoesNotMatch",
			"Failed to admit pod as the `kubernetes.io/os` label doesn't match node label",
		},
		"an empty OS label": {
			Needs{OSLabel: &none}, all, "PodOSSelectorNodeLabelDoesNotMatch",
			"Failed to admit pod as the `kubernetes.io/os` label doesn't match node label",
		},
		"strict groups": {
			Needs{StrictGroups: true, AppArmor: true}, bare, "SupplementalGroupsPolicyNotSupported",
			"SupplementalGroupsPolicy=Strict is not supported in this node",
		},
		"AppArmor": {Needs{AppArmor: true}, bare, "AppArmor", "Cannot enforce AppArmor: AppArmor is not enabled on the host"},
		"an unsafe sysctl": {
			Needs{OS: "windows", Sysctls: []string{"kernel.shm_rmid_forced", "kernel.msgmax"}}, bare, "SysctlForbidden",
			`forbidden sysctl: "kernel.msgmax" not allowlisted`,
		},
		"allowed by a pattern": {Needs{Sysctls: []string{"kernel.msgmax", "kernel/msgmnb"}}, all, "", ""},
		"allowed by its name":  {Needs{Sysctls: []string{"net.core.somaxconn"}}, all, "", ""},
		"longer than its name": {
			Needs{Sysctls: []string{"net.core.somaxconn2"}}, all, "SysctlForbidden",
			`forbidden sysctl: "net.core.somaxconn2" not allowlisted`,
		},
		"with slashes": {Needs{Sysctls: []string{"net.ipv4.conf.eth0/1.rp_filter"}}, all, "", ""},
		"a dot is not a slash": {
			Needs{Sysctls: []string{"net.ipv4.conf.eth0.1.rp_filter"}}, all, "SysctlForbidden",
			`forbidden sysctl: "net.ipv4.conf.eth0.1.rp_filter" not allowlisted`,
		},
		"the host's network": {
			Needs{HostNetwork: true, Sysctls: []string{"net.ipv4.tcp_syncookies"}}, all, "SysctlForbidden",
			`forbidden sysctl: "net.ipv4.tcp_syncookies" not allowed with host Net enabled`,
		},
		"the host's IPC": {
			Needs{HostIPC: true, Sysctls: []string{"kernel.msgmax"}}, all, "SysctlForbidden",
			`forbidden sysctl: "kernel.msgmax" not allowed with host IPC enabled`,
		},
		"another host namespace": {Needs{HostIPC: true, Sysctls: []string{"net.ipv4.tcp_syncookies"}}, all, "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			got := Suits(c.needs, c.system)
			if got == nil {
				got = &Rejection{}
			}
			if got.Reason != c.reason || got.Message != c.message {
				t.Errorf("have %s: %s\nwant %s: %s", got.Reason, got.Message, c.reason, c.message)
			}
		})
	}
}

// TestSafeSysctls: a kernel that does not keep a parameter by namespace does not make it safe.
func TestSafeSysctls(t *testing.T) {
	for kernel, want := range map[string]int{
		"6.1.0-18-amd64":  12,
		"4.15":            12,
		"4.14.336":        10,
		"4.5.0":           9,
		"3.16.0":          6,
		"3.10.0-1160.el7": 5,
		"":                5,
		"next":            5,
	} {
		s, err := AllowSysctls(nil, kernel)
		if err != nil || len(s.allowed) != want {
			t.Errorf("kernel %q: %d safe sysctls, want %d (%v)", kernel, len(s.allowed), want, err)
		}
	}
}

// TestSysctlPatterns has what an administrator may write.
func TestSysctlPatterns(t *testing.T) {
	for text, problem := range map[string]string{
		"kernel.msg*":      "",
		"net.*":            "",
		"net/core/*":       "",
		"fs.mqueue.*":      "",
		"net.ipv4.conf.*":  "",
		"kernel.sem":       "",
		"kernel.*":         "namespaced",
		"vm.swappiness":    "namespaced",
		"*":                "namespaced",
		"kernel.hostname":  "namespaced",
		"net.*.x":          "want parts",
		"net..x":           "want parts",
		"Net.core":         "want parts",
		"":                 "want parts",
		"net.core.a b":     "want parts",
		"net.core.-x":      "want parts",
		"net." + long(250): "at most",
	} {
		got := CheckSysctlPattern(text)
		if got == "" != (problem == "") || !strings.Contains(got, problem) {
			t.Errorf("%.40q: %q, want %q", text, got, problem)
		}
		if _, err := AllowSysctls([]string{text}, ""); err == nil != (problem == "") {
			t.Errorf("%.40q: %v", text, err)
		}
	}
}

func long(n int) string { return strings.Repeat("x", n) }

// FuzzSysctls: whatever is listed, nothing is allowed that a namespace does not keep, and a name and its normal form
// are the same.
func FuzzSysctls(f *testing.F) {
	cost.Attack(f, "net.core.*", "net/core/somaxconn")
	cost.Attack(f, "kernel.shm*", "kernel.shmmax")
	f.Fuzz(func(t *testing.T, pattern, name string) {
		defer cost.Spend(t, len(pattern)+len(name))()
		s, err := AllowSysctls([]string{pattern}, "6.1")
		if err != nil {
			s = Sysctls{}
		}
		if s.objection(name, false, false) == "" && sysctlSpace(NormalSysctl(name)) == "" &&
			!strings.HasPrefix(NormalSysctl(name), "kernel.shm") &&
			!strings.HasPrefix(NormalSysctl(name), "kernel.msg") && !strings.HasPrefix(NormalSysctl(name), "kernel.sem") {
			t.Errorf("%q is allowed by %q", name, pattern)
		}
		if n := NormalSysctl(name); NormalSysctl(n) != n {
			t.Errorf("%q: normal form %q has another, %q", name, n, NormalSysctl(n))
		}
	})
}
