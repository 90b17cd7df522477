// Package stats is the arithmetic of a side-by-side measurement.
//
// Quantiles are nearest-rank: every number in a report was measured. The functions assume no distribution. Where
// samples are few, callers must check Resolves before they rely on a quantile. The package is not for large data (every
// call sorts a copy) and has no significance tests: three rounds are too few for them.
package stats

import (
	"math"
	"slices"
)

// Quantile returns the smallest sample that at least share p of all samples do not exceed; NaN without samples.
func Quantile(samples []float64, p float64) float64 {
	if len(samples) == 0 {
		return math.NaN()
	}
	sorted := slices.Sorted(slices.Values(samples))
	rank := int(math.Ceil(p * float64(len(sorted))))
	return sorted[min(max(rank, 1), len(sorted))-1]
}

// Median returns the middle sample, or the mean of the two in the middle; NaN without samples.
func Median(samples []float64) float64 {
	n := len(samples)
	if n == 0 {
		return math.NaN()
	}
	sorted := slices.Sorted(slices.Values(samples))
	return (sorted[(n-1)/2] + sorted[n/2]) / 2
}

// Spread returns the distance between the outermost samples as a share of the median: 0.1 means all within a tenth. It
// is NaN for fewer than two samples and for a median of zero.
func Spread(samples []float64) float64 {
	m := Median(samples)
	if len(samples) < 2 || m == 0 {
		return math.NaN()
	}
	return (slices.Max(samples) - slices.Min(samples)) / math.Abs(m)
}

// Ratio returns a/b; NaN if either is NaN or b is zero.
func Ratio(a, b float64) float64 {
	if b == 0 {
		return math.NaN()
	}
	return a / b
}

// Resolves reports whether the p quantile of n samples can differ from their maximum: the 99th percentile of thirty
// samples is the maximum.
func Resolves(n int, p float64) bool { return float64(n)*(1-p) >= 1-1e-9 }
