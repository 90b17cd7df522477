package registration

import (
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"
)

// Kind is a kind of plugins, in the words of the registration API (k8s.io/kubelet/pkg/apis/pluginregistration/v1).
type Kind string

// The API's kinds.
const (
	CSI    Kind = "CSIPlugin"
	Device Kind = "DevicePlugin"
	DRA    Kind = "DRAPlugin"
)

// deviceVersion is the version of the device plugin API that this agent speaks.
const deviceVersion = "v1beta1"

// nameMax bounds a CSI driver's name, in bytes (the API's, and CSI's own).
const nameMax = 63

// shownMax bounds how much of a plugin's text a reason repeats, in bytes (chosen).
const shownMax = 100

// Answer is what a plugin says about itself (GetInfo).
type Answer struct {
	Kind     Kind
	Name     string
	Endpoint string // empty: the registration socket itself
	Versions []string
}

// judge returns the plugin that an answer describes, or why it cannot be registered.
func judge(s Socket, a Answer) (Plugin, string) {
	p := Plugin{Socket: s, Kind: a.Kind, Name: a.Name, Endpoint: a.Endpoint}
	if p.Endpoint == "" {
		p.Endpoint = s.Path
	}
	var why string
	switch a.Kind {
	case CSI:
		if why = badDriverName(a.Name); why == "" {
			p.Version, why = highest(a.Versions)
		}
	case Device:
		// host/deviceplugin checks the name, which is that of a resource.
		p.Version = deviceVersion
		if !slices.Contains(a.Versions, deviceVersion) {
			why = fmt.Sprintf("supported versions %s: want %s among them", shown(a.Versions...), deviceVersion)
		}
	case DRA:
		why = "kind DRAPlugin is not supported: this node's agent does not prepare claimed devices " +
			"(dynamic resource allocation)"
	default:
		why = fmt.Sprintf("kind %s is not known: want %s or %s", shown(string(a.Kind)), CSI, Device)
	}
	if why == "" && (!path.IsAbs(p.Endpoint) || strings.Contains(p.Endpoint, "\x00")) {
		why = fmt.Sprintf("endpoint %s: want the absolute path of a socket on this node", shown(a.Endpoint))
	}
	return p, why
}

// replaces reports whether p takes the place of a registered plugin of its kind and name. A device plugin does: a new
// one often starts before the old one has gone. Of two CSI drivers the newer version wins.
func replaces(p, registered Plugin) bool {
	return p.Kind != CSI || slices.Compare(numbers(p.Version), numbers(registered.Version)) > 0
}

// badDriverName applies the API's rule for names of CSI drivers: a DNS name that may have capitals.
func badDriverName(name string) string {
	bad := name == "" || len(name) > nameMax
	for _, part := range strings.Split(name, ".") {
		bad = bad || part == "" || strings.HasPrefix(part, "-") || strings.HasSuffix(part, "-")
	}
	for _, c := range []byte(name) {
		letter := c|0x20 >= 'a' && c|0x20 <= 'z'
		bad = bad || !letter && (c < '0' || c > '9') && c != '-' && c != '.'
	}
	if !bad {
		return ""
	}
	return fmt.Sprintf("driver name %s: want a domain name of at most %d letters, digits, dots and dashes, like "+
		"csi.example.com", shown(name), nameMax)
}

// highest returns the highest supported version of CSI. Those of one major version are compatible with each other; of
// CSI that is 1. Texts that are not versions are skipped, as in the kubelet.
func highest(versions []string) (string, string) {
	best := ""
	for _, v := range versions {
		if n := numbers(v); len(n) > 1 && n[0] == 1 && (best == "" || slices.Compare(n, numbers(best)) > 0) {
			best = v
		}
	}
	if best == "" {
		return "", fmt.Sprintf("supported versions %s: want one of CSI 1, like 1.0.0", shown(versions...))
	}
	return best, ""
}

// numbers returns the numbers of a version like v1.13.0-rc1: 1, 13, 0. It is nil if text is not one.
func numbers(text string) []int {
	text, _, _ = strings.Cut(strings.TrimPrefix(text, "v"), "-")
	text, _, _ = strings.Cut(text, "+")
	var out []int
	for _, word := range strings.Split(text, ".") {
		n, err := strconv.Atoi(word)
		if err != nil || n < 0 {
			return nil
		}
		out = append(out, n)
	}
	return out
}

// shown quotes texts of a plugin, in bounded length.
func shown(texts ...string) string {
	if len(texts) == 0 {
		return "none"
	}
	text := fmt.Sprintf("%.*q", shownMax, texts[0])
	if rest := len(texts) - 1; rest == 1 {
		text += " and 1 more"
	} else if rest > 1 {
		text += fmt.Sprintf(" and %d more", rest)
	}
	return text
}
