package kubeletconfig

import (
	"fmt"
	"iter"
	"maps"
	"reflect"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kubeletconfigv1beta1 "k8s.io/kubelet/config/v1beta1"
)

// field says how the agent treats one field of a KubeletConfiguration.
type field struct {
	path string
	// honoured: the field has the effect that it has in the kubelet. Otherwise it is honoured only for its default and
	// for the values in only (as fmt prints them); any other value causes a warning that ends with instead.
	honoured bool
	only     []string
	instead  string
	// matters: the default is not honoured either, and users of the kubelet may rely on it. Notes reports it.
	matters bool
}

// does returns fields that are honoured.
func does(paths ...string) []field {
	out := make([]field, len(paths))
	for i, path := range paths {
		out[i] = field{path: path, honoured: true}
	}
	return out
}

// not returns fields that are honoured only with their default. instead says what happens with other values.
func not(instead string, paths ...string) []field {
	out := make([]field, len(paths))
	for i, path := range paths {
		out[i] = field{path: path, instead: instead}
	}
	return out
}

// instead returns a field whose default is not honoured either: only one value is.
func instead(text, path, only string) []field {
	return []field{{path: path, only: []string{only}, instead: text, matters: true}}
}

// Notes returns what the kubelet does by default, for a configuration c, that this agent does not do. Somebody who
// replaces the kubelet by this agent may rely on it.
func Notes(c *kubeletconfigv1beta1.KubeletConfiguration) []string {
	now := leafMap(c)
	var notes []string
	for _, f := range fields {
		if !f.matters {
			continue
		}
		text := fmt.Sprint(reflect.Indirect(now[f.path]).Interface())
		if !slices.Contains(f.only, text) {
			notes = append(notes, fmt.Sprintf("%s: %s: not honoured: %s; set it to %s to silence this", f.path, text, f.instead, f.only[0]))
		}
	}
	return notes
}

// fields has an entry for every field of the type; a test enforces that.
var fields = slices.Concat(
	// The agent's server.
	does("enableServer", "address", "port", "tlsCertFile", "tlsPrivateKeyFile", "tlsCipherSuites", "tlsMinVersion", "tlsCurvePreferences",
		"authentication.x509.clientCAFile", "authentication.webhook.enabled", "authentication.webhook.cacheTTL", "authentication.anonymous.enabled",
		"authorization.mode", "authorization.webhook.cacheAuthorizedTTL", "authorization.webhook.cacheUnauthorizedTTL",
		"streamingConnectionIdleTimeout", "enableDebuggingHandlers", "healthzPort", "healthzBindAddress",
		"enableSystemLogHandler", "enableProfilingHandler"),
	not("this port is not opened: use port", "readOnlyPort"),
	not("/logs serves files only", "enableSystemLogQuery"),
	not("/debug/flags is not served", "enableDebugFlagsHandler"),
	not("blocking is not profiled", "enableContentionProfiling"),
	does("rotateCertificates", "serverTLSBootstrap"),

	// The API server and the Node object.
	does("nodeStatusUpdateFrequency", "nodeStatusReportFrequency", "nodeLeaseDurationSeconds", "nodeStatusMaxImages",
		"registerNode", "registerWithTaints", "providerID", "kubeAPIQPS", "kubeAPIBurst", "eventRecordQPS", "eventBurst"),
	not("requests to the API server are in protobuf", "contentType"),
	[]field{{path: "configMapAndSecretChangeDetectionStrategy", only: []string{"Watch"}, instead: "each object is watched"}},
	not("the controller manager always attaches volumes", "enableControllerAttachDetach"),

	// Where pods come from and what they see.
	does("staticPodPath", "podLogsDir", "clusterDomain", "clusterDNS", "resolvConf", "containerRuntimeEndpoint", "imageServiceEndpoint"),
	not("the directory is watched, and read again at the agent's own interval", "fileCheckFrequency"),
	not("pods are read from the API and staticPodPath only", "staticPodURL", "staticPodURLHeader", "httpCheckFrequency"),
	not("pods are synced when something happens, and at the agent's own interval", "syncFrequency"),
	does("containerLogMaxSize", "containerLogMaxFiles", "containerLogMonitorInterval", "containerLogMaxWorkers"),
	does("crashLoopBackOff.maxContainerRestartPeriod"),
	does("runtimeRequestTimeout"),
	not("FlexVolume plugins are not supported", "volumePluginDir"),
	not("volume usage is measured at the agent's own interval", "volumeStatsAggPeriod"),
	not("the CNI plugin assigns addresses", "podCIDR", "hairpinMode"),
	instead("the agent makes no netfilter chains; programs that look for KUBE-IPTABLES-HINT do not find it", "makeIPTablesUtilChains", "false"),
	not("the agent makes no netfilter chains", "iptablesMasqueradeBit", "iptablesDropBit"),
	does("seccompDefault", "allowedUnsafeSysctls", "userNamespaces.idsPerPod"),

	// Resources.
	does("systemReserved", "kubeReserved", "evictionHard", "mergeDefaultEvictionSettings", "reservedSystemCPUs", "maxPods", "podsPerCore",
		"podPidsLimit", "singleProcessOOMKill", "cpuCFSQuota", "cpuCFSQuotaPeriod", "localStorageCapacityIsolation",
		"cgroupRoot", "cgroupsPerQOS", "cgroupDriver", "enforceNodeAllocatable", "systemReservedCgroup", "kubeReservedCgroup",
		"qosReserved", "memoryThrottlingFactor", "memoryReservationPolicy", "memorySwap.swapBehavior", "oomScoreAdj"),
	does("cpuManagerPolicy", "cpuManagerPolicyOptions", "memoryManagerPolicy", "reservedMemory",
		"topologyManagerPolicy", "topologyManagerScope", "topologyManagerPolicyOptions"), // by NUMA
	not("shared CPUs change at once, and the kernel is not polled", "cpuManagerReconcilePeriod"),
	not("no process is moved", "kubeletCgroups", "systemCgroups"),
	not("the agent keeps the limit with which it was started", "maxOpenFiles"),
	does("failSwapOn", "failCgroupV1"), // by CheckMachine
	not("kernel parameters are not checked", "protectKernelDefaults"),

	// Pressure.
	does("evictionSoft", "evictionSoftGracePeriod", "evictionPressureTransitionPeriod", "evictionMaxPodGracePeriod", "evictionMinimumReclaim"),
	[]field{{path: "kernelMemcgNotification", only: []string{"true"}, instead: "the kernel is always asked to notify"}},

	// Images.
	does("imageMinimumGCAge", "imageMaximumGCAge", "imageGCHighThresholdPercent", "imageGCLowThresholdPercent",
		"serializeImagePulls", "maxParallelImagePulls", "registryPullQPS", "registryBurst",
		"imagePullCredentialsVerificationPolicy", "preloadedImagesVerificationAllowlist"),

	// The rest.
	not("pods are not stopped before the node shuts down", "shutdownGracePeriod", "shutdownGracePeriodCriticalPods", "shutdownGracePeriodByPodPriority"),
	does("featureGates"), // those of gates.go; a warning of their own for the others
	not("logs go to standard error", "logging"),
	not("spans are not sent", "tracing"),
	not("all metrics are shown", "showHiddenMetricsForVersion"),
	not("is an error in the kubelet too", "runOnce"),
)

