// Package stats is the little arithmetic that a side-by-side measurement needs.
//
// Quantiles are nearest-rank: every number in a report is one that was measured. Nothing here assumes a distribution,
// and nothing hides that samples are few: callers ask Resolves before they trust a quantile. It is not for large data
// (every call sorts a copy) and does no significance tests: with three rounds there is nothing to test.
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

// Spread is the distance of the outermost samples, as a share of the median: 0.1 is "all within a tenth". It is NaN for
// fewer than two samples and for a median of zero.
func Spread(samples []float64) float64 {
	m := Median(samples)
	if len(samples) < 2 || m == 0 {
		return math.NaN()
	}
	return (slices.Max(samples) - slices.Min(samples)) / math.Abs(m)
}

// Ratio is a/b; NaN if either is unknown or b is zero.
func Ratio(a, b float64) float64 {
	if b == 0 {
		return math.NaN()
	}
	return a / b
}

// Resolves reports whether n samples can tell their p quantile from their maximum: the 99th percentile of thirty samples
// is the maximum.
func Resolves(n int, p float64) bool { return float64(n)*(1-p) >= 1-1e-9 }
