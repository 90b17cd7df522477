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
	// for the values in only (as warnings print them); any other value causes a warning that ends with instead.
	honoured bool
	only     []string
	instead  string
}

// honoured returns fields that are honoured with every value.
func honoured(paths ...string) []field {
	out := make([]field, len(paths))
	for i, path := range paths {
		out[i] = field{path: path, honoured: true}
	}
	return out
}

// onlyDefault returns fields that are honoured only with their default. instead says what happens with other values.
func onlyDefault(instead string, paths ...string) []field {
	out := make([]field, len(paths))
	for i, path := range paths {
		out[i] = field{path: path, instead: instead}
	}
	return out
}

// fields has an entry for every field of the type; a test enforces that.
var fields = slices.Concat(
	// The agent's server.
	honoured("enableServer", "address", "port", "tlsCertFile", "tlsPrivateKeyFile", "tlsCipherSuites", "tlsMinVersion",
		"tlsCurvePreferences",
		"authentication.x509.clientCAFile", "authentication.webhook.enabled", "authentication.webhook.cacheTTL",
		"authentication.anonymous.enabled",
		"authorization.mode", "authorization.webhook.cacheAuthorizedTTL", "authorization.webhook.cacheUnauthorizedTTL",
		"streamingConnectionIdleTimeout", "enableDebuggingHandlers", "healthzPort", "healthzBindAddress",
		"enableSystemLogHandler", "enableSystemLogQuery", "enableProfilingHandler", "enableDebugFlagsHandler"),
	onlyDefault("this port is not opened: use port", "readOnlyPort"),
	onlyDefault("blocking is not profiled", "enableContentionProfiling"),
	honoured("rotateCertificates", "serverTLSBootstrap"),

	// The API server and the Node object.
	honoured("nodeStatusUpdateFrequency", "nodeStatusReportFrequency", "nodeLeaseDurationSeconds", "nodeStatusMaxImages",
		"registerNode", "registerWithTaints", "providerID", "kubeAPIQPS", "kubeAPIBurst", "eventRecordQPS", "eventBurst"),
	onlyDefault("requests to the API server are in protobuf", "contentType"),
	[]field{{path: "configMapAndSecretChangeDetectionStrategy", only: []string{"Watch"},
		instead: "each object is watched"}},
	onlyDefault("the controller manager always attaches volumes", "enableControllerAttachDetach"),

	// Where pods come from and what they see.
	honoured("staticPodPath", "podLogsDir", "clusterDomain", "clusterDNS", "resolvConf", "containerRuntimeEndpoint",
		"imageServiceEndpoint"),
	onlyDefault("the directory is watched, and read again at the agent's own interval", "fileCheckFrequency"),
	onlyDefault("pods are read from the API and staticPodPath only", "staticPodURL", "staticPodURLHeader",
		"httpCheckFrequency"),
	onlyDefault("pods are synced when something happens, and at the agent's own interval", "syncFrequency"),
	honoured("containerLogMaxSize", "containerLogMaxFiles", "containerLogMonitorInterval", "containerLogMaxWorkers"),
	honoured("crashLoopBackOff.maxContainerRestartPeriod"),
	honoured("runtimeRequestTimeout"),
	onlyDefault("FlexVolume plugins are not supported", "volumePluginDir"),
	honoured("volumeStatsAggPeriod"), // of claims and CSI drivers; agent/stats measures the rest when it is asked
	onlyDefault("the runtime is told the Node's podCIDRs, as by a kubelet with an API server", "podCIDR"),
	onlyDefault("the CNI plugin connects pods", "hairpinMode"),
	honoured("makeIPTablesUtilChains"),
	onlyDefault("no packet is marked; the kubelet 1.36 does not read this either", "iptablesMasqueradeBit",
		"iptablesDropBit"),
	honoured("seccompDefault", "allowedUnsafeSysctls", "userNamespaces.idsPerPod"),

	// Resources.
	honoured("systemReserved", "kubeReserved", "evictionHard", "mergeDefaultEvictionSettings", "reservedSystemCPUs",
		"maxPods", "podsPerCore",
		"podPidsLimit", "singleProcessOOMKill", "cpuCFSQuota", "cpuCFSQuotaPeriod", "localStorageCapacityIsolation",
		"cgroupRoot", "cgroupsPerQOS", "cgroupDriver", "enforceNodeAllocatable", "systemReservedCgroup", "kubeReservedCgroup",
		"qosReserved", "memoryThrottlingFactor", "memoryReservationPolicy", "memorySwap.swapBehavior", "oomScoreAdj"),
	honoured("cpuManagerPolicy", "cpuManagerPolicyOptions", "memoryManagerPolicy", "reservedMemory",
		"topologyManagerPolicy", "topologyManagerScope", "topologyManagerPolicyOptions"), // by NUMA
	onlyDefault("shared CPUs change at once, and the kernel is not polled", "cpuManagerReconcilePeriod"),
	honoured("kubeletCgroups"),
	onlyDefault("no other process is moved: systemd has each in a unit; without systemd, start them in a group",
		"systemCgroups"),
	honoured("maxOpenFiles"),
	honoured("failSwapOn", "failCgroupV1"), // by CheckMachine
	honoured("protectKernelDefaults"),

	// Pressure.
	honoured("evictionSoft", "evictionSoftGracePeriod", "evictionPressureTransitionPeriod", "evictionMaxPodGracePeriod",
		"evictionMinimumReclaim"),
	[]field{{path: "kernelMemcgNotification", only: []string{"true"}, instead: "the kernel is always asked to notify"}},

	// Images.
	honoured("imageMinimumGCAge", "imageMaximumGCAge", "imageGCHighThresholdPercent", "imageGCLowThresholdPercent",
		"serializeImagePulls", "maxParallelImagePulls", "registryPullQPS", "registryBurst",
		"imagePullCredentialsVerificationPolicy", "preloadedImagesVerificationAllowlist"),

	// The rest.
	honoured("shutdownGracePeriod", "shutdownGracePeriodCriticalPods", "shutdownGracePeriodByPodPriority"),
	honoured("featureGates"), // those of gates.go; a warning of their own for the others
	honoured("logging"),      // format and verbosity; warnings of their own for the others
	honoured("tracing"),
	onlyDefault("all metrics are shown", "showHiddenMetricsForVersion"),
	onlyDefault("is an error in the kubelet too", "runOnce"),
)

