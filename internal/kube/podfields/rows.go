package podfields

import (
	"slices"
	"strings"
)

// Outcome is how a node of this agent treats a field.
type Outcome int

// The outcomes.
const (
	_          Outcome = iota
	CarriedOut         // proved by Row.By
	Rejected           // the pod fails with upstream's reason; for admitted pods the field is carried out
	Held               // the pod is held because of it
	Unplaced           // the scheduler does not place pods that have it
	NoEffect           // no component on a node reads it, by design
	Read               // it is read from a pod that is already there; proved by Row.By
)

// Row says how a field is treated and, if its path ends in a star, all fields below it.
type Row struct {
	Path    string // spec.containers[] stands for init and ephemeral containers, too
	Outcome Outcome
	// By names what proves the row: an observer (ObserverLife and the others), or a test as package.TestName, with the
	// package's path in the repository. Rows that are held or without effect have none.
	By   string
	Note string
}

// Area is a part of the table, with its title.
type Area struct {
	Title  string
	Groups []Group
}

// Group is several fields whose paths begin alike and which are treated alike.
type Group struct {
	At      string // the common beginning of the paths
	Fields  string // separated by spaces; a star at the end of one stands for all fields below it
	Outcome Outcome
	By      string
	Note    string
}

// Rows returns the rows of a group.
func (g Group) Rows() []Row {
	var out []Row
	for _, name := range strings.Fields(g.Fields) {
		out = append(out, Row{Path: g.At + "." + name, Outcome: g.Outcome, By: g.By, Note: g.Note})
	}
	return out
}

// Rows returns the rows of all areas, and of the fields outside the specification.
func Rows() []Row {
	var out []Row
	for _, a := range append(Areas(), otherAreas()...) {
		for _, g := range a.Groups {
			out = append(out, g.Rows()...)
		}
	}
	return out
}

// Observers name a part of what a pod is translated to. A row with an observer is proved if that part differs between a
// pod with the field and the same pod without it.
const (
	ObserverSandbox   = "sandbox"   // the request that creates the pod's sandbox
	ObserverContainer = "container" // the requests that create its containers: variables, mounts, security
	ObserverFiles     = "files"     // the content of its volumes
	ObserverLife      = "life"      // when its containers start, end and start again; what is known of those that ended
	ObserverResources = "resources" // its cgroups, QoS class, assigned CPUs and memory
	ObserverScheduler = "scheduler" // where it is placed
	ObserverSystem    = "system"    // the reason for which it is rejected
	ObserverLost      = "lost"      // what happens to it when its node is lost
	ObserverAllocated = "allocated" // which resources an earlier agent allocated to it
	ObserverProbe     = "probe"     // how and when its containers are probed
	ObserverHook      = "hook"      // what runs when its containers start and stop
)

// Observers returns all of them.
func Observers() []string {
	return []string{
		ObserverSandbox, ObserverContainer, ObserverFiles, ObserverLife, ObserverResources, ObserverScheduler, ObserverSystem,
		ObserverLost, ObserverAllocated, ObserverProbe, ObserverHook,
	}
}

// Areas returns the table of the fields of the specification, in the order in which users read it.
func Areas() []Area {
	return slices.Concat(podAreas(), containerAreas(), volumeAreas())
}

