package main

import (
	"fmt"
	"math"
	"os"
	"strings"
	"time"
)

// sweep measures how our cost grows along each dimension of the mixed cluster.
func (o *options) sweep() (string, bool) {
	var b strings.Builder
	fmt.Fprintf(&b,
		"## How cost grows\n\nOurs alone, on the mixed cluster with %d nodes, %d kinds, "+
			"%d waiting pods and %v other events for each pod that comes, but for\n",
		sweepFrom.nodes, sweepFrom.kinds, sweepFrom.waiting, sweepFrom.churn)
	b.WriteString("what a line says. The exponent tells the growth since the line before: 0 does not grow, " +
		"1 grows alike, 2 with the square.\n\n")
	b.WriteString("| | CPU/pod | p99 | exponent |\n|---|---|---|---|\n")
	for axis := range axes {
		if !o.only.MatchString(axes[axis].name) {
			continue
		}
		var at []float64
		var cost []float64
		for _, value := range axes[axis].values {
			s, small := sweepScenario(axis, value, o.nodesMax)
			if !small {
				continue
			}
			fmt.Fprintf(os.Stderr, "%s measuring %s\n", time.Now().Format(time.TimeOnly), s.name)
			_, ours := measure(s, o.rounds, o.pods, o.budget)
			at, cost = append(at, value), append(cost, float64(ours.CPU))
			grows := ""
			if n := len(at); n > 1 {
				grows = fmt.Sprintf("%.2f", exponent(at[n-2:], cost[n-2:]))
			}
			fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", s.name, short(ours.CPU), short(ours.P99), grows)
		}
		if len(at) > 1 {
			fmt.Fprintf(&b, "| **%s**, over all | | | %.2f |\n", axes[axis].name, exponent(at, cost))
		}
	}
	return b.String(), true
}

// exponent returns e of cost = c * at^e, by least squares of the logarithms. There must be at least two different
// points.
func exponent(at, cost []float64) float64 {
	n := float64(len(at))
	x := 0.0
	y := 0.0
	xx := 0.0
	xy := 0.0
	for i := range at {
		lx, ly := math.Log(at[i]), math.Log(cost[i])
		x = x + lx
		y = y + ly
		xx = xx + lx*lx
		xy = xy + lx*ly
	}
	return (n*xy - x*y) / (n*xx - x*x)
}
