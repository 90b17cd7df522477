package placement

import "strings"

// isSupported keeps a pod off every node if it demands what no rule here can check. Placing it anyway would break a
// promise in silence.
func isSupported(_ *cluster, k *class, _ row) bool { return len(k.unsupported) == 0 }

func explainSupported(_ *cluster, k *class, _ row, reasons []string) []string {
	return append(reasons, unsupportedReason(k))
}

func unsupportedReason(k *class) string {
	return "this scheduler does not support " + strings.Join(k.unsupported, ", ") + " yet"
}
