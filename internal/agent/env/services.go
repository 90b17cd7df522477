package env

import (
	"net"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/plimsoll-dev/plimsoll/internal/kube/translate"
)

// serviceVars are the service variables, by name.
type serviceVars map[string]string

func (v serviceVars) sorted() []variable {
	out := make([]variable, 0, len(v))
	for _, name := range sortedKeys(v) {
		out = append(out, variable{name, v[name]})
	}
	return out
}

// masterService is the service in the default namespace that every pod gets variables of: in-cluster clients find the
// API server by it.
const masterService = "kubernetes"

// serviceVars returns the variables of the services that pod is given: the master service always, and those of its
// namespace unless the pod sets enableServiceLinks: false (absent is true, the API's default). A service called
// kubernetes in the pod's own namespace replaces the master service.
func (b *Builder) serviceVars(pod *corev1.Pod) (serviceVars, error) {
	announced := map[string]*corev1.Service{}
	services := b.Services
	if translate.IsStaticPod(pod) {
		services = b.knownServices
	}
	masters, err := services(metav1.NamespaceDefault)
	if err != nil {
		return nil, err
	}
	for _, s := range masters {
		if s.Name == masterService && hasClusterIP(s) {
			announced[s.Name] = s
		}
	}
	if pod.Spec.EnableServiceLinks == nil || *pod.Spec.EnableServiceLinks {
		own := masters
		if pod.Namespace != metav1.NamespaceDefault {
			if own, err = services(pod.Namespace); err != nil {
				return nil, err
			}
		}
		for _, s := range own {
			if hasClusterIP(s) {
				announced[s.Name] = s
			}
		}
	}
	vars := serviceVars{}
	for _, name := range sortedKeys(announced) {
		vars.announce(announced[name])
	}
	return vars, nil
}

// knownServices returns no services while they are not known yet. Static pods do not wait for them, since one of them
// may be the API server that would deliver them.
func (b *Builder) knownServices(namespace string) ([]*corev1.Service, error) {
	services, err := b.Services(namespace)
	if err != nil {
		return nil, nil
	}
	return services, nil
}

func hasClusterIP(s *corev1.Service) bool {
	return s.Spec.ClusterIP != "" && s.Spec.ClusterIP != corev1.ClusterIPNone && len(s.Spec.Ports) > 0
}

// announce adds NAME_SERVICE_HOST, NAME_SERVICE_PORT[_PORTNAME] and the older family of NAME_PORT_80_TCP variables from
// container links. Kubernetes documents all of them.
func (v serviceVars) announce(s *corev1.Service) {
	prefix, ip := varName(s.Name), s.Spec.ClusterIP
	v[prefix+"_SERVICE_HOST"] = ip
	v[prefix+"_SERVICE_PORT"] = strconv.Itoa(int(s.Spec.Ports[0].Port))
	for i, p := range s.Spec.Ports {
		port := strconv.Itoa(int(p.Port))
		if p.Name != "" {
			v[prefix+"_SERVICE_PORT_"+varName(p.Name)] = port
		}
		protocol := p.Protocol
		if protocol == "" {
			protocol = corev1.ProtocolTCP
		}
		scheme := strings.ToLower(string(protocol))
		url := scheme + "://" + net.JoinHostPort(ip, port)
		if i == 0 {
			v[prefix+"_PORT"] = url
		}
		link := prefix + "_PORT_" + port + "_" + strings.ToUpper(string(protocol))
		v[link] = url
		v[link+"_PROTO"] = scheme
		v[link+"_PORT"] = port
		v[link+"_ADDR"] = ip
	}
}

func varName(s string) string { return strings.ToUpper(strings.ReplaceAll(s, "-", "_")) }
