package unit

import "testing"

func TestAmount(t *testing.T) {
	var absent Amount[Bytes]
	zero, one := Of(Bytes(0)), Of(GiB)
	for _, c := range []struct {
		got  Amount[Bytes]
		want string
	}{
		{absent, "absent"}, {zero, "0"}, {one, "1Gi"},
		{absent.Plus(absent), "absent"}, {absent.Plus(zero), "0"}, {one.Plus(one), "2Gi"},
		{absent.Max(zero), "0"}, {zero.Max(absent), "0"}, {one.Max(zero), "1Gi"}, {absent.Max(Of(Bytes(-1))), "-1"},
	} {
		if c.got.String() != c.want {
			t.Errorf("got %v, want %s", c.got, c.want)
		}
	}
	if _, ok := absent.Get(); ok || absent.IsSet() || absent.OrZero() != 0 || !zero.IsSet() {
		t.Error("absent and zero were confused")
	}
}

func TestLimit(t *testing.T) {
	var kept Limit[Bytes]
	for _, c := range []struct {
		limit                 Limit[Bytes]
		text                  string
		kept, unlimited, some bool
	}{
		{kept, "kept", true, false, false},
		{Unlimited[Bytes](), "unlimited", false, true, false},
		{LimitTo(Bytes(0)), "0", false, false, true},
		{LimitTo(MiB), "1Mi", false, false, true},
	} {
		_, some := c.limit.Get()
		if c.limit.String() != c.text || c.limit.IsKept() != c.kept || c.limit.IsUnlimited() != c.unlimited ||
			some != c.some {
			t.Errorf("%v: kept %v, unlimited %v, set %v", c.limit, c.limit.IsKept(), c.limit.IsUnlimited(), some)
		}
	}
}