func podAreas() []Area {
	return []Area{
		{"The life of a pod", []Group{
			{"spec", "restartPolicy terminationGracePeriodSeconds activeDeadlineSeconds readinessGates[].conditionType",
				CarriedOut, ObserverLife, ""},
			{"spec", "priority priorityClassName", CarriedOut, ObserverResources,
				"also who is evicted first, and the scheduler's order"},
			{"spec", "overhead", CarriedOut, ObserverResources, "added to the pod's cgroup"},
			{"spec.resources", "limits requests", CarriedOut, ObserverResources, "of the pod as a whole"},
			{"spec", "resources.claims*", NoEffect, "", "the API server refuses it for a pod as a whole"},
			{"spec", "resourceClaims*", Held, "", "devices of device plugins are supported: name them in `resources.limits`"},
			{"spec", "runtimeClassName", CarriedOut, "internal/agent/runtimehandler.TestRuntimeHandler", ""},
			{"spec", "imagePullSecrets[].name", CarriedOut, "internal/agent/imagepull.TestPullSecrets", ""},
		}},
		{"Names and network of a pod", []Group{
			{"spec", "hostname subdomain hostnameOverride setHostnameAsFQDN dnsPolicy", CarriedOut, ObserverSandbox, ""},
			{"spec.dnsConfig", "nameservers[] searches[] options[].name options[].value", CarriedOut, ObserverSandbox, ""},
			{"spec", "hostAliases[].ip hostAliases[].hostnames[]", CarriedOut, ObserverFiles, "in the pod's hosts file"},
			{"spec", "hostNetwork hostPID hostIPC shareProcessNamespace", CarriedOut, ObserverContainer, ""},
			{"spec", "hostUsers", CarriedOut, "internal/agent/criconfig.TestUserNamespace",
				"`false` needs containerd 2 with runc 1.2 or later, and Linux 6.3 or later: it is held elsewhere"},
			{"spec", "enableServiceLinks", CarriedOut, ObserverContainer, ""},
			{"spec", "serviceAccountName", CarriedOut, ObserverFiles, "the account of a projected volume's token"},
			{"spec", "serviceAccount automountServiceAccountToken", NoEffect, "", "read by the API server when the pod is made"},
		}},
		{"Security of a pod", []Group{
			{"spec", "os.name", Rejected, ObserverSystem, "PodOSNotSupported unless it is linux"},
			{"spec.securityContext", "sysctls[].name", Rejected, ObserverSystem,
				"SysctlForbidden unless safe or in allowedUnsafeSysctls"},
			{"spec.securityContext", "sysctls[].value", CarriedOut, ObserverSandbox, ""},
			{"spec.securityContext", "supplementalGroupsPolicy", Rejected, ObserverSystem,
				"SupplementalGroupsPolicyNotSupported for Strict where the runtime cannot"},
			{"spec.securityContext", "appArmorProfile.type", Rejected, ObserverSystem,
				"AppArmor where the kernel does not enforce profiles"},
			{"spec.securityContext",
				"runAsUser runAsGroup runAsNonRoot supplementalGroups[] fsGroup appArmorProfile.localhostProfile " +
					"seccompProfile.type", CarriedOut, ObserverContainer, ""},
			{"spec.securityContext", "seccompProfile.localhostProfile", CarriedOut, ObserverContainer,
				"a path that leads out of the seccomp directory is held"},
			{"spec.securityContext.seLinuxOptions", "user role type level", CarriedOut, ObserverContainer, ""},
			{"spec.securityContext", "fsGroupChangePolicy", CarriedOut, "internal/agent/volume.TestFSGroupChangePolicy",
				"of volumes of drivers and local ones; others are new with each pod"},
			{"spec.securityContext", "seLinuxChangePolicy", CarriedOut, "internal/agent/csivolume.TestLabels",
				"of volumes of CSI drivers with seLinuxMount that only one pod may have; " +
					"the container runtime relabels all others"},
			{"spec.securityContext", "windowsOptions*", NoEffect, "", "read by nodes with Windows only, as upstream"},
		}},
		{"Where a pod goes", []Group{
			{"spec",
				"nodeSelector schedulerName tolerations[].key tolerations[].operator tolerations[].value tolerations[].effect " +
					"preemptionPolicy schedulingGates[].name", CarriedOut, ObserverScheduler, ""},
			{"spec", "nodeName", CarriedOut, ObserverScheduler, "from then on the pod belongs to the node"},
			{"spec", "tolerations[].tolerationSeconds", CarriedOut, ObserverLost,
				"by `plimsoll lifecycle`: how long a pod stays on an unreachable node"},
			{"spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[]", matchers,
				CarriedOut, ObserverScheduler, ""},
			{"spec.affinity.nodeAffinity.preferredDuringSchedulingIgnoredDuringExecution[]", "weight " + prefixed("preference.",
				matchers), CarriedOut, ObserverScheduler, ""},
			{"spec.affinity.podAffinity.requiredDuringSchedulingIgnoredDuringExecution[]", podTerm, CarriedOut,
				ObserverScheduler, ""},
			{"spec.affinity.podAffinity.preferredDuringSchedulingIgnoredDuringExecution[]", "weight " +
				prefixed("podAffinityTerm.", podTerm), CarriedOut, ObserverScheduler, ""},
			{"spec.affinity.podAntiAffinity.requiredDuringSchedulingIgnoredDuringExecution[]", podTerm, CarriedOut,
				ObserverScheduler, ""},
			{"spec.affinity.podAntiAffinity.preferredDuringSchedulingIgnoredDuringExecution[]", "weight " +
				prefixed("podAffinityTerm.", podTerm), CarriedOut, ObserverScheduler, ""},
			{"spec.affinity.podAffinity",
				"requiredDuringSchedulingIgnoredDuringExecution[].matchLabelKeys[] " +
					"requiredDuringSchedulingIgnoredDuringExecution[].mismatchLabelKeys[] " +
					"preferredDuringSchedulingIgnoredDuringExecution[].podAffinityTerm.matchLabelKeys[] " +
					"preferredDuringSchedulingIgnoredDuringExecution[].podAffinityTerm.mismatchLabelKeys[]", CarriedOut,
				ObserverScheduler, mergedKeys},
			{"spec.affinity.podAntiAffinity",
				"requiredDuringSchedulingIgnoredDuringExecution[].matchLabelKeys[] " +
					"requiredDuringSchedulingIgnoredDuringExecution[].mismatchLabelKeys[] " +
					"preferredDuringSchedulingIgnoredDuringExecution[].podAffinityTerm.matchLabelKeys[] " +
					"preferredDuringSchedulingIgnoredDuringExecution[].podAffinityTerm.mismatchLabelKeys[]", CarriedOut,
				ObserverScheduler, mergedKeys},
			{"spec.topologySpreadConstraints[]",
				"maxSkew topologyKey whenUnsatisfiable labelSelector minDomains nodeAffinityPolicy nodeTaintsPolicy " +
					"matchLabelKeys[]", CarriedOut, ObserverScheduler, ""},
			{"spec", "schedulingGroup*", Unplaced, ObserverScheduler, "no gangs: the PodScheduled condition says so"},
		}},
	}
}

