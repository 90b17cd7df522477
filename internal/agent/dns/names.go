// Package dns computes a pod's network identity as its containers see it: host name and domain, /etc/hosts and the
// resolver configuration.
//
// All of it is text computed from the pod, the node's configuration and files of the host. The formats are the
// kubelet's to the byte, because programs in containers and users' tests parse them. What had to be left out to fit a
// limit is returned as warnings, which the caller records as Events; the package logs nothing.
//
// It reads at most one file (the host's resolv.conf or hosts file, named by the caller) and writes none.
package dns

import (
	"bytes"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
)

// hostnameMax is the longest host name in bytes: HOST_NAME_MAX of Linux is 64 with the final NUL (gethostname(2)).
const hostnameMax = 63

// Of returns pod's host name and its domain; the domain is empty for a pod without a subdomain.
func Of(pod *corev1.Pod, clusterDomain string) (hostname, domain string, err error) {
	if o := pod.Spec.HostnameOverride; o != nil {
		if problems := validation.IsDNS1123Subdomain(*o); len(problems) > 0 {
			return "", "", fmt.Errorf("pod HostnameOverride %q is not a valid DNS subdomain: %s", *o, strings.Join(problems,
				";"))
		}
		hostname, err = fit(pod.Name, *o)
		return hostname, "", err
	}
	hostname = pod.Name
	if h := pod.Spec.Hostname; h != "" {
		if problems := validation.IsDNS1123Label(h); len(problems) > 0 {
			return "", "", fmt.Errorf("pod Hostname %q is not a valid DNS label: %s", h, strings.Join(problems, ";"))
		}
		hostname = h
	}
	if hostname, err = fit(pod.Name, hostname); err != nil {
		return "", "", err
	}
	if s := pod.Spec.Subdomain; s != "" {
		if problems := validation.IsDNS1123Label(s); len(problems) > 0 {
			return "", "", fmt.Errorf("pod Subdomain %q is not a valid DNS label: %s", s, strings.Join(problems, ";"))
		}
		domain = s + "." + pod.Namespace + ".svc." + clusterDomain
	}
	return hostname, domain, nil
}

// nodenameMax is the longest host name that the kernel stores, in bytes: __NEW_UTS_LEN of uname(2), without the final
// NUL.
const nodenameMax = 64

// Kernel returns the host name that the kernel gives the pod's containers (hostname(1), uname(2)): the pod's host name,
// and with setHostnameAsFQDN and a subdomain also its domain. A name that is too long is an error; nothing is cut off.
func Kernel(pod *corev1.Pod, clusterDomain string) (string, error) {
	hostname, domain, err := Of(pod, clusterDomain)
	if err != nil || domain == "" || pod.Spec.SetHostnameAsFQDN == nil || !*pod.Spec.SetHostnameAsFQDN {
		return hostname, err
	}
	name := hostname + "." + domain
	if len(name) > nodenameMax {
		return "",
			fmt.Errorf("failed to construct FQDN from pod hostname and cluster domain, "+
				"FQDN %s is too long (%d characters is the max, %d characters requested)",
				name, nodenameMax, len(name))
	}
	return name, nil
}

// fit cuts a host name to the kernel's limit. The result must not end in '-' or '.'.
func fit(pod, hostname string) (string, error) {
	if len(hostname) <= hostnameMax {
		return hostname, nil
	}
	cut := strings.TrimRight(hostname[:hostnameMax], "-.")
	if cut == "" {
		return "", fmt.Errorf("hostname for pod %q was invalid: %q", pod, hostname)
	}
	return cut, nil
}

// HostsFile returns the /etc/hosts of a pod with its own network.
func HostsFile(ips []string, hostname, domain string, aliases []corev1.HostAlias) []byte {
	var out bytes.Buffer
	out.WriteString("# Kubernetes-managed hosts file.\n" +
		"127.0.0.1\tlocalhost\n" +
		"::1\tlocalhost ip6-localhost ip6-loopback\n" +
		"fe00::0\tip6-localnet\n" +
		"fe00::0\tip6-mcastprefix\n" +
		"fe00::1\tip6-allnodes\n" +
		"fe00::2\tip6-allrouters\n")
	for _, ip := range ips {
		if domain != "" {
			fmt.Fprintf(&out, "%s\t%s.%s\t%s\n", ip, hostname, domain, hostname)
		} else {
			fmt.Fprintf(&out, "%s\t%s\n", ip, hostname)
		}
	}
	writeAliases(&out, aliases)
	return out.Bytes()
}

// HostNetworkHostsFile returns the /etc/hosts of a pod on the host's network: the host's file and the pod's aliases.
func HostNetworkHostsFile(host []byte, aliases []corev1.HostAlias) []byte {
	var out bytes.Buffer
	out.WriteString("# Kubernetes-managed hosts file (host network).\n")
	out.Write(host)
	writeAliases(&out, aliases)
	return out.Bytes()
}

func writeAliases(out *bytes.Buffer, aliases []corev1.HostAlias) {
	if len(aliases) == 0 {
		return
	}
	out.WriteString("\n# Entries added by HostAliases.\n")
	for _, a := range aliases {
		fmt.Fprintf(out, "%s\t%s\n", a.IP, strings.Join(a.Hostnames, "\t"))
	}
}
