package node

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/plimsoll-dev/plimsoll/test/cost"
)

// FuzzFlags: flags that the parsers accept yield valid labels, taints and addresses of a Node.
func FuzzFlags(f *testing.F) {
	for _, text := range []string{"192.0.2.1,2001:db8::1", "::", "fe80::1%eth0", "a=1,example.com/b=",
		"node.kubernetes.io/c=x", "a=b:NoSchedule,c:NoExecute", ",,", "=:"} {
		cost.Attack(f, text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		defer cost.Spend(t, len(text))()
		if ips, err := ParseNodeIPs(text); err == nil {
			if len(ips) > 2 || len(ips) == 2 && ips[0].Is4() == ips[1].Is4() {
				t.Errorf("--node-ip %q: %v", text, ips)
			}
			for _, ip := range ips {
				if !ip.IsValid() || ip.Is4In6() || ip.Zone() != "" {
					t.Errorf("--node-ip %q: %v", text, ip)
				}
			}
		}
		if labels, err := ParseLabels(text); err == nil {
			for key, value := range labels {
				if problems := append(validation.IsQualifiedName(key), validation.IsValidLabelValue(value)...); len(problems) > 0 {
					t.Errorf("--node-labels %q: %s=%s: %s", text, key, value, strings.Join(problems, "; "))
				}
			}
		}
		if taints, err := ParseTaints(text); err == nil {
			for _, taint := range taints {
				if len(validation.IsQualifiedName(taint.Key)) > 0 || taint.Effect == "" {
					t.Errorf("--register-with-taints %q: %v", text, taint)
				}
			}
		}
	})
}