// Field says how the agent treats a field. It is for documentation.
type Field struct {
	Path     string
	Honoured bool
	Only     []string // the values that are honoured, if not all are
	Instead  string   // what happens with other values
}

// Fields returns all fields in the order of the table.
func Fields() []Field {
	var out []Field
	for _, f := range fields {
		out = append(out, Field{Path: f.path, Honoured: f.honoured, Only: f.only, Instead: f.instead})
	}
	return out
}

// unhonoured returns a warning for each field that the configuration sets to another value than its default and that we
// do not honour. asked is the configuration as written, c the same with its defaults.
func unhonoured(asked, c *kubeletconfigv1beta1.KubeletConfiguration) []string {
	plain := &kubeletconfigv1beta1.KubeletConfiguration{}
	defaults(plain)
	thresholdDefaults(plain)
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
		if k := reflect.Indirect(v); k.Kind() == reflect.Struct {
			text = "set"
			if d, is := k.Interface().(metav1.Duration); is {
				text = d.Duration.String()
			}
		}
		if !slices.Contains(f.only, text) {
			warnings = append(warnings, fmt.Sprintf("%s: %.100s: not honoured: %s", path, text, f.instead))
		}
	}
	warnings = append(warnings, gateWarnings(asked)...)
	warnings = append(warnings, loggingWarnings(asked)...)
	slices.Sort(warnings)
	return warnings
}

func leafMap(c *kubeletconfigv1beta1.KubeletConfiguration) map[string]reflect.Value {
	return maps.Collect(fieldsOf("", reflect.ValueOf(c).Elem()))
}

// fieldsOf yields the fields of a configuration with their paths. It descends into the structs of the configuration's
// own package and no further. An absent struct yields zero fields.
func fieldsOf(prefix string, v reflect.Value) iter.Seq2[string, reflect.Value] {
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
				for path, leaf := range fieldsOf(prefix+name+".", f) {
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