// Field says how the agent treats a field. It is for documentation.
type Field struct {
	Path     string
	Honoured bool
	Only     []string // the values that are honoured, if not all are
	Instead  string   // what happens with other values
	Matters  bool     // the default is not honoured either
}

// Fields returns all fields in the order of the table.
func Fields() []Field {
	var out []Field
	for _, f := range fields {
		out = append(out, Field{Path: f.path, Honoured: f.honoured, Only: f.only, Instead: f.instead, Matters: f.matters})
	}
	return out
}

// unhonoured returns a warning for each field that the configuration sets to another value than its default and that we
// do not honour. asked is the configuration as written, c the same with its defaults.
func unhonoured(asked, c *kubeletconfigv1beta1.KubeletConfiguration) []string {
	plain := &kubeletconfigv1beta1.KubeletConfiguration{}
	defaults(plain)
	byDefault, now := leafMap(plain), leafMap(c)
	known := map[string]field{}
	for _, f := range fields {
		known[f.path] = f
	}
	var warnings []string
	for path, v := range leafMap(asked) {
		f := known[path]
		empty := v.IsZero() || (v.Kind() == reflect.Map || v.Kind() == reflect.Slice) && v.Len() == 0
		if f.honoured || empty || reflect.DeepEqual(now[path].Interface(), byDefault[path].Interface()) {
			continue
		}
		text := fmt.Sprint(reflect.Indirect(v).Interface())
		if k := reflect.Indirect(v); k.Kind() == reflect.Struct && k.Type() != reflect.TypeFor[metav1.Duration]() {
			text = "set"
		}
		if !slices.Contains(f.only, text) {
			warnings = append(warnings, fmt.Sprintf("%s: %.100s: not honoured: %s", path, text, f.instead))
		}
	}
	warnings = append(warnings, gateWarnings(asked)...)
	slices.Sort(warnings)
	return warnings
}

func leafMap(c *kubeletconfigv1beta1.KubeletConfiguration) map[string]reflect.Value {
	return maps.Collect(leaves("", reflect.ValueOf(c).Elem()))
}

// leaves yields the fields of a configuration with their paths. It descends into the structs of the configuration's own
// package and no further. An absent struct yields zero fields.
func leaves(prefix string, v reflect.Value) iter.Seq2[string, reflect.Value] {
	own := reflect.TypeFor[kubeletconfigv1beta1.KubeletConfiguration]().PkgPath()
	return func(yield func(string, reflect.Value) bool) {
		for i := range v.NumField() {
			name, _, _ := strings.Cut(v.Type().Field(i).Tag.Get("json"), ",")
			if name == "" {
				continue // TypeMeta
			}
			f := v.Field(i)
			if f.Kind() == reflect.Pointer && f.Type().Elem().Kind() == reflect.Struct && f.Type().Elem().PkgPath() == own {
				if f.IsNil() {
					f = reflect.New(f.Type().Elem())
				}
				f = f.Elem()
			}
			if f.Kind() == reflect.Struct && f.Type().PkgPath() == own {
				for path, leaf := range leaves(prefix+name+".", f) {
					if !yield(path, leaf) {
						return
					}
				}
				continue
			}
			if !yield(prefix+name, f) {
				return
			}
		}
	}
}