const (
	oneVersion = "v1 is the only value that the API server accepts"

	withPodCertificates = "with the feature gate PodCertificateRequest of the KubeletConfiguration; held without it, " +
		"as by default"
	matchers = "matchExpressions[].key matchExpressions[].operator matchExpressions[].values[] matchFields[].key " +
		"matchFields[].operator matchFields[].values[]"
	podTerm    = "labelSelector namespaces[] topologyKey namespaceSelector"
	mergedKeys = "the API server merges them into labelSelector when the pod is created"
)

// prefixed puts a prefix before each field.
func prefixed(prefix, fields string) string {
	var out []string
	for _, f := range strings.Fields(fields) {
		out = append(out, prefix+f)
	}
	return strings.Join(out, " ")
}

func containerAreas() []Area {
	const c = "spec.containers[]"
	actions := func(at, note string) []Group {
		return []Group{
			{at,
				"exec.command[] httpGet.path httpGet.port httpGet.host httpGet.scheme httpGet.httpHeaders[].name " +
					"httpGet.httpHeaders[].value", CarriedOut, ObserverProbe, note},
			{at, "tcpSocket.port tcpSocket.host grpc.port grpc.service", CarriedOut, ObserverProbe, note},
			{at, "initialDelaySeconds timeoutSeconds periodSeconds successThreshold failureThreshold", CarriedOut, ObserverProbe,
				note},
		}
	}
	hooks := func(at string) []Group {
		return []Group{
			{at,
				"exec.command[] httpGet.path httpGet.port httpGet.host httpGet.scheme httpGet.httpHeaders[].name " +
					"httpGet.httpHeaders[].value sleep.seconds", CarriedOut, ObserverHook, ""},
			{at, "tcpSocket*", Rejected, "internal/agent/hook.TestTCPSocketFails",
				"the hook fails when it is run, as in upstream's kubelet, which has no such hook either"},
		}
	}
	return []Area{
		{"Containers (init containers and ephemeral containers alike)", []Group{
			{c, "name image command[] args[] workingDir stdin stdinOnce tty terminationMessagePath terminationMessagePolicy",
				CarriedOut, ObserverContainer, ""},
			{c, "imagePullPolicy", CarriedOut, "test/e2e/pods.TestMissing", ""},
			{c, "ports[].hostPort ports[].containerPort ports[].protocol ports[].hostIP", CarriedOut, ObserverSandbox,
				"as port mappings; also the scheduler's"},
			{c, "ports[].name", CarriedOut, ObserverProbe, "probes and hooks may name it"},
			{c, "restartPolicy", CarriedOut, ObserverLife, "Always makes an init container a sidecar"},
			{c + ".restartPolicyRules[]", "action exitCodes.operator exitCodes.values[]", CarriedOut, ObserverLife,
				"RestartAllContainers has back-off, unlike the kubelet's"},
			{c, "resizePolicy[].resourceName resizePolicy[].restartPolicy", CarriedOut, ObserverLife, ""},
			{c + ".resources", "limits requests", CarriedOut, ObserverResources, ""},
			{c + ".resources", "claims*", Held, "", ""},
			{"spec.ephemeralContainers[]", "targetContainerName", CarriedOut, ObserverContainer, ""},
		}},
		{"What containers see", []Group{
			{c + ".env[]",
				"name value valueFrom.fieldRef.fieldPath valueFrom.resourceFieldRef.containerName " +
					"valueFrom.resourceFieldRef.resource valueFrom.resourceFieldRef.divisor", CarriedOut, ObserverContainer, ""},
			{c + ".env[].valueFrom",
				"configMapKeyRef.name configMapKeyRef.key configMapKeyRef.optional secretKeyRef.name secretKeyRef.key " +
					"secretKeyRef.optional", CarriedOut, ObserverContainer, ""},
			{c + ".env[].valueFrom", "fileKeyRef.volumeName fileKeyRef.path fileKeyRef.key fileKeyRef.optional", CarriedOut,
				ObserverContainer, ""},
			{c + ".env[].valueFrom", "fieldRef.apiVersion", NoEffect, "", oneVersion},
			{c + ".envFrom[]", "prefix configMapRef.name configMapRef.optional secretRef.name secretRef.optional", CarriedOut,
				ObserverContainer, ""},
			{c + ".volumeMounts[]", "name mountPath readOnly recursiveReadOnly mountPropagation subPath subPathExpr", CarriedOut,
				ObserverContainer, ""},
			{c + ".volumeDevices[]", "name devicePath", CarriedOut, "internal/agent/volume.TestCSIBlock", ""},
		}},
		{"Security of containers", []Group{
			{c + ".securityContext",
				"privileged runAsUser runAsGroup runAsNonRoot readOnlyRootFilesystem allowPrivilegeEscalation capabilities.add[] " +
					"capabilities.drop[]", CarriedOut, ObserverContainer, ""},
			{c + ".securityContext", "seccompProfile.type appArmorProfile.localhostProfile", CarriedOut, ObserverContainer, ""},
			{c + ".securityContext", "seccompProfile.localhostProfile", CarriedOut, ObserverContainer,
				"a path that leads out of the seccomp directory is held"},
			{c + ".securityContext", "appArmorProfile.type", Rejected, ObserverSystem,
				"AppArmor where the kernel does not enforce profiles"},
			{c + ".securityContext.seLinuxOptions", "user role type level", CarriedOut, ObserverContainer, ""},
			{c + ".securityContext", "procMount", CarriedOut, "internal/agent/criconfig.TestProcMount",
				"Unmasked only with hostUsers false; paths are masked in any other case"},
			{c + ".securityContext", "windowsOptions*", NoEffect, "", "read by nodes with Windows only, as upstream"},
		}},
		{"Probes", slices.Concat(
			actions(c+".livenessProbe", ""), actions(c+".readinessProbe", ""), actions(c+".startupProbe", ""),
			[]Group{
				{c, "livenessProbe.terminationGracePeriodSeconds startupProbe.terminationGracePeriodSeconds", CarriedOut,
					ObserverProbe, ""},
				{c, "readinessProbe.terminationGracePeriodSeconds", NoEffect, "",
					"refused by the API server: a readiness probe ends nothing"},
			},
		)},
		{"Hooks", slices.Concat(
			hooks(c+".lifecycle.postStart"), hooks(c+".lifecycle.preStop"),
			[]Group{{c + ".lifecycle", "stopSignal", CarriedOut, ObserverContainer, ""}},
		)},
	}
}

