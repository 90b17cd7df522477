package placement

import "strings"

// isSupported keeps a pod off every node if it demands what no rule here can check. Placing it anyway would break a
// promise in silence.
func isSupported(_ *cluster, d *demand, _ row) bool { return len(d.unsupported) == 0 }

func explainSupported(_ *cluster, d *demand, _ row, reasons []string) []string {
	return append(reasons, unsupportedReason(d))
}

func unsupportedReason(d *demand) string {
	return "this scheduler does not support " + strings.Join(d.unsupported, ", ") + " yet"
}

func narrowSupported(_ *cluster, d *demand, m mask) { m.unless(len(d.unsupported) > 0) }
