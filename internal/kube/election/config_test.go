package election

import (
	"os"
	"strings"
	"testing"
	"time"
)

func TestIdentities(t *testing.T) {
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	if a, b := NewIdentity(), NewIdentity(); a == b || !strings.HasPrefix(a, host+"_") {
		t.Errorf("two processes of %s are %s and %s", host, a, b)
	}
}

// TestCheckAtTheBounds: values just above or below a bound are refused, also by New.
func TestCheckAtTheBounds(t *testing.T) {
	for _, q := range []struct {
		change func(*Config)
		bad    string // the flag in the error; empty: no error
	}{
		{func(c *Config) { c.RenewDeadline = 2401 * time.Millisecond }, ""},
		{func(c *Config) { c.RenewDeadline = 2400 * time.Millisecond }, "renew-deadline"},
		{func(c *Config) { c.LeaseDuration = c.RenewDeadline + 1 }, ""},
		{func(c *Config) { c.LeaseDuration = c.RenewDeadline }, "lease-duration"},
		{func(c *Config) { c.LeaseDuration, c.RenewDeadline, c.RetryPeriod = time.Second, 500e6, 1e8 }, ""},
		{func(c *Config) { c.LeaseDuration, c.RenewDeadline, c.RetryPeriod = time.Second-1, 500e6, 1e8 }, "lease-duration"},
		{func(c *Config) { c.RetryPeriod = 1 }, ""},
		{func(c *Config) { c.RetryPeriod = 0 }, "retry-period"},
		{func(c *Config) { c.Name = "" }, "resource-name"},
		{func(c *Config) { c.Namespace = "A" }, "resource-namespace"},
	} {
		c := Default("test")
		q.change(&c)
		_, err := New(c, connection{}, nil)
		if named := err != nil && strings.Contains(err.Error(), "--leader-elect-"+q.bad+":"); named != (q.bad != "") ||
			err != nil && q.bad == "" {
			t.Errorf("%+v: %v, want a word about %q", c, err, q.bad)
		}
	}
}

func TestCheckNamesEveryProblem(t *testing.T) {
	err := Config{Namespace: "A", Name: "", LeaseDuration: time.Millisecond, RenewDeadline: time.Second}.Check()
	for _, flag := range []string{"lease-duration", "retry-period", "resource-name", "resource-namespace"} {
		if err == nil || !strings.Contains(err.Error(), "--leader-elect-"+flag) {
			t.Errorf("%s is not named in: %v", flag, err)
		}
	}
	if err := Default("x").Check(); err != nil {
		t.Error(err)
	}
}