func volumeAreas() []Area {
	const v = "spec.volumes[]"
	kinds := func(holds []hold) string {
		var out []string
		for _, h := range holds {
			out = append(out, strings.TrimPrefix(h.path, v+".")+"*")
		}
		return strings.Join(out, " ")
	}
	const downward = "items[].path items[].fieldRef.fieldPath items[].resourceFieldRef.containerName " +
		"items[].resourceFieldRef.resource items[].resourceFieldRef.divisor items[].mode"
	const keys = "items[].key items[].path items[].mode optional"
	return []Area{
		{"Volumes that are mounted", []Group{
			{v, "name", CarriedOut, ObserverContainer, ""},
			{v + ".hostPath", "path", CarriedOut, ObserverContainer, ""},
			{v + ".hostPath", "type", CarriedOut, "internal/agent/volume.TestHostPath",
				"a missing directory or file is created where the type says so"},
			{v + ".emptyDir", "medium sizeLimit", CarriedOut, "internal/agent/volume.TestEmptyDir",
				"none, Memory, HugePages or HugePages-<size>. Eviction measures the limit of what is on disk; " +
					"the kernel keeps the others"},
			{v + ".configMap", "name defaultMode " + keys, CarriedOut, ObserverFiles, ""},
			{v + ".secret", "secretName defaultMode " + keys, CarriedOut, ObserverFiles, ""},
			{v + ".downwardAPI", "defaultMode " + downward, CarriedOut, ObserverFiles, ""},
			{v + ".projected", "defaultMode", CarriedOut, ObserverFiles, ""},
			{v, "downwardAPI.items[].fieldRef.apiVersion projected.sources[].downwardAPI.items[].fieldRef.apiVersion", NoEffect,
				"", oneVersion},
			{v + ".projected.sources[].configMap", "name " + keys, CarriedOut, ObserverFiles, ""},
			{v + ".projected.sources[].secret", "name " + keys, CarriedOut, ObserverFiles, ""},
			{v + ".projected.sources[].downwardAPI", downward, CarriedOut, ObserverFiles, ""},
			{v + ".projected.sources[].serviceAccountToken", "audience expirationSeconds path", CarriedOut, ObserverFiles, ""},
			{v + ".projected.sources[].clusterTrustBundle", "name signerName labelSelector* optional path", CarriedOut,
				"internal/agent/trustbundle.TestAnchors",
				"with the feature gate ClusterTrustBundleProjection of the KubeletConfiguration; held without it, as by default"},
			{v + ".projected.sources[].podCertificate", "signerName keyType maxExpirationSeconds userAnnotations*", CarriedOut,
				"internal/agent/podcert.TestIssue", withPodCertificates},
			{v + ".projected.sources[].podCertificate", "credentialBundlePath keyPath certificateChainPath", CarriedOut,
				"internal/agent/volume.TestPodCertificate", withPodCertificates},
			{v + ".persistentVolumeClaim", "claimName readOnly", CarriedOut, ObserverContainer,
				"of persistent volumes of kind csi, nfs, hostPath and local, and of kinds that are migrated to CSI drivers; " +
					"others are held"},
			{v + ".csi", "driver fsType nodePublishSecretRef.name readOnly volumeAttributes*", CarriedOut,
				"internal/agent/csivolume.TestInline", ""},
			{v + ".nfs", "server path readOnly", CarriedOut, "internal/agent/csivolume.TestNFS",
				"by the program mount and its helper mount.nfs (Debian's nfs-common), which must be on the node"},
			{v, kinds(migratedVolumeHolds()), CarriedOut, "internal/agent/volume.TestMigrated",
				"as volumes of the CSI drivers to which upstream migrated these kinds"},
			{v + ".image", "reference pullPolicy", CarriedOut, "internal/agent/imagepull.TestImageOfVolume",
				"needs containerd 2.1 or CRI-O 1.31, for a subPath 2.2 or 1.33: it is held elsewhere"},
			{v + ".ephemeral", "volumeClaimTemplate*", NoEffect, "",
				"the controller manager creates the claim, which is mounted like any other"},
		}},
		{"Volumes that are not mounted", []Group{
			{v, "iscsi* fc*", Held, "", ""},
			{v, kinds(oldVolumeHolds()), Held, "", "kinds that upstream no longer supports, or not by default"},
		}},
	}
}
