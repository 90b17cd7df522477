package stats

import (
	"math"
	"testing"
)

func same(a, b float64) bool {
	return a == b || math.Abs(a-b) < 1e-12 || math.IsNaN(a) && math.IsNaN(b)
}

func TestQuantileIsNearestRank(t *testing.T) {
	hundred := make([]float64, 100) // 100 down to 1: order must not matter
	for i := range hundred {
		hundred[i] = float64(100 - i)
	}
	for _, c := range []struct {
		name    string
		samples []float64
		p, want float64
	}{
		{"none", nil, 0.5, math.NaN()},
		{"one", []float64{7}, 0.99, 7},
		{"one, lowest", []float64{7}, 0, 7},
		{"p99 of a hundred is the 99th", hundred, 0.99, 99},
		{"p50 of a hundred is the 50th", hundred, 0.50, 50},
		{"p100 is the maximum", hundred, 1, 100},
		{"p99 of three is the maximum", []float64{3, 1, 2}, 0.99, 3},
	} {
		if got := Quantile(c.samples, c.p); !same(got, c.want) {
			t.Errorf("%s: Quantile(p=%v) = %v, want %v", c.name, c.p, got, c.want)
		}
	}
	if hundred[0] != 100 {
		t.Error("Quantile reordered its argument")
	}
}

func TestMedianSpreadRatio(t *testing.T) {
	for _, c := range []struct {
		samples        []float64
		median, spread float64
	}{
		{nil, math.NaN(), math.NaN()},
		{[]float64{4}, 4, math.NaN()},
		{[]float64{4, 2}, 3, 2. / 3},
		{[]float64{10, 9, 12}, 10, 0.3},
		{[]float64{0, 0}, 0, math.NaN()},
	} {
		if got := Median(c.samples); !same(got, c.median) {
			t.Errorf("Median(%v) = %v, want %v", c.samples, got, c.median)
		}
		if got := Spread(c.samples); !same(got, c.spread) {
			t.Errorf("Spread(%v) = %v, want %v", c.samples, got, c.spread)
		}
	}
	for _, c := range []struct{ a, b, want float64 }{
		{1, 4, 0.25}, {0, 3, 0}, {1, 0, math.NaN()}, {0, 0, math.NaN()}, {math.NaN(), 1, math.NaN()},
	} {
		if got := Ratio(c.a, c.b); !same(got, c.want) {
			t.Errorf("Ratio(%v, %v) = %v, want %v", c.a, c.b, got, c.want)
		}
	}
}

func TestResolves(t *testing.T) {
	for _, c := range []struct {
		n    int
		p    float64
		want bool
	}{
		{99, 0.99, false}, {100, 0.99, true}, {110, 0.99, true}, {30, 0.99, false}, {1, 0.5, false}, {2, 0.5, true},
	} {
		if got := Resolves(c.n, c.p); got != c.want {
			t.Errorf("Resolves(%d, %v) = %v, want %v", c.n, c.p, got, c.want)
		}
	}
}
