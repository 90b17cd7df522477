package kubelethash

import (
	"reflect"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// podSecurityContext has the fields of upstream's internal type in their order. The fields about the host's namespaces,
// which the API has in the PodSpec, are in it, too.
type podSecurityContext struct {
	HostNetwork              bool
	HostPID                  bool
	HostIPC                  bool
	ShareProcessNamespace    *bool
	HostUsers                *bool
	SELinuxOptions           *corev1.SELinuxOptions
	WindowsOptions           *corev1.WindowsSecurityContextOptions
	RunAsUser                *int64
	RunAsGroup               *int64
	RunAsNonRoot             *bool
	SupplementalGroups       []int64
	SupplementalGroupsPolicy *corev1.SupplementalGroupsPolicy
	FSGroup                  *int64
	FSGroupChangePolicy      *corev1.PodFSGroupChangePolicy
	Sysctls                  []corev1.Sysctl
	SeccompProfile           *corev1.SeccompProfile
	AppArmorProfile          *corev1.AppArmorProfile
	SELinuxChangePolicy      *corev1.PodSELinuxChangePolicy
}

// The fields of those internal types whose fields differ from the API's, or whose fields have another order (Kubernetes
// 1.36.3).
var (
	podSpecFields = strings.Fields(`Volumes InitContainers Containers EphemeralContainers RestartPolicy
		TerminationGracePeriodSeconds ActiveDeadlineSeconds DNSPolicy NodeSelector ServiceAccountName
		AutomountServiceAccountToken NodeName SecurityContext ImagePullSecrets Hostname Subdomain SetHostnameAsFQDN
		Affinity SchedulerName Tolerations HostAliases PriorityClassName Priority PreemptionPolicy DNSConfig
		ReadinessGates RuntimeClassName Overhead EnableServiceLinks TopologySpreadConstraints OS SchedulingGates
		ResourceClaims Resources HostnameOverride SchedulingGroup`)
	podStatusFields = strings.Fields(`ObservedGeneration Phase Conditions Message Reason NominatedNodeName HostIP
		HostIPs PodIPs StartTime QOSClass InitContainerStatuses ContainerStatuses EphemeralContainerStatuses Resize
		ResourceClaimStatuses ExtendedResourceClaimStatus AllocatedResources Resources
		NodeAllocatableResourceClaimStatuses`)
	volumeSourceFields = strings.Fields(`HostPath EmptyDir GCEPersistentDisk AWSElasticBlockStore GitRepo Secret NFS
		ISCSI Glusterfs PersistentVolumeClaim RBD Quobyte FlexVolume Cinder CephFS Flocker DownwardAPI FC AzureFile
		ConfigMap VsphereVolume AzureDisk PhotonPersistentDisk Projected PortworxVolume ScaleIO StorageOS CSI Ephemeral
		Image`)
)

// internalName returns the name of the internal type for a type of the API.
func internalName(t reflect.Type) string {
	switch {
	case t == reflect.TypeFor[podSecurityContext]():
		return "core.PodSecurityContext"
	case t.PkgPath() == reflect.TypeFor[corev1.Pod]().PkgPath():
		return "core." + t.Name()
	}
	return ""
}

// internalFields returns the fields of the internal type, with the values of the API's; nil: they are the same.
func internalFields(v reflect.Value) []field {
	switch v.Type() {
	case reflect.TypeFor[corev1.PodSpec]():
		fields := fieldsNamed(v, podSpecFields)
		for i := range fields {
			if fields[i].name == "SecurityContext" {
				fields[i].value = reflect.ValueOf(securityOf(v.Interface().(corev1.PodSpec)))
			}
		}
		return fields
	case reflect.TypeFor[corev1.PodStatus]():
		return fieldsNamed(v, podStatusFields)
	case reflect.TypeFor[corev1.VolumeSource]():
		return fieldsNamed(v, volumeSourceFields)
	case reflect.TypeFor[corev1.ServiceAccountTokenProjection]():
		p := v.Interface().(corev1.ServiceAccountTokenProjection)
		seconds := int64(0) // the internal type has no pointer
		if p.ExpirationSeconds != nil {
			seconds = *p.ExpirationSeconds
		}
		return []field{
			{"Audience", reflect.ValueOf(p.Audience)},
			{"ExpirationSeconds", reflect.ValueOf(seconds)},
			{"Path", reflect.ValueOf(p.Path)},
		}
	}
	return nil
}

func fieldsNamed(v reflect.Value, names []string) []field {
	fields := make([]field, 0, len(names))
	for _, name := range names {
		fields = append(fields, field{name, v.FieldByName(name)})
	}
	return fields
}

func securityOf(spec corev1.PodSpec) *podSecurityContext {
	out := &podSecurityContext{
		HostNetwork:           spec.HostNetwork,
		HostPID:               spec.HostPID,
		HostIPC:               spec.HostIPC,
		ShareProcessNamespace: spec.ShareProcessNamespace,
		HostUsers:             spec.HostUsers,
	}
	if s := spec.SecurityContext; s != nil {
		out.SELinuxOptions = s.SELinuxOptions
		out.WindowsOptions = s.WindowsOptions
		out.RunAsUser = s.RunAsUser
		out.RunAsGroup = s.RunAsGroup
		out.RunAsNonRoot = s.RunAsNonRoot
		out.SupplementalGroups = s.SupplementalGroups
		out.SupplementalGroupsPolicy = s.SupplementalGroupsPolicy
		out.FSGroup = s.FSGroup
		out.FSGroupChangePolicy = s.FSGroupChangePolicy
		out.Sysctls = s.Sysctls
		out.SeccompProfile = s.SeccompProfile
		out.AppArmorProfile = s.AppArmorProfile
		out.SELinuxChangePolicy = s.SELinuxChangePolicy
	}
	return out
}
